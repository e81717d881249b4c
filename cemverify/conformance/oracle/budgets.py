"""Error budgets: how far a correct implementation may deviate, derived from dtype, size and magnitudes.

A *running error analysis*: the layer is evaluated once in float64 on numbers that carry a bound on their
error, and every rule below is a standard forward bound (Higham, Accuracy and Stability, ch. 3): a sum of n
products is off by at most gamma_n = n u / (1 - n u) times the sum of their magnitudes, u the unit roundoff.
The result bounds, component by component, the error of *any* evaluation of the same formula in that dtype, in
whatever order, so it raises no false alarm. On the small cases that the properties draw, it is a few dozen roundoffs
wide. Where a step is small beside its state, it is little more than the rounding of their sum. That rounding may use
all of it, so a margin just below 1 is no reason for concern there; a right layer's cannot exceed 1.

For bfloat16 the analysis assumes two things. Sums accumulate in float32, as in every matrix unit; otherwise a softmax
or a mean of squares over hundreds of numbers would be useless. And rotary angles are computed in float32 at least,
because bfloat16 cannot represent position 257.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cemverify.cem.activations import Activation, activation
from cemverify.cem.layers import AttentionConfig
from cemverify.cem.positions import alibi_slopes
from cemverify.conformance.oracle.remembering import remembered
from cemverify.conformance.questions.cases import Case

Array = NDArray[np.float64]  # NumPy operations on small arrays take a third of the time of torch's


def unit_roundoff(dtype: torch.dtype) -> float:
    """u, half the spacing of numbers just above 1."""
    return torch.finfo(dtype).eps / 2


@remembered
def output_budget(case: Case, dtype: torch.dtype) -> Tensor:
    """Bound on |implementation - golden|, both float64 values of the same rounded case: (B, J, D).

    Infinite or NaN where the evaluation is too ill-conditioned for any bound.
    """
    # the golden answer is itself computed in float64
    u, arrays = unit_roundoff(dtype), _Arrays.of(case)
    share = 1 + unit_roundoff(torch.float64) / u
    x, h = _exactly(arrays.x, u), _exactly(arrays.h, u)
    with np.errstate(all="ignore"):  # infinite and undefined bounds are valid results
        if case.layer == "block":
            attention, arrays = (_Arrays.of(case.part(part)) for part in ("attention", "mlp"))
            x = _descend(attention, x, _norm_into(attention, h))
            h = _norm_into(arrays, x)
        return torch.from_numpy(share * _descend(arrays, x, h).error)


@remembered
def energy_budget(case: Case, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Bound on the roundoff in the energies at x: (B, J)."""
    share = 1 + unit_roundoff(torch.float64) / unit_roundoff(dtype)
    with np.errstate(all="ignore"):
        exact = _exactly(x.double().numpy(), unit_roundoff(dtype))
        energy = _interaction_energy if case.layer == "attention" else _elementwise_energy
        return torch.from_numpy(share * energy(_Arrays.of(case), exact).error)


@dataclass(frozen=True)
class Bounded:
    """Numbers with bounds on their errors."""

    value: Array  # float64
    error: Array  # at least 0, same shape
    u: float  # the unit roundoff of the arithmetic that is bounded

    def of(self, value: Array, error: Array | None = None) -> Bounded:
        """Other numbers in the same arithmetic; exact if no error is given."""
        return Bounded(value, np.zeros_like(value) if error is None else error, self.u)

    def gamma(self, n: float) -> float:
        """gamma_n, infinite once n u reaches 1."""
        return n * self.u / (1 - n * self.u) if n * self.u < 1 else math.inf

    def summed(self, n: int) -> float:
        """A sum of n products: accumulated in float32 at least, as matrix units do, then rounded to the dtype."""
        u = min(self.u, unit_roundoff(torch.float32))
        return n * u / (1 - n * u) + self.gamma(2) if n * u < 1 else math.inf

    def added(self, n: int) -> float:
        """A sum of n numbers, accumulated in the dtype or as `summed` does, whichever is more accurate."""
        return min(self.gamma(n), self.summed(n))

    def rounded(self, roundings: float = 1) -> Bounded:
        """These numbers with the error of that many more roundings."""
        return self.of(self.value, self.error + self.gamma(roundings) * self.most)

    @property
    def most(self) -> Array:
        """The largest magnitude that each number may have."""
        magnitude: Array = np.abs(self.value) + self.error
        return magnitude

    def __add__(self, other: Bounded) -> Bounded:
        return self.of(self.value + other.value, self.error + other.error).rounded()

    def __mul__(self, other: Bounded) -> Bounded:
        error = np.abs(self.value) * other.error + self.error * other.most
        return self.of(self.value * other.value, error).rounded()

    def __getitem__(self, index: Any) -> Bounded:
        """A view, for adding an axis of length one."""
        return self.of(self.value[index], self.error[index])

    @property
    def mT(self) -> Bounded:
        """Transposed matrices, as a view."""
        return self.of(self.value.swapaxes(-1, -2), self.error.swapaxes(-1, -2))

    def scaled(self, factor: float | Array) -> Bounded:
        """Multiplied by an exact factor that the implementation may have to compute (a quotient, a square root)."""
        return self.of(self.value * factor, self.error * np.abs(factor)).rounded(3)

    def __matmul__(self, other: Bounded) -> Bounded:
        """A matrix product: each entry is a sum of as many products as the inner axis is long."""
        error = self.summed(self.value.shape[-1]) * (self.most @ other.most)
        # the second term of |a||db| + |da|(|b| + |db|) is skipped where there is no error to carry
        if other.error.any():
            error = error + np.abs(self.value) @ other.error
        if self.error.any():
            error = error + self.error @ other.most
        return self.of(self.value @ other.value, error)

    def sum(self, axis: int) -> Bounded:
        """The sum over one axis, with its error."""
        n = self.value.shape[axis]
        return self.of(self.value.sum(axis), self.error.sum(axis) + self.added(n) * self.most.sum(axis))

    def plus_terms(self, terms: Bounded, axis: int) -> Bounded:
        """self + sum of the terms along `axis`, added in any order, every addition rounded to the dtype.

        So the terms may be summed first, or be added to self one after the other, as a fused residual kernel does.
        Of n additions the last rounds the result. The others round partial sums of the terms, with or without self.
        Each lies between the sum of the negative terms and that of the positive ones.
        """
        n = terms.value.shape[axis]
        value = self.value + terms.value.sum(axis)
        error = self.error + terms.error.sum(axis)
        rise, fall = np.maximum(terms.value, 0).sum(axis), np.minimum(terms.value, 0).sum(axis)
        # the largest magnitude in [fall, rise], and in the same range shifted by self
        reach = np.maximum(np.maximum(rise, -fall), np.maximum(self.value + rise, -(self.value + fall))) + error
        return self.of(value, error + self.gamma(n - 1) * reach).rounded()


def _exactly(value: Array, u: float) -> Bounded:
    return Bounded(value, np.zeros_like(value), u)


@dataclass(frozen=True)
class _Arrays:
    """A case whose arrays are NumPy's, in float64."""

    case: Case  # for its options
    # x, h: (B, J, D)
    x: Array
    h: Array
    w: Mapping[str, Array]  # the weights by name

    @classmethod
    def of(cls, case: Case) -> _Arrays:
        x, h = case.x.double().numpy(), case.h.double().numpy()
        return cls(case, x, h, {name: w.double().numpy() for name, w in case.weights.items()})


# --- a layer in bounded numbers -----------------------------------------------------------------


def _descend(arrays: _Arrays, x: Bounded, h: Bounded) -> Bounded:
    config, is_attention = arrays.case.layer_config, arrays.case.layer == "attention"
    memory = _keys(arrays, h) if is_attention else _gates(arrays, h)  # the same in every step
    for _ in range(config.steps):
        n = _norm_into(arrays, x)
        # one direction per head or hidden unit: (B, K or M, J, D)
        directions = _attended(arrays, n, h, memory) if is_attention else _gated(arrays, n, memory)
        if config.norm == "folded":
            directions = directions * n.of(arrays.w["gain"])
        x = x.plus_terms(_precondition(arrays, directions).scaled(config.step_size), 1)
    return x


def _attended(arrays: _Arrays, n: Bounded, h: Bounded, keys: Bounded) -> Bounded:
    """-grad of each head's energy: (B, K, J, D)."""
    config, w = arrays.case.attention, arrays.w
    weights = _softmax(_scores(arrays, n, h, keys))
    attended = _average(weights, keys)
    first = h.value.shape[1] - n.value.shape[1]  # the queries are the last of the remembered tokens
    out = _rotated(config, attended, first, inverse=True) @ n.of(w["W_Q"])
    if "diagonal" in w:
        context = _average(weights, h[:, None])  # (B, K, J, D)
        out = out + context * n.of(_of_each_head(w["diagonal"], config.heads))
    return out


def _of_each_head(diagonal: Array, heads: int) -> Array:
    """d (D,) or (K, D) as (K, 1, D)."""
    return np.broadcast_to(diagonal, (heads, diagonal.shape[-1]))[:, None]


def _keys(arrays: _Arrays, h: Bounded) -> Bounded:
    """R(j) W_K h_j: (B, K, S, R)."""
    return _rotated(arrays.case.attention, h[:, None] @ h.of(arrays.w["W_K"]).mT, 0)


def _scores(arrays: _Arrays, n: Bounded, h: Bounded, keys: Bounded) -> Bounded:
    """The scores, (B, K, J, S), -inf where masked."""
    config, w = arrays.case.attention, arrays.w
    J, S = n.value.shape[1], h.value.shape[1]
    queries = _rotated(config, n[:, None] @ n.of(w["W_Q"]).mT, S - J)
    scores = queries @ keys.mT
    if "diagonal" in w:
        scaled = n[:, None] * n.of(_of_each_head(w["diagonal"], config.heads))  # (B, K, J, D)
        scores = scores + scaled @ h[:, None].mT
    scores = scores.scaled(1 / config.tau)
    rows, columns = np.arange(S - J, S)[:, None], np.arange(S)
    if config.position == "alibi":
        slopes = np.array(alibi_slopes(config.heads))[:, None, None]
        scores = scores + n.of(-slopes * np.abs(rows - columns)).rounded(4)
    elif config.position == "self-cross":
        own, rest = (w[name][:, None, None] for name in ("to_self", "to_others"))
        scores = scores + n.of(np.where(rows == columns, own, rest))
    if config.causal:
        future = columns > rows
        scores = n.of(np.where(future, -math.inf, scores.value), np.where(future, 0.0, scores.error))
    return scores


def _rotated(config: AttentionConfig, x: Bounded, start: int, *, inverse: bool = False) -> Bounded:
    """R(i) x_i in bounded numbers, i from `start` on. Angles are off by a few u of their size, at most float32's."""
    if config.position != "rotary":
        return x
    length, width = x.value.shape[-2:]
    plane = np.arange(0.0, width, 2)
    angle = np.arange(float(start), float(start + length))[:, None] * 10000.0 ** (-plane / width)
    if inverse:
        angle = -angle
    off = 8 * min(x.u, unit_roundoff(torch.float32)) * np.abs(angle)
    cos = x.of(np.cos(angle), off).rounded()
    sin = x.of(np.sin(angle), off).rounded()
    half = (width + 1) // 2
    a, b = x[..., :half], x[..., half:]
    minus = x.of(-b.value, b.error)
    first, second = a * cos + minus * sin, b * cos + a * sin
    return x.of(np.concatenate((first.value, second.value), -1), np.concatenate((first.error, second.error), -1))


@dataclass(frozen=True)
class _Weights:
    """Attention weights and bounds on their errors."""

    value: Array  # a, (B, K, J, S), summing to one over S
    relative: Array  # bound on the relative error that errors of the scores cause; the weights still sum to one
    # bound on a relative error that a row shares, when a is computed as exp(s - logsumexp(s)) and the shift is
    # rounded, (B, K, J, 1)
    common: Array


def _softmax(scores: Bounded) -> _Weights:
    """log a_j moves by at most delta_j + log sum_l a_l exp(delta_l), delta the error of the scores."""
    top = scores.value.max(-1, keepdims=True)
    weights = np.exp(scores.value - top)
    weights /= weights.sum(-1, keepdims=True)
    distance = np.where(weights > 0, top - scores.value, 0.0)  # s - max is rounded too
    delta = np.expm1(scores.error + scores.u * distance)
    average = (weights * delta).sum(-1, keepdims=True)
    relative = np.where(average < 1, (1 + delta) / (1 - average) - 1, math.inf)
    return _Weights(weights, np.where(weights > 0, relative, 0.0), 2 * scores.u * np.abs(top))


def _average(weights: _Weights, values: Bounded) -> Bounded:
    """sum_s a_s v_s. Errors of the scores are multiplied by |v - mean| only, since the weights still sum to one."""
    mean = weights.value @ values.value  # (B, K, J, C)
    spread = np.abs(values.value[:, :, None] - mean[:, :, :, None])  # (B, K, J, S, C)
    from_scores = ((weights.value * weights.relative)[..., None, :] @ spread)[..., 0, :]
    own = _own_rounding(weights.value, values)
    error = from_scores + own + (values.gamma(10) + weights.common) * (weights.value @ values.most)
    return values.of(mean, error + weights.value @ values.error if values.error.any() else error)


def _own_rounding(weights: Array, values: Bounded) -> Array:
    """The rounding error of adding up S weighted values, and S weights: (B, K, J, C).

    An addition loses at most the smaller of its terms. So weights below u / S^2, which together are less than u / S,
    lose at most themselves, and only the additions of the others count.
    """
    S = weights.shape[-1]
    size = weights @ values.most
    lost: Array = values.summed(2 * S) * size
    small = np.where(weights < min(values.u, unit_roundoff(torch.float32)) / S**2, weights, 0.0)
    if not small.any():
        return lost
    read = (weights != small).sum(-1, keepdims=True)  # (B, K, J, 1)
    of_those: Array = np.vectorize(values.summed, otypes=[np.float64])(2 * read + 2) * size
    return np.minimum(lost, of_those + 2 * small @ values.most)


def _gates(arrays: _Arrays, h: Bounded) -> Bounded:
    """W h: (B, J, M)."""
    return h @ h.of(arrays.w["W"].T)


def _gated(arrays: _Arrays, n: Bounded, gates: Bounded) -> Bounded:
    """V_m (W h)_m sigma((V n)_m) of each hidden unit, or their sum where P mixes features: (B, M or 1, J, D)."""
    w, config = arrays.w, arrays.case.mlp
    units = gates * _sigma(activation(config.activation), n @ n.of(w["V"].T))
    units = units.mT[..., None] * n.of(w["V"][:, None])  # (B, M, J, 1) times (M, 1, D)
    if not config.preconditioner.kind.startswith("low-rank"):
        return units
    return n.of(np.zeros_like(n.value)).plus_terms(units, 1)[:, None]


def _sigma(sigma: Activation, z: Bounded) -> Bounded:
    """sigma(z): its slope carries the error of z; its own evaluation adds a few u of z sigma' and sigma.

    Eight of them. GELU needs the most: where 1 + erf(z / sqrt 2) cancels, the polynomial that oneDNN takes for erf in
    float32 leaves 11 u in that sum, which makes 5.3 u |z|; 9 u |z| are allowed (measured, torch 2.13).
    """
    value = sigma.sigma(torch.from_numpy(z.value)).numpy()
    slope = sigma.slope_bound
    steepness = 2 * z.most if math.isinf(slope) else slope
    own = z.gamma(8) * (np.abs(value) + steepness * np.abs(z.value))
    return z.of(value, steepness * z.error + own)


def _precondition(arrays: _Arrays, heads: Bounded) -> Bounded:
    """P g per head or hidden unit, of the shape of g: (B, K or M, J, D)."""
    config, w = arrays.case.layer_config, arrays.w
    if config.preconditioner.kind == "identity":
        return heads
    # one matrix per head, or one for all: the leading axis is K or 1
    d, *factors = (
        w[name] if config.preconditioner.per_head else w[name][None] for name in ("P_d", "P_U", "P_V") if name in w
    )
    value = np.logaddexp(d, 0.0)
    # a rounded d moves softplus by u |d| times its slope, which for negative d is as small as softplus itself
    slope = np.exp(d - value)
    S = heads.of(value, heads.gamma(6) * (value + np.abs(d) * slope))[:, None]  # (K, 1, D)
    if config.preconditioner.kind == "diagonal":
        return heads * S
    U, V = (heads.of(factor) for factor in factors)
    if config.preconditioner.kind == "low-rank-printed":
        return heads * S + _cross(heads, U, V)
    root = np.sqrt(S.value)
    S_root = S.of(root, S.error / root).rounded(2)
    norms = 2 * np.linalg.norm(U.value, axis=(-2, -1)) * np.linalg.norm(V.value, axis=(-2, -1))
    c = np.minimum(1.0, 0.99 / norms)[:, None, None]
    terms = U.value[0].size
    inner = heads * S_root
    shrunk = _cross(inner, U, V) * heads.of(c, heads.gamma(2 * terms + 8) * c)
    return (inner + shrunk) * S_root


def _cross(g: Bounded, U: Bounded, V: Bounded) -> Bounded:
    """(U V^T + V U^T) g."""
    return (g @ V) @ U.mT + (g @ U) @ V.mT


def _norm_into(arrays: _Arrays, x: Bounded) -> Bounded:
    """G x / sqrt(|x|^2 / D + eps)."""
    config = arrays.case.layer_config
    if config.norm == "none":
        return x
    D = config.dim
    mean_square = (x.value**2).mean(-1, keepdims=True) + config.norm_eps
    # relative error of the mean square: 2 |x||dx| + |dx|^2, and the roundings of a sum of squares
    moved = ((2 * np.abs(x.value) + x.error) * x.error).mean(-1, keepdims=True) / mean_square
    root = 1 / np.sqrt(mean_square)
    # |1/sqrt(1 + m) - 1| <= 1/sqrt(1 - m) - 1 for |m| < 1
    relative = np.where(moved < 1, 1 / np.sqrt(np.maximum(1 - moved, 0)) - 1, math.inf) + x.summed(D) + x.gamma(4)
    return (x * x.of(root, relative * root)) * x.of(arrays.w["gain"])


# --- energies in bounded numbers --------------------------------------------------------------------


def _interaction_energy(arrays: _Arrays, x: Bounded) -> Bounded:
    h = x.of(arrays.h)
    scores = _scores(arrays, x, h, _keys(arrays, h))
    S = scores.value.shape[-1]
    value = np.logaddexp.reduce(scores.value, -1)  # (B, K, J)
    weights = _softmax(scores).value
    delta = np.expm1(scores.error + scores.u * np.abs(np.where(weights == 0, 0.0, scores.value)))
    # log sum exp is 1-Lipschitz in the weighted sense, and rounds its top score and its logarithm
    error = np.log1p((weights * delta).sum(-1)) + (x.added(S) + x.gamma(10)) * (1 + np.abs(value))
    return x.of(value, error).sum(1).scaled(-arrays.case.attention.tau)


def _elementwise_energy(arrays: _Arrays, x: Bounded) -> Bounded:
    w, config = arrays.w, arrays.case.mlp
    sigma = activation(config.activation)
    gates = _gates(arrays, x.of(arrays.h))
    z = x @ x.of(w["V"].T)
    at = torch.from_numpy(z.value)
    steep = 2 * z.most if config.activation == "relu2" else 2
    reach = np.abs(sigma.sigma(at).numpy()) + steep * z.error
    # textbook primitives cancel terms of size (1 + |z|)^2, so right code may have that much roundoff
    cancelled = (1 + np.abs(z.value)) ** (3 if config.activation == "relu2" else 2)
    phi = z.of(sigma.primitive(at).numpy(), reach * z.error + x.gamma(16) * cancelled)
    return (gates * phi).sum(-1).scaled(-1.0)


def underflow(case: Case) -> float:
    """A bound on the error from flushing subnormal numbers to zero, including the factors they are multiplied by."""
    sizes = [1.0 + float(a.abs().sum()) for a in (*case.weights.values(), case.h)]
    return torch.finfo(torch.float64).tiny * math.prod(sizes)

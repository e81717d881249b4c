"""Error budgets: how far a correct implementation may deviate, derived from dtype, size and magnitudes.

A *running error analysis*: the layer is evaluated once in float64 on numbers that carry a bound on their
error, and every rule below is a standard forward bound (Higham, Accuracy and Stability, ch. 3): a sum of n
products is off by at most gamma_n = n u / (1 - n u) times the sum of their magnitudes, u the unit roundoff.
The result bounds, component by component, the error of *any* evaluation of the same formula in that dtype, in
whatever order, so it raises no false alarm. On the small cases that the properties draw it is a few dozen roundoffs
wide. Where a step is small beside its state, it is little more than the rounding of their sum. That rounding may need
all of it, so a margin just below 1 is nothing to worry about there; it cannot pass 1.

For bfloat16 the analysis assumes two things. Sums accumulate in float32, as in every matrix unit: a softmax or a mean
of squares over hundreds of numbers would be lost otherwise. And rotary angles are computed in float32 at least,
because position 257 is none of bfloat16's numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cemverify.cem.activations import Activation, activation
from cemverify.cem.layers import AttentionConfig
from cemverify.cem.positions import Alibi, alibi_slopes
from cemverify.conformance.questions.cases import Case


def unit_roundoff(dtype: torch.dtype) -> float:
    """u, half the spacing of numbers just above 1."""
    return torch.finfo(dtype).eps / 2


def output_budget(case: Case, dtype: torch.dtype) -> Tensor:
    """Bound on |implementation - golden|, both float64 values of the same rounded case: (B, J, D).

    Infinite or NaN where the evaluation is too ill-conditioned for any bound.
    """
    # the golden is itself computed in float64
    share = 1 + unit_roundoff(torch.float64) / unit_roundoff(dtype)
    return share * _output(case.to(torch.float64), unit_roundoff(dtype)).error


def energy_budget(case: Case, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Bound on the error of the energies at x, which are off by at most their roundoff: (B, J)."""
    share = 1 + unit_roundoff(torch.float64) / unit_roundoff(dtype)
    case = case.to(torch.float64)
    exact = Bounded(x, torch.zeros_like(x), unit_roundoff(dtype))
    bounded = _interaction_energy(case, exact) if case.layer == "attention" else _elementwise_energy(case, exact)
    return share * bounded.error


@dataclass(frozen=True)
class Bounded:
    """Numbers with bounds on their errors.

    Attributes:
        value: float64. error: at least 0, same shape. u: the unit roundoff of the arithmetic that is bounded.
    """

    value: Tensor
    error: Tensor
    u: float

    def of(self, value: Tensor, error: Tensor | None = None) -> Bounded:
        """Other numbers in the same arithmetic; exact if no error is given."""
        return Bounded(value, torch.zeros_like(value) if error is None else error, self.u)

    def gamma(self, n: float) -> float:
        """gamma_n, infinite once n u reaches 1."""
        return n * self.u / (1 - n * self.u) if n * self.u < 1 else math.inf

    def summed(self, n: int) -> float:
        """A sum of n products: accumulated in float32 at least, as matrix units do, then rounded to the dtype."""
        u = min(self.u, unit_roundoff(torch.float32))
        return n * u / (1 - n * u) + self.gamma(2) if n * u < 1 else math.inf

    def rounded(self, roundings: float = 1) -> Bounded:
        """The same numbers after that many more roundings."""
        return replace(self, error=self.error + self.gamma(roundings) * (self.value.abs() + self.error))

    def __add__(self, other: Bounded) -> Bounded:
        return self.of(self.value + other.value, self.error + other.error).rounded()

    def __mul__(self, other: Bounded) -> Bounded:
        a, b = self, other
        error = a.value.abs() * b.error + a.error * b.value.abs() + a.error * b.error
        return self.of(a.value * b.value, error).rounded()

    def scaled(self, factor: float | Tensor) -> Bounded:
        """Multiplied by an exact factor that the implementation may have to compute (a quotient, a square root)."""
        factor = torch.as_tensor(factor, dtype=torch.float64)
        return self.of(self.value * factor, self.error * factor.abs()).rounded(3)

    def einsum(self, equation: str, other: Bounded, terms: int) -> Bounded:
        """A contraction of sums of `terms` products."""
        a, b = self, other
        b_most = b.value.abs() + b.error
        # |a||db| + |da|(|b| + |db|), left out where there is no error to carry
        carried = torch.zeros((), dtype=torch.float64)
        if _any(b.error):
            carried = carried + torch.einsum(equation, a.value.abs(), b.error)
        if _any(a.error):
            carried = carried + torch.einsum(equation, a.error, b_most)
        magnitude = torch.einsum(equation, a.value.abs() + a.error, b_most)
        value = torch.einsum(equation, a.value, b.value)
        return self.of(value, carried + self.summed(terms) * magnitude)

    def sum(self, dim: int) -> Bounded:
        """A sum over one axis."""
        n = self.value.shape[dim]
        magnitude = (self.value.abs() + self.error).sum(dim)
        return self.of(self.value.sum(dim), self.error.sum(dim) + self.gamma(n) * magnitude)

    def plus_terms(self, terms: Bounded, dim: int) -> Bounded:
        """self + sum of the terms along `dim`, added up in whatever order, every addition rounded to the dtype.

        So the terms may be summed first, or be added to self one after the other, as a fused residual kernel does.
        Of n additions the last rounds the result. Every other rounds a sum of some of the terms, with or without
        self, which lies between that of the negative terms and that of the positive ones.
        """
        n = terms.value.shape[dim]
        value = self.value + terms.value.sum(dim)
        error = self.error + terms.error.sum(dim)
        rise, fall = terms.value.clamp(min=0).sum(dim), terms.value.clamp(max=0).sum(dim)
        sums = torch.stack([rise, fall, self.value + rise, self.value + fall])
        reach = sums.abs().amax(0) + error
        return self.of(value, error + self.gamma(n - 1) * reach).rounded()


def _any(error: Tensor) -> bool:
    return bool((error != 0).any())


# --- a layer in bounded numbers -----------------------------------------------------------------


def _output(case: Case, u: float) -> Bounded:
    zero = torch.zeros_like(case.x)
    if case.layer == "block":
        attention, mlp = case.part("attention"), case.part("mlp")
        start = Bounded(case.x, zero, u)
        middle = _descend(attention, start, _norm_into(attention, Bounded(case.h, torch.zeros_like(case.h), u)))
        return _descend(mlp, middle, _norm_into(mlp, middle))
    return _descend(case, Bounded(case.x, zero, u), Bounded(case.h, torch.zeros_like(case.h), u))


def _descend(case: Case, x: Bounded, h: Bounded) -> Bounded:
    config = case.layer_config
    for _ in range(config.steps):
        n = _norm_into(case, x)
        # one direction per head or hidden unit: (B, K or M, J, D)
        directions = _attended(case, n, h) if case.layer == "attention" else _gated(case, n, h)
        if config.norm == "folded":
            directions = directions * n.of(case.weights["gain"])
        x = x.plus_terms(_precondition(case, directions).scaled(config.step_size), 1)
    return x


def _attended(case: Case, n: Bounded, h: Bounded) -> Bounded:
    """-grad of each head's energy: (B, K, J, D)."""
    config, w = case.attention, case.weights
    W_Q = n.of(w["W_Q"])
    keys, scores = _scores(case, n, h)
    weights = _softmax(scores)
    attended = _average("bkjs,bksr->bkjr", weights, keys)
    first = h.value.shape[1] - n.value.shape[1]  # the queries are the last of those remembered
    out = _rotated(config, attended, first, inverse=True).einsum("bkjr,krd->bkjd", W_Q, config.R)
    if "diagonal" in w:
        states = replace(h, value=h.value[:, None], error=h.error[:, None])  # (B, 1, S, D)
        context = _average("bkjs,bnsd->bkjd", weights, states)
        out = out + context * n.of(w["diagonal"].expand(config.heads, -1)[:, None])
    return out


def _scores(case: Case, n: Bounded, h: Bounded) -> tuple[Bounded, Bounded]:
    """Keys (B, K, S, R) and scores (B, K, J, S), -inf where masked."""
    config, w = case.attention, case.weights
    D = config.dim
    J, S = n.value.shape[1], h.value.shape[1]
    keys = _rotated(config, h.einsum("bsd,krd->bksr", n.of(w["W_K"]), D), 0)
    queries = _rotated(config, n.einsum("bjd,krd->bkjr", n.of(w["W_Q"]), D), S - J)
    scores = queries.einsum("bkjr,bksr->bkjs", keys, config.R)
    if "diagonal" in w:
        scaled = replace(n, value=n.value[:, None], error=n.error[:, None]) * n.of(
            w["diagonal"].expand(config.heads, -1)[:, None]
        )  # (B, K, J, D)
        scores = scores + scaled.einsum("bkjd,bsd->bkjs", h, D)
    scores = scores.scaled(1 / config.tau)
    rows, columns = torch.arange(S - J, S), torch.arange(S)
    if config.position == "alibi":
        slopes = torch.tensor(alibi_slopes(config.heads), dtype=torch.float64)
        scores = scores + n.of(Alibi(slopes)(rows, columns)).rounded(4)
    elif config.position == "self-cross":
        own = (rows[:, None] == columns)[None]
        bias = torch.where(own, w["to_self"][:, None, None], w["to_others"][:, None, None])
        scores = scores + n.of(bias)
    if config.causal:
        future = columns > rows[:, None]
        scores = replace(
            scores, value=scores.value.masked_fill(future, -math.inf), error=scores.error.masked_fill(future, 0.0)
        )
    return keys, scores


def _rotated(config: AttentionConfig, x: Bounded, start: int, *, inverse: bool = False) -> Bounded:
    """R(i) x_i in bounded numbers, i from `start` on. Angles are off by a few u of their size, float32's at most."""
    if config.position != "rotary":
        return x
    length, width = x.value.shape[-2:]
    plane = torch.arange(0, width, 2, dtype=torch.float64)
    angle = torch.arange(start, start + length, dtype=torch.float64)[:, None] * 10000.0 ** (-plane / width)
    if inverse:
        angle = -angle
    off = 8 * min(x.u, unit_roundoff(torch.float32)) * angle.abs()
    cos = x.of(angle.cos(), off).rounded()
    sin = x.of(angle.sin(), off).rounded()
    a, b = _halves(x)
    minus = x.of(-b.value, b.error)
    first, second = a * cos + minus * sin, b * cos + a * sin
    return x.of(torch.cat((first.value, second.value), -1), torch.cat((first.error, second.error), -1))


def _halves(x: Bounded) -> tuple[Bounded, Bounded]:
    values, errors = x.value.chunk(2, -1), x.error.chunk(2, -1)
    return x.of(values[0], errors[0]), x.of(values[1], errors[1])


@dataclass(frozen=True)
class _Weights:
    """Attention weights and bounds on their errors.

    Attributes:
        value: a, (B, K, J, S), summing to one over S.
        relative: bound on the relative error that errors of the scores cause; the weights still sum to one.
        common: bound on a relative error that a row shares, when a is computed as exp(s - logsumexp(s)) and
            the shift is rounded, (B, K, J, 1).
    """

    value: Tensor
    relative: Tensor
    common: Tensor


def _softmax(scores: Bounded) -> _Weights:
    """log a_j moves by at most delta_j + log sum_l a_l exp(delta_l), delta the error of the scores."""
    weights = torch.softmax(scores.value, -1)
    top = scores.value.amax(-1, keepdim=True)
    distance = torch.where(weights > 0, top - scores.value, 0.0)  # s - max is rounded too
    delta = torch.expm1(scores.error + scores.u * distance)
    average = (weights * delta).sum(-1, keepdim=True)
    relative = torch.where(average < 1, (1 + delta) / (1 - average) - 1, torch.inf)
    return _Weights(weights, torch.where(weights > 0, relative, 0.0), 2 * scores.u * top.abs())


def _average(equation: str, weights: _Weights, values: Bounded) -> Bounded:
    """sum_s a_s v_s. Errors of the scores count times |v - mean| only, since the weights still sum to one."""
    mean = torch.einsum(equation, weights.value, values.value)  # (B, K, J, C)
    spread = (values.value[:, :, None] - mean[:, :, :, None]).abs()  # (B, K, J, S, C)
    from_scores = ((weights.value * weights.relative)[..., None] * spread).sum(-2)
    magnitude = torch.einsum(equation, weights.value, values.value.abs() + values.error)
    carried = torch.einsum(equation, weights.value, values.error)
    own = values.summed(2 * weights.value.shape[-1]) + values.gamma(10)
    return values.of(mean, from_scores + carried + (own + weights.common) * magnitude)


def _gated(case: Case, n: Bounded, h: Bounded) -> Bounded:
    """V_m (W h)_m sigma((V n)_m) of each hidden unit, or their sum where P mixes features: (B, M or 1, J, D)."""
    w, config = case.weights, case.mlp
    gate = h.einsum("bjd,md->bjm", n.of(w["W"]), config.dim)
    hidden = _sigma(activation(config.activation), n.einsum("bjd,md->bjm", n.of(w["V"]), config.dim))
    units = gate * hidden
    apart = n.of(units.value.mT[..., None], units.error.mT[..., None])  # (B, M, J, 1)
    units = apart * n.of(w["V"][:, None])
    if not config.preconditioner.kind.startswith("low-rank"):
        return units
    total = n.of(torch.zeros_like(n.value)).plus_terms(units, 1)
    return n.of(total.value[:, None], total.error[:, None])


def _sigma(sigma: Activation, z: Bounded) -> Bounded:
    """sigma(z): its slope carries the error of z; its own evaluation is off by a few u of z sigma' and sigma.

    Eight of them. GELU needs the most: where 1 + erf(z / sqrt 2) cancels, the polynomial that oneDNN takes for erf in
    float32 leaves 11 u in that sum, which makes 5.3 u |z| of the 9 u |z| that are granted (measured, torch 2.13).
    """
    value = sigma.sigma(z.value)
    slope = sigma.slope_bound
    steepness = 2 * (z.value.abs() + z.error) if math.isinf(slope) else torch.full_like(value, slope)
    own = z.gamma(8) * (value.abs() + steepness * z.value.abs())
    return z.of(value, steepness * z.error + own)


def _precondition(case: Case, heads: Bounded) -> Bounded:
    """P g per head or hidden unit: (B, K or M, J, D), the same."""
    config, w = case.layer_config, case.weights
    if config.preconditioner.kind == "identity":
        return heads
    lead = 1 if not config.preconditioner.per_head else w["P_d"].shape[0]
    d = w["P_d"].expand(lead, -1)  # (K or 1, D)
    value = torch.logaddexp(d, torch.zeros((), dtype=torch.float64))
    # a rounded d moves softplus by u |d| times its slope, which for negative d is as small as softplus itself
    S = heads.of(value, heads.gamma(6) * (value + d.abs() * torch.sigmoid(d)))
    if config.preconditioner.kind == "diagonal":
        return heads * _per_token(S)
    U, V = (heads.of(w[name].expand(lead, -1, -1)) for name in ("P_U", "P_V"))
    if config.preconditioner.kind == "low-rank-printed":
        return heads * _per_token(S) + _cross(heads, U, V)
    root = S.value.sqrt()
    S_root = _per_token(S.of(root, S.error / root).rounded(2))
    norms = 2 * torch.linalg.matrix_norm(U.value) * torch.linalg.matrix_norm(V.value)
    c = torch.minimum(torch.ones_like(norms), 0.99 / norms)
    terms = U.value[0].numel()
    inner = heads * S_root
    shrunk = _cross(inner, U, V) * heads.of(c[:, None, None], heads.gamma(2 * terms + 8) * c[:, None, None])
    return (inner + shrunk) * S_root


def _per_token(d: Bounded) -> Bounded:
    """(K, D) -> (K, 1, D)."""
    return d.of(d.value[:, None], d.error[:, None])


def _cross(g: Bounded, U: Bounded, V: Bounded) -> Bounded:
    """(U V^T + V U^T) g."""
    heads, _, rank = U.value.shape
    D = g.value.shape[-1]
    K = g.value.shape[1]
    U, V = (m.of(m.value.expand(max(heads, K), -1, -1)) for m in (U, V))
    first = g.einsum("bkjd,kdr->bkjr", V, D).einsum("bkjr,kdr->bkjd", U, rank)
    second = g.einsum("bkjd,kdr->bkjr", U, D).einsum("bkjr,kdr->bkjd", V, rank)
    return first + second


def _norm_into(case: Case, x: Bounded) -> Bounded:
    """G x / sqrt(|x|^2 / D + eps)."""
    config = case.layer_config
    if config.norm == "none":
        return x
    D = config.dim
    mean_square = (x.value**2).mean(-1, keepdim=True) + config.norm_eps
    # relative error of the mean square: 2 |x||dx| + |dx|^2, and the roundings of a sum of squares
    moved = ((2 * x.value.abs() + x.error) * x.error).mean(-1, keepdim=True) / mean_square
    root = mean_square.rsqrt()
    # |1/sqrt(1 + m) - 1| <= 1/sqrt(1 - m) - 1 for |m| < 1
    relative = torch.where(moved < 1, (1 - moved).clamp(min=0).rsqrt() - 1, torch.inf) + x.summed(D) + x.gamma(4)
    return (x * x.of(root, relative * root)) * x.of(case.weights["gain"])


# --- energies in bounded numbers --------------------------------------------------------------------


def _interaction_energy(case: Case, x: Bounded) -> Bounded:
    _, scores = _scores(case, x, x.of(case.h))
    S = scores.value.shape[-1]
    value = torch.logsumexp(scores.value, -1)  # (B, K, J)
    weights = torch.softmax(scores.value, -1)
    delta = torch.expm1(scores.error + scores.u * scores.value.masked_fill(weights == 0, 0.0).abs())
    # log sum exp is 1-Lipschitz in the weighted sense, and rounds its top score and its logarithm
    error = torch.log1p((weights * delta).sum(-1)) + x.gamma(S + 10) * (1 + value.abs())
    return x.of(value, error).sum(1).scaled(-case.attention.tau)


def _elementwise_energy(case: Case, x: Bounded) -> Bounded:
    w, config = case.weights, case.mlp
    sigma = activation(config.activation)
    gate = x.of(case.h).einsum("bjd,md->bjm", x.of(w["W"]), config.dim)
    z = x.einsum("bjd,md->bjm", x.of(w["V"]), config.dim)
    value = sigma.primitive(z.value)
    reach = (
        sigma.sigma(z.value).abs() + (2 * (z.value.abs() + z.error) if config.activation == "relu2" else 2) * z.error
    )
    # textbook primitives cancel terms of size (1 + |z|)^2, so that much roundoff is anybody's
    phi = z.of(
        value, reach * z.error + x.gamma(16) * (1 + z.value.abs()) ** (3 if config.activation == "relu2" else 2)
    )
    return (gate * phi).sum(-1).scaled(-1.0)

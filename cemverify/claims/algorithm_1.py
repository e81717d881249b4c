"""Claims about Algorithm 1 as printed: its sign and diagonal, RMSNorm inside, the block.

Algorithm 1, Sec. 2 and 2.3, Eq. 12 (docs/mathematics.md §7). Most examples have one token in memory: its softmax
weight is 1, so that the energy is -beta . x and the direction beta, whatever x.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import mpmath
import sympy
from hypothesis import strategies as st

from cemverify.claims.arguments import Instance, Lemma, Search, Working, properties, working
from cemverify.claims.base import Claim, draft, ours, slip
from cemverify.claims.exact import (
    DIGITS,
    ENTRY,
    GAIN,
    PAIR,
    Rational,
    Vector,
    dot,
    show,
    simplified,
    weights,
)

_DIRECTION = PAIR.filter(any)
_STEPS = st.sampled_from((Fraction(1, 1000), Fraction(1), Fraction(1000)))


def claims() -> Iterator[Claim]:
    """Every claim about Algorithm 1, each with its arguments."""
    yield from _algorithm_1()
    yield from _norm_inside()
    yield from _printed_block()


# §7: Algorithm 1, its sign and its diagonal


def _algorithm_1() -> Iterator[Claim]:
    yield Claim(
        id="7-sign",
        source=slip("Algorithm 1", "x <- x - eta sum_k P_k W_Q,k^T o_k", "formula"),
        statement="The attention update of Algorithm 1 goes down the energy.",
        formula="x <- x - eta sum_k P_k W_Q,k^T o_k with o_k = sum_j a_kj v_kj lowers eps",
        finding=(
            "It climbs. sum_k W_Q,k^T o_k is *minus* the gradient. In Eq. 3, 12 and 13 the update includes that "
            "minus, so x - eta (update) descends; the algorithm lost one of the two signs. A long step can "
            "overshoot the maximum and end lower, so a test with eta = 1 may miss it."
        ),
        advice="`x = x + eta * (P @ (W_Q.T @ attended)).sum(heads)`",
        holds_for=partial(_goes_down, sign=-1),
        arguments=(
            Instance("one dimension, everything 1, without the norm", (1, 1, 1, 1)),
            Search("W_Q, W_K, h and x integers in one dimension", st.tuples(ENTRY, ENTRY, ENTRY, ENTRY)),
        ),
    )
    yield Claim(
        id="7-mlp-line",
        source=draft("Algorithm 1"),
        statement="The MLP's update in Algorithm 1 goes down its energy.",
        formula="x <- x - eta P Delta or x <- x + eta P Delta: the line is missing in our copy",
        finding=(
            "In our copy of the text, the line that updates x in the MLP's subroutine is missing, so its sign cannot "
            "be read. By Eq. 13 and the recursion x - eta Delta x, it should descend."
        ),
        advice="take the sign from Eq. 13: `x = x + eta * P @ (V.T @ (W_h * sigma(V @ x)))`",
    )
    yield Claim(
        id="7-score-only",
        source=draft("Sec. 2.3, Algorithm 1", "v_j = W_K h_j", "formula"),
        statement=(
            "With the diagonal of A_k in the scores only, the update is still a gradient and never points uphill."
        ),
        formula="sum_k W_Q,k^T sum_j softmax_j(x . (W_Q^T W_K + diag d)_k h_j / tau) W_K,k h_j is a gradient field",
        finding=(
            "It is not the gradient of anything. Its Jacobian is (1/tau) sum_k A_k C_k (A_k + D_k)^T with A_k = "
            "W_Q,k^T W_K,k, D_k = diag(d_k) and C_k the covariance of the tokens under the attention weights. A C "
            "A^T is symmetric, but A C D need not be. Where the diagonal outweighs the rest, the update even "
            "climbs."
        ),
        advice="`update = W_Q.T @ (a @ k) + d * (a @ h)`: the diagonal belongs in the values, too",
        holds_for=partial(_is_a_downhill_gradient, in_values=False),
        arguments=(
            Instance("J = D = 2, K = R = 1, tau = 1, at x = 0", ((1, 0), (1, 0), (0, 1), (1, 1), (0, 0))),
            Instance("one token twice: the update climbs", ((1, 0), (1, 0), (-2, 0), (1, 0), (1, 0))),
            Search("W_Q, W_K, d and two tokens, integers, at x = 0", st.tuples(PAIR, PAIR, PAIR, PAIR, PAIR)),
        ),
    )


def _goes_down(case: tuple[int, int, int, int], *, sign: int) -> Working:
    W_Q, W_K, h, x = case
    beta = W_Q * W_K * h
    lines, falls = [], []
    for eta in (Fraction(1, 1000), Fraction(1)):
        y = x + sign * eta * beta
        falls.append(-beta * y <= -beta * x)
        lines.append(f"eta = {eta}: x {x} -> {y}, energy {-beta * x} -> {-beta * y}; not higher: {falls[-1]}")
    return working(
        f"W_Q = {W_Q}, W_K = {W_K}, h = {h}: one token, beta = {beta}, eps = -beta x; W_Q^T o = {beta}",
        *lines,
        comes_out=all(falls),
    )


def _is_a_downhill_gradient(case: Sequence[Vector], *, in_values: bool) -> Working:
    W_Q, W_K, d, *h = case
    low_rank = [[q * dot(W_K, h_j) for q in W_Q] for h_j in h]
    betas = [[k + a * b for k, a, b in zip(key, d, h_j, strict=True)] for key, h_j in zip(low_rank, h, strict=True)]
    values = betas if in_values else low_rank
    downhill, update = _mean(betas), _mean(values)
    # d/dx of sum_j softmax_j(beta_j . x) value_j at x = 0, where all weights are 1 / J
    outer = [
        [v[row] * (b[column] - downhill[column]) for row, column in product((0, 1), repeat=2)]
        for v, b in zip(values, betas, strict=True)
    ]
    jacobian = _mean(outer)
    symmetric, along = jacobian[1] == jacobian[2], dot(update, downhill)
    return working(
        f"W_Q = {show(W_Q)}, W_K = {show(W_K)}, d = {show(d)}, tokens {show(tuple(h))}; equal weights at x = 0",
        f"the Jacobian of the update (11, 12, 21, 22) is {show(jacobian)}, symmetric: {symmetric}",
        f"the update is {show(update)}, minus the gradient {show(downhill)}: together {along}, "
        f"not uphill: {along >= 0}",
        comes_out=symmetric and along >= 0,
    )


def _mean(vectors: Sequence[Vector]) -> list[Fraction]:
    return [Fraction(sum(entries), len(vectors)) for entries in zip(*vectors, strict=True)]


# §7: the norm inside


class _Normed(NamedTuple):
    """One token in memory: a step of size eta along P beta, with the energy evaluated at N(x) = gain x / r."""

    beta: Vector
    x: Vector
    gain: Vector
    P: Vector
    eta: Rational


def _multiple(case: _Normed) -> bool:
    """Whether P is a positive multiple of the diagonal matrix of gains."""
    p, q = case.P
    g, h = case.gain
    return p * h == q * g and p * g > 0


def _norm_inside() -> Iterator[Claim]:
    yield Claim(
        id="7-norm-monotone",
        source=ours("Algorithm 1, Eq. 12"),
        rests=(
            "finding 6",
            "cemverify.cem.norms.RMSNormFolded",
            "descent/attention/norm-scalar-any-step-size",
            "descent/attention/norm-folded-any-step-size",
        ),
        statement="With u = RMSNorm(x) inside, a descent step of any size lowers the energy at N(x).",
        formula="eps(N(x + eta P F(N(x)))) <= eps(N(x)) for all eta > 0, N(x) = G x / r",
        condition=(
            "P is a positive multiple of the diagonal matrix G of gains; for P = 1, all gains are one positive number"
        ),
        within=_multiple,
        finding=(
            "For P = G, which folds the gains into both paths, the derivative of F . N(x + eta G F) in eta is (|d|^2 "
            "r^2 - (x . d)^2 / D) / r^3, d = G F. By Cauchy-Schwarz it is at least 0, whatever the signs of the "
            "gains, and concavity does the rest. If P beta is not parallel to G beta, take x halfway between their "
            "directions: the energy of one token rises at even the smallest step. So a gain per channel breaks "
            "descent, as does any other P; without the norm any P would do (4-any-step)."
        ),
        advice="fold the gain into both paths, `x + eta * gain * F(gain * x / rms(x))`, or use one scalar gain",
        holds_for=partial(_falls_at_norm, sign=1),
        arguments=(
            Search(
                "beta, x, gains of either sign, P a multiple of them, integers",
                st.builds(
                    lambda beta, x, gain, k, eta: _Normed(beta, x, gain, tuple(k * g for g in gain), eta),
                    *(PAIR, _DIRECTION, st.tuples(ENTRY, ENTRY).filter(all), GAIN, _STEPS),
                ),
            ),
            Lemma("the derivative of F . N(x + eta G F), D = 2, in letters", _norm_follows),
            properties("descent/attention/norm-scalar-any-step-size", "descent/attention/norm-folded-any-step-size"),
            Instance("gains (1, 3), P = 1: beta = (2, 1), x = (1, 1)", _Normed((2, 1), (1, 1), (1, 3), (1, 1), 1)),
            Instance(
                "no gain, P = diag(1, 3): beta = (2, 1), x = (1, 1)", _Normed((2, 1), (1, 1), (1, 1), (1, 3), 1)
            ),
            Instance(
                "negative gains, however small",
                _Normed((1, 0), (0, 1), (Fraction(-1, 1000), Fraction(-1, 1000)), (1, 1), 1),
            ),
            Search(
                "beta, x, positive gains and a positive diagonal P, integers",
                st.builds(_Normed, PAIR, _DIRECTION, st.tuples(GAIN, GAIN), st.tuples(GAIN, GAIN), _STEPS),
                outside=True,
                examples=5000,
            ),
        ),
    )


def _signed_square(beta: Vector, gain: Vector, x: Vector) -> Fraction:
    """s |s| / r^2, s = beta . G x and r^2 = |x|^2 / D: one token's energy at N(x), -s / r, falls as this rises."""
    s = dot(beta, [g * a for g, a in zip(gain, x, strict=True)])
    return s * abs(s) * len(x) / dot(x, x)


def _energy_at_norm(beta: Vector, gain: Vector, x: Vector) -> str:
    """-s / r in full."""
    s, r2 = dot(beta, [g * a for g, a in zip(gain, x, strict=True)]), dot(x, x) / len(x)
    return show(-mpmath.mpmathify(s) / mpmath.sqrt(mpmath.mpmathify(r2)), 10)


def _falls_at_norm(case: _Normed, *, sign: int) -> Working:
    beta, x, gain, P, eta = case
    y = tuple(Fraction(a) + sign * eta * p * b for a, p, b in zip(x, P, beta, strict=True))
    if not any(y):  # N is not defined at 0: the step has no energy to compare
        return working(f"x = {show(x)} -> 0, where N is not defined", comes_out=True)
    falls = _signed_square(beta, gain, y) >= _signed_square(beta, gain, x)
    return working(
        f"beta = {show(beta)}, gain {show(gain)}, P = diag{show(P)}, eta = {eta}: x {show(x)} -> {show(y)}",
        f"eps(N(x)) = -beta . G x / r: {_energy_at_norm(beta, gain, x)} -> {_energy_at_norm(beta, gain, y)}; "
        f"not higher: {falls}",
        comes_out=falls,
    )


def _norm_follows() -> Working:
    x, F = sympy.symbols("x1:3", real=True), sympy.symbols("F1:3", real=True)
    G, (eta, e) = sympy.symbols("g1:3", real=True), sympy.symbols("eta e", positive=True)
    d = [g * f for g, f in zip(G, F, strict=True)]
    y = [a + eta * b for a, b in zip(x, d, strict=True)]
    r = sympy.sqrt((y[0] ** 2 + y[1] ** 2) / 2 + e)
    slope = sympy.diff(sum(f * g * b for f, g, b in zip(F, G, y, strict=True)) / r, eta)
    claimed = ((y[0] * d[1] - y[1] * d[0]) ** 2 / 2 + e * (d[0] ** 2 + d[1] ** 2)) / r**3
    difference, same = simplified(slope - claimed)
    return working(
        "d = G F, x' = x + eta d, r'^2 = |x'|^2 / 2 + e; N(x') = G x' / r'",
        "claimed: the derivative of F . N(x') is ((x'_1 d_2 - x'_2 d_1)^2 / 2 + e |d|^2) / r'^3",
        f"derivative minus claimed, simplified: {difference}; a sum of squares, whatever the gains",
        comes_out=same,
    )


# §7: the printed block


class _Block(NamedTuple):
    """Two tokens in the plane, one head of one feature, a gain per channel; and how the recursion starts."""

    W_Q: Vector
    W_K: Vector
    h: tuple[Vector, Vector]
    gain: Vector
    starts_at_h: bool
    adds: bool


def _blocks(*, as_standard: bool) -> st.SearchStrategy[_Block]:
    flags = st.just((True, True)) if as_standard else st.sampled_from(((False, True), (True, False), (False, False)))
    return st.builds(
        lambda W_Q, W_K, h, gain, how: _Block(W_Q, W_K, h, gain, *how),
        *(PAIR, PAIR, st.tuples(_DIRECTION, _DIRECTION), st.tuples(GAIN, GAIN), flags),
    )


def _printed_block() -> Iterator[Claim]:
    yield Claim(
        id="7-block",
        source=draft(
            "Sec. 2.4, Algorithm 1",
            "Standard Transformers with weight sharing, as detailed in Equations (5) and (11), appear as the special "
            "case",
        ),
        statement=(
            "With weight sharing, d_k = 0, T = 1 and P = 1, the block is the standard pre-norm Transformer block."
        ),
        formula="block(h) = h + attention(N(h)) at T = 1, P = 1, d_k = 0, eta = 1, tau = sqrt(R)",
        condition=(
            "the recursion starts at h and not at N(h), reads N(h) as its memory, takes the gradient at N(x), and "
            "has the sign of Eq. 3"
        ),
        within=lambda case: case.starts_at_h and case.adds,
        finding=(
            "Algorithm 1 overwrites h with N(h) and starts there, so its output is N(h) + update. The length of h "
            "is lost (block(c h) = block(h) for c > 0), and with all weights zero the block does not return h. "
            "Started at h, and with the sign of Eq. 3, the block is the pre-norm residual block."
        ),
        advice="`x, memory = h, norm(h)`, then `x = x + eta * step(norm(x), memory)`",
        holds_for=partial(_is_the_standard_block, residual="h"),
        arguments=(
            Search("weights, gains and tokens, integers, started at h", _blocks(as_standard=True), examples=500),
            properties("tying/block/pre-norm"),
            Instance(
                "zero weights, h = (2, 2), started at N(h)",
                _Block((0, 0), (0, 0), ((2, 2), (2, 2)), (1, 1), starts_at_h=False, adds=True),
            ),
            Search("the same, started at N(h) or with a minus", _blocks(as_standard=False), outside=True),
        ),
    )


def _normalised(v: Sequence[Any], gain: Vector) -> list[Any]:
    r = mpmath.sqrt(mpmath.fdot(v, v) / len(v))
    return [g * a / r for g, a in zip(gain, v, strict=True)]


def _is_the_standard_block(case: _Block, *, residual: str) -> Working:
    with mpmath.workdps(DIGITS):
        memory = [_normalised(h_j, case.gain) for h_j in case.h]
        keys = [mpmath.fdot(case.W_K, n) for n in memory]

        def attention(u: Sequence[Any]) -> list[Any]:
            query = mpmath.fdot(case.W_Q, u)
            attended = mpmath.fdot(weights([query * key for key in keys]), keys)
            return [q * attended for q in case.W_Q]

        h = case.h[-1]
        around = h if residual == "h" else memory[-1]
        standard = [a + b for a, b in zip(around, attention(memory[-1]), strict=True)]
        x: Sequence[Any] = h if case.starts_at_h else memory[-1]
        sign = 1 if case.adds else -1
        out = [a + sign * b for a, b in zip(x, attention(_normalised(x, case.gain)), strict=True)]
        same = all(abs(a - b) < mpmath.mpf("1e-20") for a, b in zip(out, standard, strict=True))
    return working(
        f"W_Q = {show(case.W_Q)}, W_K = {show(case.W_K)}, tokens {show(case.h)}, gain {show(case.gain)}",
        f"standard block: {residual} + attention(N(h)) = {show(standard)}",
        f"started at {'h' if case.starts_at_h else 'N(h)'}, {'plus' if case.adds else 'minus'}: {show(out)}",
        f"they are the same: {same}",
        comes_out=same,
    )

"""Claims about Algorithm 1 as printed: its sign and diagonal, RMSNorm inside, the block.

Algorithm 1, Sec. 2 and 2.3, Eq. 12 (docs/mathematics.md §7). Most examples have one token in memory: its softmax
weight is 1, so that the energy is -beta . x and the direction beta, whatever x.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import mpmath
import sympy
from hypothesis import strategies as st

from cemverify.claims.base import Claim
from cemverify.claims.evidence import (
    Counterexample,
    Derivation,
    Properties,
    Search,
    Working,
    working,
)
from cemverify.claims.exact import (
    BEYOND_ROUNDOFF,
    ENTRY,
    GAIN,
    PAIR,
    Rational,
    Vector,
    dot,
    jacobian_at_zero,
    largest_entry,
    moved,
    shown,
    simplified,
    symmetric,
)


def claims() -> Iterator[Claim]:
    """The section's claims."""
    yield from _algorithm_1()
    yield from _norm_inside()
    yield from _printed_block()


# §7: Algorithm 1, its sign and its diagonal


def _algorithm_1() -> Iterator[Claim]:
    yield Claim(
        id="7-sign",
        source="Algorithm 1",
        statement="The attention update of Algorithm 1 goes down the energy.",
        formula="x <- x - eta sum_k P_k W_Q,k^T o_k with o_k = sum_j a_kj v_kj lowers eps",
        proof=(
            "sum_k W_Q,k^T o_k is *minus* the gradient, so that subtracting it climbs. Eq. 3, 12 and 13 define the "
            "update with the minus sign in it, and with them x - eta (update) descends; the algorithm lost one of "
            "the two signs. A long step can overshoot the maximum and come out lower: hence the small one in the "
            "example."
        ),
        evidence=(
            Counterexample("everything one-dimensional and one, the norm left out", _printed_sign_ascends),
            Search(
                "W_Q, W_K, h, x integers in one dimension, eta = 1",
                st.tuples(ENTRY, ENTRY, ENTRY, ENTRY),
                violates=lambda c: -c[0] * c[1] * c[2] * (c[3] - c[0] * c[1] * c[2]) > -c[0] * c[1] * c[2] * c[3],
                size=largest_entry,
                largest=1,
            ),
        ),
    )
    yield Claim(
        id="7-sign-absorbed",
        source="ours",
        statement="The sign of Algorithm 1 does not matter, as trained weights can absorb it.",
        formula="for every A there is an A' with -F(x; A) = F(x; A') for all x, F = -grad eps",
        proof=(
            "F is minus the gradient of a concave function: its Jacobian is positive semi-definite for every A'. "
            "That of -F(.; A) is negative semi-definite. Both at once would have to vanish, so that attention does "
            "not depend on the query. Changing the sign of W_K or W_Q turns the logits as well and is no help."
        ),
        evidence=(
            Counterexample("J = 2, D = 1, tokens 1 and 0, A = 1, the slope at x = 0", _sign_stays),
            Search(
                "A and two tokens, integers, against every integer A' up to 4",
                st.tuples(ENTRY, PAIR),
                violates=lambda c: all(
                    _slope_at_zero(other, c[1]) != -_slope_at_zero(c[0], c[1]) for other in range(-4, 5)
                ),
                size=largest_entry,
                largest=1,
            ),
        ),
    )
    yield Claim(
        id="7-score-only",
        source="Sec. 2.3, Algorithm 1",
        statement="With the diagonal of A_k in the scores alone and v_j = W_K h_j, the update is still a gradient.",
        formula="sum_k W_Q,k^T sum_j softmax_j(x . (W_Q^T W_K + diag d)_k h_j / tau) W_K,k h_j is a gradient field",
        proof=(
            "Its Jacobian is (1/tau) sum_k A_k C_k (A_k + D_k)^T with A_k = W_Q,k^T W_K,k, D_k = diag(d_k) and C_k "
            "the covariance of the tokens under the weights; A C A^T is symmetric, A C D need not be. The diagonal "
            "belongs in the values, too. Otherwise the update may even climb."
        ),
        evidence=(
            Counterexample("J = D = 2, K = R = 1, tau = 1, at x = 0", _score_only_is_no_gradient),
            Counterexample("one dimension: the update climbs", _score_only_ascends),
            Search(
                "W_Q, W_K, d and two tokens, integers, at x = 0",
                st.tuples(PAIR, PAIR, PAIR, PAIR, PAIR),
                violates=lambda c: not symmetric(_score_only_jacobian(c[0], c[1], c[2], (c[3], c[4]))),
                size=largest_entry,
                largest=1,
            ),
            Search(
                "W_Q, W_K, d and h, integers in one dimension: update against -gradient",
                st.tuples(ENTRY, ENTRY, ENTRY, ENTRY),
                violates=lambda c: c[0] * c[1] * c[3] * (c[0] * c[1] + c[2]) * c[3] < 0,
                size=largest_entry,
                largest=2,
            ),
        ),
    )


def _printed_sign_ascends() -> Working:
    h = W_Q = W_K = x = Fraction(1)
    beta = W_Q * W_K * h
    before = -beta * x
    (small, raised), (whole, most) = ((eta, -beta * (x - eta * beta)) for eta in (Fraction(1, 1000), Fraction(1)))
    return working(
        f"h = W_Q = W_K = x = {x}: beta = {beta}, one token, so eps = -beta x = {before}; W_Q^T o = {beta}",
        f"eta = {whole}: x {x} -> {x - whole * beta}, energy {before} -> {most}",
        f"eta = {small}: x {x} -> {x - small * beta}, energy {before} -> {raised}",
        f"energy after <= energy before: {raised} <= {before} is {raised <= before}",
        comes_out=raised <= before or most <= before,
    )


def _slope_at_zero(A: Rational, h: Vector) -> Fraction:
    """F'(0) of F(x) = sum_j softmax_j(A h_j x) A h_j in one dimension: A^2 times the variance of the tokens."""
    betas = [A * h_j for h_j in h]
    return jacobian_at_zero((1,), betas, [(b,) for b in betas])[0][0]


def _sign_stays() -> Working:
    A, h = 1, (1, 0)
    printed = -_slope_at_zero(A, h)
    other = sympy.Symbol("A'", real=True)
    slope = sympy.Rational(*_slope_at_zero(1, h).as_integer_ratio()) * other**2
    solutions = sympy.solveset(sympy.Eq(slope, sympy.Rational(*printed.as_integer_ratio())), other, sympy.S.Reals)
    return working(
        f"tokens {shown(h)}: the weights are equal at x = 0, F'(0) is A^2 times the variance {_slope_at_zero(1, h)}",
        f"printed, A = {A}: the slope of -F is {printed}",
        f"descent with A': the slope of F is {slope}",
        f"real A' with {slope} = {printed}: {solutions}",
        f"some A' reproduces the printed update: {not solutions.is_empty}",
        comes_out=not solutions.is_empty,
    )


def _score_only_jacobian(
    W_Q: Vector, W_K: Vector, d: Vector, h: Sequence[Vector]
) -> tuple[tuple[Fraction, ...], ...]:
    keys = [dot(W_K, h_j) for h_j in h]
    betas = [[q * key + a * b for q, a, b in zip(W_Q, d, h_j, strict=True)] for key, h_j in zip(keys, h, strict=True)]
    return jacobian_at_zero(W_Q, keys, betas)


def _score_only_is_no_gradient() -> Working:
    W_Q, W_K, d, h = (1, 0), (1, 0), (0, 1), ((1, 1), (0, 0))
    J, without = _score_only_jacobian(W_Q, W_K, d, h), _score_only_jacobian(W_Q, W_K, (0, 0), h)
    return working(
        f"W_Q = W_K = {shown(W_Q)}, d = {shown(d)}, tokens {shown(h[0])} and {shown(h[1])}",
        "beta_j = W_Q^T W_K h_j + d * h_j, the value W_K h_j; at x = 0 all weights are equal",
        f"without the diagonal the Jacobian of the update is {shown(without)}, symmetric: {symmetric(without)}",
        f"with it: {shown(J)}",
        f"that is symmetric: {J[0][1]} = {J[1][0]} is {symmetric(J)}",
        comes_out=symmetric(J),
    )


def _score_only_ascends() -> Working:
    h, W_Q, W_K, d, x = 1, 1, 1, -2, Fraction(1)
    beta, update = (W_Q * W_K + d) * h, W_Q * W_K * h
    before, after = -beta * x, -beta * (x + update)
    return working(
        f"h = W_Q = W_K = 1, d = {d}: beta = (W_Q W_K + d) h = {beta}, eps = -beta x; one token",
        f"minus the gradient: {beta}; the update with v = W_K h: {update}",
        f"x: {x} -> {x + update}, energy: {before} -> {after}",
        f"energy after <= energy before: {after} <= {before} is {after <= before}",
        comes_out=after <= before,
    )


# §7: the norm inside


def _norm_inside() -> Iterator[Claim]:
    yield Claim(
        id="7-norm-gradient",
        source="Algorithm 1",
        statement="With u = RMSNorm(x) inside, the update is minus the gradient of the energy at N(x).",
        formula="F(N(x)) = -grad_x eps(N(x)), F = -grad eps",
        proof="The chain rule puts the transposed Jacobian of N in front: -grad_x eps(N(x)) = J_N^T F(N(x)).",
        evidence=(
            Counterexample("one token, D = 2, beta = (1, 0), x = (1, 1), no gain", _norm_drops_a_factor),
            Search(
                "beta and x, integers, no gain",
                st.tuples(PAIR, PAIR.filter(any)),
                # the true gradient has no part along x, since N does not see the length of x
                violates=lambda c: dot(*c) != 0,
                size=largest_entry,
                largest=1,
            ),
        ),
    )
    yield Claim(
        id="7-norm-monotone",
        source="Algorithm 1",
        statement="With u = RMSNorm(x) inside, a descent step of any size lowers the energy at N(x).",
        formula="eps(N(x + eta P F(N(x)))) <= eps(N(x)) for all eta > 0",
        condition=(
            "P is a positive multiple of the diagonal matrix of gains; for P = 1, all gains are one positive number"
        ),
        proof=(
            "For gain c > 0 and P = 1, F . N(x + eta F) has the derivative c (|F|^2 r^2 - (x . F)^2 / D) / r^3 in "
            "eta, at least 0 by Cauchy and Schwarz. So F . (N(x') - N(x)) >= 0, and by concavity eps(N(x')) <= "
            "eps(N(x)) - F . (N(x') - N(x)). For P = G see 7-norm-folded. A negative gain turns N(x) away from where "
            "x goes. If P beta is not along G beta, take x halfway between their directions: the energy of one token "
            "rises at the smallest step."
        ),
        evidence=(
            Derivation("the derivative of F . N(x + eta F), D = 2, in symbols", lambda: _norm_follows(folded=False)),
            Properties(
                ("descent/attention/norm-scalar-any-step-size", "descent/attention/norm-folded-any-step-size"),
                examples=20,
            ),
            Counterexample("negative gains, however small: beta = (1, 0), x = (0, 1)", _negative_gain_ascends),
            Counterexample(
                "gains that differ by a hundredth",
                lambda: _rises_at_once((1, 1), (200, 201), gain=(1, Fraction(101, 100))),
            ),
            Counterexample(
                "a diagonal P whose entries differ by a hundredth",
                lambda: _rises_at_once((1, 1), (200, 201), P=(1, Fraction(101, 100))),
            ),
            Search(
                "a negative scalar gain, beta, x integers, eta = 1",
                st.tuples(st.integers(-4, -1), PAIR, PAIR.filter(any)),
                violates=lambda c: any(moved(c[2], c[1])) and not _falls(c[1], (c[0], c[0]), c[2], moved(c[2], c[1])),
                size=largest_entry,
                largest=1,
            ),
        ),
    )
    yield Claim(
        id="7-norm-gain",
        source="Algorithm 1",
        statement=(
            "With RMSNorm and its positive gain per channel inside, a step of any size lowers the energy at N(x)."
        ),
        formula="eps(N(x + eta F(N(x)))) <= eps(N(x)) for all eta > 0, N(x) = G x / r, G > 0 diagonal",
        proof=(
            "At eta = 0 the energy -beta . G x / r of one token has the slope "
            "-(beta . G beta) / r + (beta . G x)(x . beta) / (D r^3). For G = c 1 this is at most 0 by Cauchy and "
            "Schwarz; for any other G it is positive at x halfway between the directions of beta and G beta."
        ),
        evidence=(
            Counterexample(
                "beta = (2, 1), gain (1, 3), x = (1, 1)", lambda: _rises_at_once((2, 1), (1, 1), gain=(1, 3))
            ),
            Search(
                "beta, x and positive gains, integers, D = 2: the slope at eta = 0",
                st.tuples(PAIR, PAIR.filter(any), st.tuples(GAIN, GAIN)),
                violates=lambda c: _slope(c[0], c[2], c[1], c[0]) > 0,
                size=largest_entry,
                largest=3,
            ),
        ),
    )
    yield Claim(
        id="7-norm-preconditioner",
        source="Algorithm 1, Eq. 12",
        statement="With RMSNorm inside, a step with a positive definite P of any size lowers the energy at N(x).",
        formula="eps(N(x + eta P F(N(x)))) <= eps(N(x)) for all eta > 0 and all P > 0",
        proof=(
            "As for gains (7-norm-gain), with P beta in place of G beta: every P that is no multiple of the identity "
            "fails somewhere. Without the norm any P would do (4-any-step)."
        ),
        evidence=(
            Counterexample(
                "beta = (2, 1), P = diag(1, 3), x = (1, 1)", lambda: _rises_at_once((2, 1), (1, 1), P=(1, 3))
            ),
            Search(
                "beta, x and a positive diagonal P, integers, D = 2: the slope at eta = 0",
                st.tuples(PAIR, PAIR.filter(any), st.tuples(GAIN, GAIN)),
                violates=lambda c: _slope(c[0], (1, 1), c[1], [p * b for p, b in zip(c[2], c[0], strict=True)]) > 0,
                size=largest_entry,
                largest=3,
            ),
        ),
    )
    yield Claim(
        id="7-norm-folded",
        source="ours",
        statement=(
            "Folding the gains into both paths repairs this for all gains, of either sign, and every step size."
        ),
        formula="eps(N(x + eta G F(N(x)))) <= eps(N(x)) for all eta > 0, N(x) = G x / r",
        proof=(
            "Write y = G F. Then F . N(x') = y . x' / r' with x' = x + eta y: the case of a scalar gain 1, with y in "
            "place of F. G enters twice, once in N and once in the direction, so that its signs cancel."
        ),
        evidence=(
            Derivation("the derivative of F . N(x + eta G F), D = 2, in symbols", lambda: _norm_follows(folded=True)),
            Properties(("descent/attention/norm-folded-any-step-size",), examples=20),
        ),
    )
    yield Claim(
        id="7-norm-true-gradient",
        source="ours",
        statement="Stepping along the true gradient J_N^T F lowers the energy at N(x) at every step size.",
        formula="eps(N(x + eta q)) <= eps(N(x)) for all eta > 0, q = J_N^T F = (1 - x x^T / (D r^2)) G F / r",
        condition="the step is small enough, for this x: to first order any gain and any P will do",
        proof=(
            "q is minus the gradient of eps(N(x)), so that a step along P q has the slope -q . P q <= 0. But eps "
            "after N is not concave: it depends on the direction of x alone, and a long step turns x beyond the "
            "minimum. As q grows like 1 / |x|, no step size is short enough for all x."
        ),
        evidence=(
            Derivation("q is minus the gradient: two tokens, D = 2, in symbols", _norm_gradient),
            Counterexample("beta = (1, 0), x = (3, 1), no gain, eta = 30", _true_gradient_overshoots),
            Search(
                "beta and x, integers, no gain, eta up to 40",
                st.tuples(PAIR, PAIR.filter(any), st.integers(1, 40)),
                violates=lambda c: _true_gradient_change(*c) > BEYOND_ROUNDOFF,
                size=lambda c: largest_entry(c[:2]),
                largest=3,
            ),
        ),
    )


def _signed_square(beta: Vector, gain: Vector, x: Vector) -> Fraction:
    """s |s| / r^2, s = beta . G x and r^2 = |x|^2 / D: one token's energy at N(x), -s / r, falls as this rises."""
    s = dot(beta, [g * a for g, a in zip(gain, x, strict=True)])
    return s * abs(s) * len(x) / dot(x, x)


def _falls(beta: Vector, gain: Vector, x: Vector, y: Vector) -> bool:
    return _signed_square(beta, gain, y) >= _signed_square(beta, gain, x)


def _energy_at_norm(beta: Vector, gain: Vector, x: Vector) -> str:
    """-s / r in full."""
    s, r2 = dot(beta, [g * a for g, a in zip(gain, x, strict=True)]), dot(x, x) / len(x)
    value = -mpmath.mpf(s.numerator) / s.denominator / mpmath.sqrt(mpmath.mpf(r2.numerator) / r2.denominator)
    return f"-({s}) / sqrt({r2}) = {shown(value, 10)}"


def _slope(beta: Vector, gain: Vector, x: Vector, direction: Vector) -> Fraction:
    """r^3 times the slope of -beta . G x / r along a direction: -(beta . G d) r^2 + (beta . G x)(x . d) / D."""
    Gd, Gx = ([g * a for g, a in zip(gain, v, strict=True)] for v in (direction, x))
    return (dot(beta, Gx) * dot(x, direction) - dot(beta, Gd) * dot(x, x)) / len(x)


def _norm_drops_a_factor() -> Working:
    beta, x = (1, 0), (1, 1)
    r2 = dot(x, x) / len(x)  # 1, so that no root is needed
    along = dot(x, beta) / (len(x) * r2)
    true = moved(beta, x, -along)
    return working(
        f"beta = {shown(beta)}, x = {shown(x)}, r = {r2}: N(x) = x; the printed update is F = beta = {shown(beta)}",
        "minus the gradient is J_N^T F = (F - x (x . F) / (D r^2)) / r",
        f"= {shown(beta)} - {along} {shown(x)} = {shown(true)}",
        f"the update is minus the gradient: {shown(beta)} = {shown(true)} is {tuple(beta) == true}",
        comes_out=tuple(beta) == true,
    )


def _norm_follows(*, folded: bool) -> Working:
    """The derivative in eta of F . N(x + eta d), d = F at a scalar gain or d = G F, N(x) = G x / r."""
    x, F = sympy.symbols("x1:3", real=True), sympy.symbols("F1:3", real=True)
    eta, e = sympy.symbols("eta e", positive=True)
    c = sympy.Symbol("c", real=True)
    G = sympy.symbols("g1:3", real=True) if folded else (c, c)
    d = [g * f for g, f in zip(G, F, strict=True)] if folded else list(F)
    y = [a + eta * b for a, b in zip(x, d, strict=True)]
    r = sympy.sqrt((y[0] ** 2 + y[1] ** 2) / 2 + e)
    slope = sympy.diff(sum(f * g * b for f, g, b in zip(F, G, y, strict=True)) / r, eta)
    claimed = (1 if folded else c) * ((y[0] * d[1] - y[1] * d[0]) ** 2 / 2 + e * (d[0] ** 2 + d[1] ** 2)) / r**3
    difference, same = simplified(slope - claimed)
    direction, factor = ("G F", "") if folded else ("F", "c ")
    return working(
        f"d = {direction}, x' = x + eta d, r'^2 = |x'|^2 / 2 + e; N(x') = {'G' if folded else 'c'} x' / r'",
        f"claimed: the derivative of F . N(x') is {factor}((x'_1 d_2 - x'_2 d_1)^2 / 2 + e |d|^2) / r'^3",
        f"derivative minus claimed, simplified: {difference}",
        f"a sum of squares{' whatever the gains' if folded else ' times c, and so of the sign of c'}",
        comes_out=same,
    )


def _negative_gain_ascends() -> Working:
    beta, x = (1, 0), (0, 1)
    y = moved(x, beta)
    lines, falls = [], []
    for c in (Fraction(-1), Fraction(-1, 1000)):
        falls.append(_falls(beta, (c, c), x, y))
        lines.append(
            f"gain {c}: energy {_energy_at_norm(beta, (c, c), x)} -> {_energy_at_norm(beta, (c, c), y)}; "
            f"it does not rise: {falls[-1]}"
        )
    return working(
        f"one token with beta = {shown(beta)}: eps(N(x)) = -beta . c x / r; eta = 1, x: {shown(x)} -> {shown(y)}",
        *lines,
        f"energy after <= energy before, for either gain: {any(falls)}",
        comes_out=any(falls),
    )


def _rises_at_once(beta: Vector, x: Vector, gain: Vector = (1, 1), P: Vector = (1, 1)) -> Working:
    """One token and the direction P beta: the slope at eta = 0, and the energies at eta = 1."""
    d = tuple(Fraction(p) * b for p, b in zip(P, beta, strict=True))
    y = moved(x, d)
    slope, falls = _slope(beta, gain, x, d), _falls(beta, gain, x, y)
    Gx, Gd = (tuple(Fraction(g) * a for g, a in zip(gain, v, strict=True)) for v in (x, d))
    return working(
        f"beta = {shown(beta)}, x = {shown(x)}, gain {shown(gain)}, P = diag{shown(P)}: P beta = {shown(d)}",
        f"beta . G x = {dot(beta, Gx)}, beta . G P beta = {dot(beta, Gd)}, x . P beta = {dot(x, d)}, "
        f"r^2 = {dot(x, x) / len(x)}",
        f"r^3 times the slope at eta = 0: (beta . G x)(x . P beta) / D - (beta . G P beta) r^2 = {slope}",
        f"eta = 1: x' = {shown(y)}, energy {_energy_at_norm(beta, gain, x)} -> {_energy_at_norm(beta, gain, y)}",
        f"s |s| / r^2, s = beta . G x, which falls as the energy -s / r rises: {_signed_square(beta, gain, x)} -> "
        f"{_signed_square(beta, gain, y)}",
        f"energy after <= energy before: {falls} at eta = 1, {slope <= 0} for a small eta",
        comes_out=falls or slope <= 0,
    )


def _norm_gradient() -> Working:
    x, G = sympy.symbols("x1:3", real=True), sympy.symbols("g1:3", real=True)
    u = sympy.symbols("u1:3", real=True)
    e = sympy.Symbol("e", positive=True)
    betas = [sympy.symbols(f"b{j}_1:3", real=True) for j in (1, 2)]
    eps = -sympy.log(sum(sympy.exp(b[0] * u[0] + b[1] * u[1]) for b in betas))
    r = sympy.sqrt((x[0] ** 2 + x[1] ** 2) / 2 + e)
    at_norm = [(u[i], G[i] * x[i] / r) for i in (0, 1)]
    GF = [-G[i] * sympy.diff(eps, u[i]).subs(at_norm) for i in (0, 1)]
    along = sum(a * b for a, b in zip(x, GF, strict=True))
    q = [(GF[i] - x[i] * along / (2 * r**2)) / r for i in (0, 1)]
    differences, same = simplified(*(-sympy.diff(eps.subs(at_norm), x[i]) - q[i] for i in (0, 1)))
    return working(
        "eps(u) = -log sum_j exp(beta_j . u), N(x) = G x / r, r^2 = |x|^2 / 2 + e, F = -grad eps at N(x)",
        "claimed: -grad_x eps(N(x)) = (1 - x x^T / (D r^2)) G F / r",
        f"difference, simplified, both components: {differences}",
        comes_out=same,
    )


def _true_gradient_change(beta: Vector, x: Vector, eta: int) -> Any:
    """Energy at N(x + eta q) minus energy at N(x), one token, no gain, q = (beta - x (x . beta) / |x|^2) / r."""
    rejected = moved(beta, x, -dot(x, beta) / dot(x, x))
    r = mpmath.sqrt(mpmath.mpf(int(dot(x, x))) / len(x))
    y = [a + eta * mpmath.mpf(p.numerator) / p.denominator / r for a, p in zip(x, rejected, strict=True)]
    return mpmath.fdot(beta, x) / r - mpmath.fdot(beta, y) / mpmath.sqrt(mpmath.fdot(y, y) / len(y))


def _true_gradient_overshoots() -> Working:
    beta, x = (1, 0), (3, 1)
    norm2 = dot(x, x)
    rejected = moved(beta, x, -dot(x, beta) / norm2)
    # mirrored in beta x has the same energy: with s = eta / r, (x_1 + s p_1) / (x_2 + s p_2) = -x_1 / x_2
    s = sympy.Symbol("s")
    p = [sympy.Rational(a.numerator, a.denominator) for a in rejected]
    even = sympy.solve((x[0] + s * p[0]) * x[1] + (x[1] + s * p[1]) * x[0], s)[0]
    with mpmath.workdps(30):
        r = mpmath.sqrt(mpmath.mpf(int(norm2)) / len(x))
        before = -mpmath.fdot(beta, x) / r
        changes = {eta: _true_gradient_change(beta, x, eta) for eta in (16, 17, 30)}
        falls = bool(changes[30] <= 0)
        return working(
            f"one token, beta = {shown(beta)}, x = {shown(x)}, r = sqrt({norm2 / len(x)}): energy {shown(before)}",
            f"q = (beta - x (x . beta) / |x|^2) / r = {shown(rejected)} / r",
            f"eta = {even} r = {shown(mpmath.mpf(even.p) / even.q * r)} takes x to a multiple of its mirror image in "
            "beta, which has the same energy",
            *(f"eta = {eta}: energy {shown(before)} -> {shown(before + change)}" for eta, change in changes.items()),
            f"energy after <= energy before: {falls}",
            comes_out=falls,
        )


# §7: the printed block


def _printed_block() -> Iterator[Claim]:
    yield Claim(
        id="7-block",
        source="Sec. 2, Algorithm 1",
        statement="Standard Transformer blocks are the special case T = 1, P = 1.",
        formula="block(h) = h + update(N(h)) at T = 1, P = 1, eta = 1",
        condition="the recursion starts at h, reads N(h) as its memory and asks the gradient at N(x)",
        proof=(
            "Algorithm 1 overwrites h by N(h) and starts there: its output is N(h) + update. It forgets the length "
            "of h (block(c h) = block(h) for c > 0), and a layer of zeros does not pass h on. Started at h, the "
            "block is the pre-norm residual block."
        ),
        evidence=(
            Properties(("tying/block/pre-norm",), examples=20),
            Counterexample("weights zero, D = 1, h = 2", _printed_block_loses_the_residual),
            Search(
                "weights zero, D = 1, h a positive integer: N(h) = h / |h|",
                st.integers(1, 9),
                violates=lambda h: Fraction(h, abs(h)) != h,
                size=abs,
                largest=2,
            ),
        ),
    )
    yield Claim(
        id="7-norm-twice",
        source="Algorithm 1",
        statement=(
            "Normalising h and normalising again inside is the same as once: queries and keys read the same vector."
        ),
        formula="N(N(x)) = N(x)",
        condition="all channels have one and the same positive gain, and the norm no stabiliser in its root",
        proof=(
            "N(x) = c x / r has root mean square c > 0, so that normalising it again divides by c and multiplies by "
            "c. With gains G the direction of N(x) is G x, that of N(N(x)) is G^2 x: the gain counts twice for the "
            "query, once for the keys. A stabiliser shrinks N(x) once more."
        ),
        evidence=(
            Derivation("a scalar gain c > 0, D = 2, in symbols", _normalising_again),
            Counterexample("x = (1, 1), gains (1, 3), and gains that differ by a hundredth", _norm_twice),
            Search(
                "x and positive gains, integers, D = 2",
                st.tuples(PAIR, st.tuples(GAIN, GAIN)),
                violates=lambda c: c[0][0] * c[0][1] != 0 and c[1][0] != c[1][1],  # G x and G^2 x not parallel
                size=largest_entry,
                largest=3,
            ),
        ),
    )


def _printed_block_loses_the_residual() -> Working:
    h, update = Fraction(2), Fraction(0)
    normalised = h / abs(h)  # D = 1: the root mean square is |h|
    standard, printed = h + update, normalised + update
    return working(
        f"W_Q = W_K = 0: the update is {update}; h = {h}, N(h) = h / |h| = {normalised}",
        f"pre-norm residual block: h + update = {standard}",
        f"Algorithm 1: N(h) + update = {printed}",
        f"the block is the standard one: {printed} = {standard} is {printed == standard}",
        comes_out=printed == standard,
    )


def _normalising_again() -> Working:
    x, c = sympy.symbols("x1:3", positive=True), sympy.Symbol("c", positive=True)

    def N(v: Sequence[Any]) -> list[Any]:
        r = sympy.sqrt(sum(a * a for a in v) / len(v))
        return [c * a / r for a in v]

    differences, same = simplified(*(twice - once for twice, once in zip(N(N(x)), N(x), strict=True)))
    return working(
        "N(x) = c x / r, r^2 = |x|^2 / D",
        f"N(N(x)) - N(x), simplified, both components: {differences}",
        comes_out=same,
    )


def _norm_twice() -> Working:
    x = (1, 1)

    def N(v: Sequence[Any], gain: Vector) -> list[Any]:
        r = mpmath.sqrt(mpmath.fdot(v, v) / len(v))
        return [g.numerator * a / (g.denominator * r) for g, a in zip(gain, v, strict=True)]

    lines, same = [], []
    with mpmath.workdps(30):
        for gain in ((Fraction(1), Fraction(3)), (Fraction(1), Fraction(101, 100))):
            once = N(x, gain)
            twice = N(once, gain)
            same.append(max(abs(a - b) for a, b in zip(once, twice, strict=True)) < mpmath.mpf("1e-20"))
            lines.append(f"gains {shown(gain)}: N(x) = {shown(once)}, N(N(x)) = {shown(twice)}, the same: {same[-1]}")
    return working(f"x = {shown(x)}", *lines, f"N(N(x)) = N(x) for either: {any(same)}", comes_out=any(same))

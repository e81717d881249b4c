"""Claims about the interaction energy: attention as its gradient step, and its concavity.

Eq. 1, 3, 5 and 12, Sec. 2, App. B (docs/mathematics.md §1, §4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import mpmath
import sympy
from hypothesis import strategies as st

from cemverify.claims.arguments import Instance, Lemma, Search, Symbols, Working, properties, working
from cemverify.claims.base import Claim, draft, ours, slip
from cemverify.claims.exact import (
    BEYOND_ROUNDOFF,
    DIGITS,
    GAIN,
    PAIR,
    Vector,
    dot,
    energy,
    show,
    simplified,
    weights,
)


def claims() -> Iterator[Claim]:
    """Every claim about the energy of attention, each with its arguments."""
    yield from _gradient_step()
    yield from _concavity()


# §1: the gradient step


def _gradient_step() -> Iterator[Claim]:
    yield Claim(
        id="1-gradient",
        source=draft(
            "abstract; Eq. 1, 5",
            "Within CEM, multihead attention emerges as a gradient step on an interaction energy under the weights "
            "sharing constraint, while gated multilayer perceptrons (MLPs) correspond to element-wise energies.",
            "sentence",
        ),
        statement=(
            "The negative gradient of the interaction energy is multi-head attention with W_V = W_K, W_O = W_Q^T."
        ),
        formula="-grad eps(x_i) = sum_k W_Q,k^T sum_j softmax_j(W_Q,k x_i . W_K,k h_j / tau) W_K,k h_j",
        finding=(
            "The gradient of tau log sum_j exp(s_j / tau) is the softmax-weighted sum of the gradients of the s_j, "
            "and s_j = x . W_Q^T W_K h_j has the gradient W_Q^T W_K h_j. The factor W_K h_j is the key, now read as "
            "the value; W_Q^T is the same for all j and comes out of the sum as the output projection."
        ),
        advice="pass the keys as values to scaled-dot-product attention, and multiply its output by W_Q^T",
        holds_for=partial(_is_minus_the_gradient, output="query"),
        arguments=(
            Symbols("two heads, two tokens, D = 2, R = 1, every weight a letter"),
            properties("gradient/attention/plain", "gradient/attention/conservative-field"),
        ),
    )
    yield Claim(
        id="1-temperature",
        source=slip("Eq. 5, Algorithm 1, Table 1", "D_h^(-1/2)", "formula"),
        statement=(
            "The scale 1/sqrt(D_h) makes the step standard scaled-dot-product attention. D_h is the model dimension "
            "in the shapes of the weights and in Table 1."
        ),
        formula="-grad eps at tau = sqrt(D_h)  =  sum_k W_Q,k^T sum_j softmax_j(q_k . k_kj / sqrt(R)) k_kj",
        condition="there is a single head, K = 1, so that the model dimension is the head dimension",
        within=lambda case: len(case.W_Q) == 1,
        finding=(
            "The temperature divides the logits; standard attention has tau = sqrt(R), with R the head dimension. "
            "With K heads of R = D_h / K features, sqrt(D_h) is sqrt(K) times as large, and every softmax is "
            "flatter. One symbol stands for two dimensions."
        ),
        advice="use tau = sqrt(R), R the head dimension; it is the default scale of scaled-dot-product attention",
        holds_for=partial(_is_standard_attention, of="model"),
        arguments=(
            Instance("two heads of one feature", _Heads(((1, 0), (0, 1)), ((1, 0), (0, 1)), (1, 0), (1, 0))),
            Search("one head of one feature, integers", _heads(1, 1), examples=200),
            Search("two heads of one feature, integers", _heads(2, 2), outside=True),
            properties("tying/attention/multi-head-attention", "tying/attention/scaled-dot-product-attention"),
        ),
    )


def _is_minus_the_gradient(_: Any, *, output: str) -> Working:
    tau = sympy.Symbol("tau", positive=True)
    x = sympy.Matrix(sympy.symbols("x1:3"))
    h = [sympy.Matrix(sympy.symbols(f"h{j}_1:3")) for j in (1, 2)]
    W_Q = [sympy.Matrix([sympy.symbols(f"q{k}_1:3")]) for k in (1, 2)]
    W_K = [sympy.Matrix([sympy.symbols(f"k{k}_1:3")]) for k in (1, 2)]
    eps, attention = sympy.Integer(0), sympy.zeros(2, 1)
    for Q, K in zip(W_Q, W_K, strict=True):
        eps -= tau * sympy.log(sum(sympy.exp((Q.T * K * h_j).dot(x) / tau) for h_j in h))
        query, keys = (Q * x)[0], [(K * h_j)[0] for h_j in h]
        raw = [sympy.exp(query * key / tau) for key in keys]
        W_O = (Q if output == "query" else K).T
        attention += W_O * sum(r * key for r, key in zip(raw, keys, strict=True)) / sum(raw)
    differences = [-sympy.diff(eps, x[i]) - attention[i] for i in (0, 1)]
    text, agree = simplified(*differences)
    return working(
        "eps = -tau sum_k log sum_j exp(x . W_Q,k^T W_K,k h_j / tau)",
        "attention = sum_k W_Q,k^T sum_j softmax_j((W_Q,k x)(W_K,k h_j) / tau) (W_K,k h_j)",
        f"-grad eps - attention, simplified, both components: {text}",
        comes_out=agree,
    )


class _Heads(NamedTuple):
    """Heads with one feature each: W_Q and W_K have a row per head; the memory is h and a token of zeros."""

    W_Q: Sequence[Vector]
    W_K: Sequence[Vector]
    h: Vector
    x: Vector


def _heads(K: int, D: int) -> st.SearchStrategy[_Heads]:
    row = st.tuples(*[st.integers(-2, 2)] * D)
    heads = st.tuples(*[row] * K)
    return st.builds(_Heads, heads, heads, row, row)


def _attended(case: _Heads, tau: Any) -> list[Any]:
    """sum_k W_Q,k^T sum_j softmax_j(q_k . k_kj / tau) k_kj."""
    update = [mpmath.mpf(0)] * len(case.x)
    for Q, K in zip(case.W_Q, case.W_K, strict=True):
        keys = [int(dot(K, case.h)), 0]
        attended = mpmath.fdot(weights([int(dot(Q, case.x)) * key for key in keys], tau), keys)
        update = [u + q * attended for u, q in zip(update, Q, strict=True)]
    return update


def _is_standard_attention(case: _Heads, *, of: str) -> Working:
    D, R = len(case.x), 1
    with mpmath.workdps(DIGITS):
        tau = mpmath.sqrt(D if of == "model" else R)
        standard, actual = _attended(case, mpmath.sqrt(R)), _attended(case, tau)
        same = max(abs(p - s) for p, s in zip(actual, standard, strict=True)) < mpmath.mpf("1e-20")
    return working(
        f"K = {len(case.W_Q)}, D_h = {D}, R = {R}; W_Q {show(tuple(map(tuple, case.W_Q)))}, W_K "
        f"{show(tuple(map(tuple, case.W_K)))}; tokens {show(case.h)} and 0, x = {show(case.x)}",
        f"tau = sqrt(R) = {show(mpmath.sqrt(R))}: the update is {show(standard)}",
        f"tau = {show(tau)}, of the {of} dimension: the update is {show(actual)}",
        f"they are the same: {same}",
        comes_out=same,
    )


# §4: concavity


def _concavity() -> Iterator[Claim]:
    yield Claim(
        id="4-any-step",
        source=ours("Eq. 3, 12"),
        rests=(
            "finding 4",
            "cemverify.cem.energies.interaction.Interaction.curvature",
            "descent/attention/any-step-size-low-rank",
        ),
        statement="A step down the gradient lowers the attention energy, whatever its size and the preconditioner P.",
        formula="eps(x - eta P g) <= eps(x) - eta g . P g for all eta > 0",
        condition=(
            "the keys come from a memory that does not move with x, and P, the same for all heads, has a positive "
            "semi-definite symmetric part"
        ),
        within=lambda case: not case.keys_move,
        finding=(
            "A log-sum-exp of functions affine in x is convex for every A, bias, diagonal and tau > 0, and eps is "
            "-tau times a sum of these, so it is concave. A concave function lies below its tangent: eps(y) <= "
            "eps(x) + g . (y - x), here with y = x - eta P g. P may differ between tokens and between steps."
        ),
        advice="assert `energy(x - eta * P @ g) <= energy(x) - eta * g @ P @ g`; the only tolerance is roundoff",
        holds_for=partial(_descends, direction=1),
        arguments=(
            Search("two tokens in the plane, x, a diagonal P and eta, integers", _steps(moves=False), examples=500),
            Lemma("the distance from the tangent, two tokens, in letters", _distance_from_the_tangent),
            properties(
                "descent/attention/any-step-size-identity",
                "descent/attention/any-step-size-diagonal",
                "descent/attention/any-step-size-low-rank",
                "descent/attention/any-step-size-with-diagonal-and-bias",
            ),
            Instance("keys that move with x: A = -1", _Step(((-1, 0), (-1, 0)), (1, 0), (1, 1), 2, keys_move=True)),
            Search("keys that move with x", _steps(moves=True), outside=True),
        ),
    )
    yield Claim(
        id="4-convex",
        source=draft("App. B", "convex in x"),
        statement="The log-sum-exp energy of the appendix is convex in x.",
        formula="E((a + b) / 2) <= (E(a) + E(b)) / 2 for E(x) = -tau log sum_j exp(h_j . x / tau)",
        finding="It is minus a convex function, and strictly concave along every line on which two patterns differ.",
        advice="do not rely on convexity: a step downhill moves away from the only stationary point there is",
        holds_for=partial(_is_on_the_side_of_the_chord, side=1),
        arguments=(
            Instance("patterns 1 and -1, tau = 1, between x = -1 and x = 1", ((1, -1), (-1, 1))),
            Search("two patterns and two points in one dimension, integers", st.tuples(PAIR, PAIR)),
        ),
    )
    yield Claim(
        id="4-prefactor",
        source=slip("App. B", "-(1/tau) log sum_j exp(h_j . x / tau)", "formula"),
        statement="With the prefactor -1/tau, the gradient of the log-sum-exp energy is minus the attended patterns.",
        formula="grad (-(1/tau) log sum_j exp(h_j . x / tau)) = -sum_j softmax_j(h_j . x / tau) h_j",
        finding=(
            "The chain rule brings another 1/tau out of the exponent, so the gradient is 1/tau^2 times the stated "
            "one. The prefactor has to be -tau, as in Ramsauer et al. with inverse temperature 1/tau."
        ),
        advice="write `-tau * logsumexp(scores / tau)`",
        holds_for=partial(_has_the_stated_gradient, prefactor="printed"),
        arguments=(
            Instance("patterns 1 and 0, tau = 2, at x = 0", ((1, 0), 2)),
            Search("two patterns and tau, integers, at x = 0", st.tuples(PAIR, GAIN)),
        ),
    )
    yield Claim(
        id="4-minimum",
        source=draft(
            "abstract",
            "We introduce Causal Energy Minimization (CEM), a framework that interprets each transformer layer as an "
            "algorithm for solving an energy minimization problem with causal structure.",
            "sentence",
        ),
        statement="There is a minimum to solve for: the attention energy is bounded below.",
        formula="there is an m with eps(u) >= m for all x; u = x, or u = RMSNorm(x) as in Algorithm 1",
        condition="RMSNorm is inside the energy, as in Algorithm 1; without it there is no minimum",
        within=lambda case: case.normed,
        finding=(
            "The sentence does not say that the energy is bounded, but with RMSNorm inside it is: |RMSNorm(x)| is at "
            "most sqrt(D) times the largest gain. The energy of Eq. 1 itself has no minimum unless it is constant. "
            "Along t u it behaves as -t sum_k max_j beta_kj . u, bounded below for both u and -u only if all beta_kj "
            ". u are equal within each head and cancel over the heads. Where the gradient vanishes, the energy has a "
            "maximum."
        ),
        advice=(
            "without a norm, read the recursion as T steps downhill, not as a solver: there is no minimum to reach"
        ),
        holds_for=partial(_is_bounded_below, confined=False),
        arguments=(
            Search(
                "two tokens in one dimension, integers, with the norm", PAIR.map(partial(_Landscape, normed=True))
            ),
            Instance("J = 2, D = 1, beta = 1 and -1, tau = 1, no norm", _Landscape((1, -1), normed=False)),
            Search(
                "two tokens in one dimension, integers, no norm",
                PAIR.map(partial(_Landscape, normed=False)),
                outside=True,
            ),
        ),
    )


def _distance_from_the_tangent() -> Working:
    tau = sympy.Symbol("tau", positive=True)
    at_x, at_y = sympy.symbols("s1:3", real=True), sympy.symbols("t1:3", real=True)
    total = sum(sympy.exp(s / tau) for s in at_x)
    a = [sympy.exp(s / tau) / total for s in at_x]
    z = [(t - s) / tau for s, t in zip(at_x, at_y, strict=True)]
    mean = sum(p * q for p, q in zip(a, z, strict=True))
    spread = sum(p * sympy.exp(q - mean) for p, q in zip(a, z, strict=True))
    # eps(y) - eps(x) - g.(y - x) = -tau log(spread), divided by -tau and exponentiated
    ratio = sum(sympy.exp(t / tau) for t in at_y) / total * sympy.exp(-mean)
    difference, same = simplified(ratio - spread)
    excess, one = simplified(sum(p * (1 + q - mean) for p, q in zip(a, z, strict=True)) - 1)
    return working(
        "s_j = beta_j . x, t_j = beta_j . y, a = softmax(s / tau), z = (t - s) / tau; g . (y - x) = -tau sum a z",
        "claimed: eps(y) = eps(x) + g . (y - x) - tau log S with S = sum_j a_j exp(z_j - sum a z)",
        f"exp((eps(x) - eps(y) + g . (y - x)) / tau) - S, simplified: {difference}",
        f"by exp(z) >= 1 + z, S >= sum_j a_j (1 + z_j - sum a z) = 1 + {excess}, so that log S >= 0",
        comes_out=same and one,
    )


class _Step(NamedTuple):
    """A step of size eta with P = diag(P), tau = 1, two tokens with these beta.

    If keys move, D = 1 in effect: the key of the one token is beta x, and eps = -beta x^2 in the first coordinate.
    """

    betas: tuple[Vector, Vector]
    x: Vector
    P: Vector
    eta: int
    keys_move: bool


def _steps(*, moves: bool) -> st.SearchStrategy[_Step]:
    return st.builds(
        _Step, st.tuples(PAIR, PAIR), PAIR, st.tuples(st.integers(0, 3), st.integers(0, 3)), GAIN, st.just(moves)
    )


def _descends(case: _Step, *, direction: int) -> Working:
    betas, x, P, eta, keys_move = case
    if keys_move:
        A, at = Fraction(betas[0][0]), Fraction(x[0])
        g = -2 * A * at
        before, after = -A * at**2, -A * (at - direction * eta * P[0] * g) ** 2
        bound = before - eta * P[0] * g**2
        return working(
            f"the key is {A} x and moves: eps = -({A} x) x, of gradient {g} at x = {at}; eta = {eta}",
            f"energy {before} -> {after}; below eps(x) - eta g . P g = {bound}: {after <= bound}",
            comes_out=after <= bound,
        )
    with mpmath.workdps(DIGITS):
        a = weights([int(dot(b, x)) for b in betas])
        downhill = [mpmath.fdot(a, [b[m] for b in betas]) for m in range(2)]
        step = [p * d for p, d in zip(P, downhill, strict=True)]
        y = [b + direction * eta * s for b, s in zip(x, step, strict=True)]
        before = energy([int(dot(b, x)) for b in betas])
        after = energy([mpmath.fdot(b, y) for b in betas])
        bound = before - eta * mpmath.fdot(downhill, step)
        held = after <= bound + mpmath.mpf("1e-20") * (1 + abs(bound))
    return working(
        f"beta {show(betas)}, x = {show(x)}, P = diag{show(P)}, eta = {eta}; -g = {show(downhill)}",
        f"energy {show(before)} -> {show(after)}; at most eps(x) - eta g . P g = {show(bound)}: {bool(held)}",
        comes_out=held,
    )


def _is_on_the_side_of_the_chord(case: tuple[Vector, Vector], *, side: int) -> Working:
    """side 1: the midpoint is not above the chord, as for convex functions; -1: not below."""
    patterns, ends = case
    with mpmath.workdps(DIGITS):
        middle = mpmath.mpf(ends[0] + ends[1]) / 2
        at_ends = [energy([h * x for h in patterns]) for x in ends]
        chord, between = mpmath.fsum(at_ends) / 2, energy([h * middle for h in patterns])
        held = side * (between - chord) <= BEYOND_ROUNDOFF
    return working(
        f"patterns {show(patterns)}, tau = 1: E({ends[0]}) = {show(at_ends[0])}, E({ends[1]}) = "
        f"{show(at_ends[1])}; their mean is {show(chord)}",
        f"E({show(middle)}) = {show(between)}; {'at most' if side > 0 else 'at least'} that mean: {bool(held)}",
        comes_out=held,
    )


def _has_the_stated_gradient(case: tuple[Vector, int], *, prefactor: str) -> Working:
    patterns, tau = case
    attended = Fraction(sum(patterns), len(patterns))  # at x = 0 all weights are equal
    factor = Fraction(-1, tau) if prefactor == "printed" else Fraction(-tau)
    gradient = factor * attended / tau
    return working(
        f"patterns {show(patterns)}, tau = {tau}, x = 0: all weights are equal, the attended pattern is {attended}",
        f"the gradient with the prefactor {factor}: {factor} ({attended}) / {tau} = {gradient}",
        f"it is minus the attended pattern: {gradient} = {-attended} is {gradient == -attended}",
        comes_out=gradient == -attended,
    )


class _Landscape(NamedTuple):
    """The energy of two tokens in one dimension, and whether it is evaluated at RMSNorm(x)."""

    betas: Vector
    normed: bool


def _is_bounded_below(case: _Landscape, *, confined: bool) -> Working:
    """Far out, the energy for integer betas falls by at least 1 per unit in one direction, or not at all."""

    def at(t: int) -> Any:
        u = t // abs(t) if case.normed else t  # RMSNorm of one number is its sign
        return energy([b * u for b in case.betas]) + (u * u / 2 if confined else 0)

    far = 1000
    with mpmath.workdps(DIGITS):
        near, further = [at(-far), at(far)], [at(-2 * far), at(2 * far)]
        bounded = all(b >= a - 1 for a, b in zip(near, further, strict=True))
    return working(
        f"beta = {show(case.betas)}, {'u = RMSNorm(x)' if case.normed else 'u = x'}",
        *(
            f"eps at x = {sign}{far}: {show(a)}, at {sign}{2 * far}: {show(b)}"
            for sign, a, b in zip(("-", ""), near, further, strict=True)
        ),
        f"the slopes far out are whole numbers, so that it is bounded below: {bool(bounded)}",
        comes_out=bounded,
    )

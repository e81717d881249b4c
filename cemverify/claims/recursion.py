"""Claims about recursion, and about what the paper does not establish (docs/mathematics.md §12, §17)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
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
    PAIR,
    dot,
    energy,
    largest_entry,
    moved,
    shown,
    simplified,
    weights,
)


def claims() -> Iterator[Claim]:
    """The sections' claims."""
    yield from _recursion()
    yield from _not_established()


# §12


def _recursion() -> Iterator[Claim]:
    yield Claim(
        id="12-steps-compose",
        source="Eq. 3, 12",
        statement="T steps of recursion are T steps down one energy: the one-step map, T times, on the same memory.",
        formula="x^(t+1) = x^(t) - eta P grad eps(x^(t) | h), the same h for all t",
        proof="The memory does not move, so that neither the energy nor the map depends on t.",
        evidence=(
            Properties(
                (
                    "recursion/attention/equals-descent",
                    "recursion/attention/steps-compose",
                    "recursion/mlp/equals-descent",
                    "recursion/mlp/steps-compose",
                ),
                examples=20,
            ),
        ),
    )
    yield Claim(
        id="12-keys-once",
        source="Sec. 2, Algorithm 1",
        statement=(
            "Keys are computed from the memory once, before the recursion; computing them anew changes nothing."
        ),
        formula="k_kj = W_K,k h_j does not depend on t",
        proof=(
            "h is fixed, and so are its keys. One-step calls compute them anew each time and compose to T steps; a "
            "cache of them serves the tokens that come later."
        ),
        evidence=(
            Properties(
                ("recursion/attention/steps-compose", "structure/decode/cached-equals-uncached-plain"), examples=20
            ),
        ),
    )
    yield Claim(
        id="12-not-reuse",
        source="Sec. 2, Fig. 3c, 4",
        statement="T steps within a layer are something else than the layer used T times.",
        formula="D = J = 1, T = 2: h (1 + 2 eta A) against h (1 + eta A)^2",
        proof=(
            "A layer used again takes its own output for its memory: the energy of the second use is not that of the "
            "first. In one dimension with one token the difference is eta^2 A^2 h."
        ),
        evidence=(
            Derivation("one dimension, one token, in symbols and at A = h = eta = 1", _reuse_differs),
            Properties(("recursion/attention/is-not-reuse", "recursion/mlp/is-not-reuse"), examples=20),
        ),
    )


def _reuse_differs() -> Working:
    A, h, eta = sympy.symbols("A h eta", positive=True)
    once = h + eta * A * h
    recursion, reuse = once + eta * A * h, once + eta * A * once
    text, same = simplified(reuse - recursion - eta**2 * A**2 * h)
    at_one = {A: 1, h: 1, eta: 1}
    two_steps, two_uses = recursion.subs(at_one), reuse.subs(at_one)
    return working(
        f"two steps: {sympy.factor(recursion)}; two uses: {sympy.factor(reuse)}",
        f"difference minus eta^2 A^2 h, simplified: {text}",
        f"A = h = eta = 1: {two_steps} after two steps, {two_uses} after two uses",
        f"they differ: {two_steps != two_uses}",
        comes_out=same and two_steps != two_uses,
    )


# §17: what is not established


def _not_established() -> Iterator[Claim]:
    yield Claim(
        id="17-in-place",
        source="Algorithm 1",
        statement=(
            "Algorithm 1, which normalises and overwrites h token after token, treats all tokens alike, in parallel."
        ),
        formula="the update of token i reads N(h_1), ..., N(h_i) of the layer's input",
        proof=(
            "Read literally the loop over i writes x_i back into h_i and normalises h_1..h_i again: token i attends "
            "to earlier tokens that have moved already. It is then sequential, and not what can be trained in "
            "parallel."
        ),
        evidence=(
            Counterexample("J = D = 2, K = R = 1, T = 1, eta = 2, norms included", _in_place_differs),
            Search(
                "W_Q, W_K and two tokens, integers, and eta 1 or 2",
                st.tuples(PAIR, PAIR, PAIR.filter(any), PAIR.filter(any), st.integers(1, 2)),
                violates=lambda c: _distance(*c) > BEYOND_ROUNDOFF,
                size=largest_entry,
                largest=2,
                examples=1000,
            ),
        ),
    )
    yield Claim(
        id="17-newton",
        source="Sec. 2 (motivation of P)",
        statement="A positive definite P makes the step approximate Newton's, which takes it to the minimum faster.",
        formula="P = (Hess eps)^-1, x - (Hess eps)^-1 grad eps",
        proof=(
            "Hess eps is negative semi-definite (4-concave), and where it is invertible its inverse is negative "
            "definite: -Hess^-1 + P is larger than -Hess^-1, so that every positive definite P is further from "
            "Hess^-1 than zero is. Newton's own step heads for the maximum of the concave energy."
        ),
        evidence=(
            Counterexample("patterns 1 and -1, tau = 1, x = 1", _newton_ascends),
            Search(
                "two patterns and x, integers in one dimension",
                st.tuples(PAIR.filter(lambda p: p[0] != p[1]), st.integers(-2, 2)),
                violates=lambda c: energy(_scores(c[0], _newton(*c))) > energy(_scores(*c)) + BEYOND_ROUNDOFF,
                size=largest_entry,
                largest=1,
            ),
        ),
    )
    yield Claim(
        id="17-fixed-point",
        source="Sec. 2 (recursion)",
        statement="More steps of the recursion without norm bring the state nearer to a fixed point.",
        formula="|x^(t+1) - x^(t)| goes to 0 as t grows",
        proof=(
            "A fixed point is a zero of the gradient, hence a maximum of the concave energy, and steps lead away "
            "from it: 17-diverges."
        ),
        evidence=(
            Counterexample("one token, beta = x = eta = 1: there is none", _no_fixed_point),
            Counterexample("beta = 1 and -1, eta = 1, started next to the fixed point 0", _leaves_the_fixed_point),
            Search(
                "two tokens and x, integers in one dimension, eta = 1: four steps",
                st.tuples(PAIR, ENTRY),
                violates=lambda c: _never_shorter([abs(s) for _, s in _walk(c[0], c[1], 4)]),
                size=largest_entry,
                largest=1,
            ),
        ),
    )
    yield Claim(
        id="17-diverges",
        source="ours",
        statement="From any point that is not stationary the recursion without norm leaves every bounded region.",
        formula="|g(x^(t+1))| >= |g(x^(t))|, so that eps(x^(t)) <= eps(x^(0)) - t eta |g(x^(0))|^2",
        proof=(
            "For F = -g the slope of F(x + s v) . v in s is the variance of the beta_j . v over tau, at least 0. "
            "With v = F(x) and s = eta: F(x') . F(x) >= |F(x)|^2, so that |F(x')| >= |F(x)|. Every step lowers the "
            "energy by at least eta |F|^2 (4-any-step). So eps falls at least linearly in t, and as its slope is "
            "bounded, |x| grows without bound. With RMSNorm inside the energy is that of N(x), and bounded "
            "(7-norm-monotone)."
        ),
        evidence=(
            Derivation("the slope of F(x + s v) . v, two tokens, in symbols", _field_is_monotone),
            Properties(("descent/attention/along-steps",), examples=20),
        ),
    )
    yield Claim(
        id="17-joint",
        source="ours",
        statement="Attention and MLP each lower their own energy; so a block lowers the sum of the two.",
        formula="eps(x) + xi(x) does not rise from a block's input to its output",
        proof=(
            "Each step lowers one energy and is free to raise the other. Nothing is known of the sum, nor of the sum "
            "over layers or over tokens, whose memories move with the states."
        ),
        evidence=(
            Counterexample("D = 1, beta = 1, gate -1, identity activation, memory fixed", _sum_rises),
            Search(
                "beta, the gate and x, integers in one dimension, eta = 1",
                st.tuples(ENTRY, ENTRY, ENTRY),
                violates=_each_falls_and_the_sum_rises,
                size=largest_entry,
                largest=1,
            ),
        ),
    )
    yield Claim(
        id="17-low-rank-definite",
        source="Sec. 2 (preconditioner)",
        statement="The preconditioner is a trainable low-rank positive-definite matrix.",
        formula="rank P < D and P > 0",
        proof=(
            "A matrix of rank below D has a null vector x, and x . P x = 0. What Eq. 12 and 13 print is a diagonal "
            "plus a low-rank term, of full rank; whether it is definite is another question (6-softplus-diagonal)."
        ),
        evidence=(
            Counterexample("D = 2, P = U U^T of rank one, U = (1, 1)", _low_rank_is_singular),
            Search(
                "U and x, integers, D = 2",
                st.tuples(PAIR, PAIR.filter(any)),
                violates=lambda c: dot(*c) ** 2 <= 0,
                size=largest_entry,
                largest=1,
            ),
        ),
    )


def _last_token(W_Q: Any, W_K: Any, h: Sequence[Any], eta: int, *, in_place: bool) -> list[Any]:
    """Algorithm 1 with T = 1, K = R = 1, tau = 1, as printed with its minus sign: the last token's output."""
    state = [list(v) for v in h]
    x: list[Any] = []
    for i in range(len(h)):
        memory = [_rms_norm(v) for v in (state if in_place else h)[: i + 1]]
        x = memory[i]
        query, keys = mpmath.fdot(W_Q, _rms_norm(x)), [mpmath.fdot(W_K, v) for v in memory]
        attended = mpmath.fdot(weights([query * key for key in keys]), keys)
        x = [a - eta * q * attended for a, q in zip(x, W_Q, strict=True)]
        state[: i + 1] = [*memory[:i], x]
    return x


def _rms_norm(v: Sequence[Any]) -> list[Any]:
    r = mpmath.sqrt(mpmath.fdot(v, v) / len(v))
    return [a / r for a in v] if r else list(v)


def _distance(W_Q: Any, W_K: Any, h_1: Any, h_2: Any, eta: int) -> Any:
    sequential, parallel = (_last_token(W_Q, W_K, (h_1, h_2), eta, in_place=in_place) for in_place in (True, False))
    return max(abs(a - b) for a, b in zip(sequential, parallel, strict=True))


def _in_place_differs() -> Working:
    W_Q, W_K, h, eta = (1, 1), (1, 0), ((1, 1), (1, -1)), 2
    with mpmath.workdps(30):
        first = _last_token(W_Q, W_K, h[:1], eta, in_place=True)
        before, after = mpmath.fdot(W_K, _rms_norm(h[0])), mpmath.fdot(W_K, _rms_norm(first))
        query, own = mpmath.fdot(W_Q, _rms_norm(h[1])), mpmath.fdot(W_K, _rms_norm(h[1]))
        parallel, sequential = (_last_token(W_Q, W_K, h, eta, in_place=in_place) for in_place in (False, True))
        same = parallel == sequential
        return working(
            f"W_Q = {shown(W_Q)}, W_K = {shown(W_K)}, h_1 = {shown(h[0])}, h_2 = {shown(h[1])}, eta = {eta}",
            f"token 1 goes to {shown(first)}; its key is {shown(before)} before, {shown(after)} after",
            f"token 2 has the query {shown(query)} and the key {shown(own)}, and attends to both tokens equally",
            f"in parallel: keys {shown((before, own))}, token 2 goes to {shown(parallel)}",
            f"in place: keys {shown((after, own))}, token 2 goes to {shown(sequential)}",
            f"both readings agree: {shown(sequential)} = {shown(parallel)} is {same}",
            comes_out=same,
        )


def _scores(betas: Sequence[Any], x: Any) -> list[Any]:
    return [b * x for b in betas]


def _field(betas: Sequence[Any], x: Any) -> Any:
    """F = -grad eps in one dimension."""
    return mpmath.fdot(weights(_scores(betas, x)), betas)


def _curvature(betas: Sequence[Any], x: Any) -> Any:
    """The second derivative of eps in one dimension: minus the variance of the betas."""
    a, mean = weights(_scores(betas, x)), _field(betas, x)
    return -mpmath.fsum(p * (b - mean) ** 2 for p, b in zip(a, betas, strict=True))


def _newton(betas: Sequence[Any], x: Any) -> Any:
    return x + _field(betas, x) / _curvature(betas, x)


def _newton_ascends() -> Working:
    betas, x = (1, -1), 1
    with mpmath.workdps(30):
        slope, curvature, y = -_field(betas, x), _curvature(betas, x), _newton(betas, x)
        before, after = energy(_scores(betas, x)), energy(_scores(betas, y))
        return working(
            f"patterns {shown(betas)}: eps(x) = -log(e^x + e^-x); at x = {x} its slope is {shown(slope)}, its second "
            f"derivative {shown(curvature)}",
            f"1 / (second derivative) = {shown(1 / curvature)}: every P > 0 is further from it than 0 is",
            f"Newton's step: x {x} -> {shown(y)}, energy {shown(before)} -> {shown(after)}",
            f"energy after <= energy before: {shown(after)} <= {shown(before)} is {bool(after <= before)}",
            comes_out=bool(after <= before),
        )


def _walk(betas: Sequence[Any], x: Any, steps: int) -> list[tuple[Any, Any]]:
    """The states of the plain recursion at eta = 1, one dimension, each with the step that leads on."""
    states = []
    for _ in range(steps):
        step = _field(betas, x)
        states.append((x, step))
        x = x + step
    return states


def _never_shorter(lengths: Sequence[Any]) -> bool:
    """Whether no step is shorter than the one before, and the first is one at all."""
    return bool(lengths[0] > BEYOND_ROUNDOFF) and all(b >= a - BEYOND_ROUNDOFF for a, b in pairwise(lengths))


def _no_fixed_point() -> Working:
    beta = eta = x = Fraction(1)
    states = [x + t * eta * beta for t in range(5)]
    stops = eta * beta == 0
    return working(
        f"beta = {beta}, one token: the softmax weight is 1, -grad eps = beta for every x, a step adds eta beta = "
        f"{eta * beta}",
        f"x^(0), x^(1), ...: {shown(tuple(states))}",
        f"a fixed point needs eta beta = 0: {eta * beta} = 0 is {stops}",
        comes_out=stops,
    )


def _leaves_the_fixed_point() -> Working:
    betas = (1, -1)
    with mpmath.workdps(30):
        walk = _walk(betas, mpmath.mpf(1) / 100, 12)
        lengths = [abs(step) for _, step in walk]
        approaches = not _never_shorter(lengths)
        return working(
            f"beta = {betas[0]} and {betas[1]}: a step adds tanh(x), and 0 is the only fixed point",
            *(f"x^({t}) = {shown(walk[t][0])}, step {shown(walk[t][1])}" for t in (0, 3, 6, 9, 11)),
            f"a step is shorter than the one before it: {approaches}",
            comes_out=approaches,
        )


def _field_is_monotone() -> Working:
    tau, s = sympy.Symbol("tau", positive=True), sympy.Symbol("s")
    at_x, v = sympy.symbols("s1:3", real=True), sympy.symbols("v1:3", real=True)
    raw = [sympy.exp((a + s * b) / tau) for a, b in zip(at_x, v, strict=True)]
    along = sum(r * b for r, b in zip(raw, v, strict=True)) / sum(raw)
    claimed = raw[0] * raw[1] * (v[0] - v[1]) ** 2 / sum(raw) ** 2 / tau
    text, same = simplified(sympy.diff(along, s) - claimed)
    return working(
        "s_j = beta_j . x, v_j = beta_j . v, a = softmax((s_j + s v_j) / tau): F(x + s v) . v = sum_j a_j v_j",
        "claimed: its slope in s is a_1 a_2 (v_1 - v_2)^2 / tau",
        f"slope minus claimed, simplified: {text}",
        comes_out=same,
    )


def _block(beta: int, gate: int, x: int) -> tuple[int, int, int]:
    """States before, between and after attention (eps = -beta x) and an MLP (xi = -gate x^2 / 2), eta = 1."""
    between = x + beta
    return x, between, between + gate * between


def _xi(gate: int, x: int) -> Fraction:
    return Fraction(-gate * x * x, 2)


def _each_falls_and_the_sum_rises(case: tuple[int, int, int]) -> bool:
    beta, gate, _ = case
    x, y, z = _block(*case)
    each = -beta * y <= -beta * x and _xi(gate, z) <= _xi(gate, y)
    return each and -beta * z + _xi(gate, z) > -beta * x + _xi(gate, x)


def _sum_rises() -> Working:
    beta, gate = 1, -1
    x, y, z = _block(beta, gate, 1)
    before, after = -beta * x + _xi(gate, x), -beta * z + _xi(gate, z)
    return working(
        f"beta = {beta}, gate = {gate}: eps = -beta x, xi = -gate x^2 / 2; eta = 1, below the MLP's safe step of "
        f"{Fraction(2, abs(gate))}",
        f"attention: x {x} -> {y}, eps {-beta * x} -> {-beta * y}",
        f"MLP: x {y} -> {z}, xi {_xi(gate, y)} -> {_xi(gate, z)}",
        f"sum: {before} -> {after}",
        f"sum after <= sum before: {after} <= {before} is {after <= before}",
        comes_out=after <= before,
    )


def _low_rank_is_singular() -> Working:
    U, x = (1, 1), (1, -1)
    P = [[a * b for b in U] for a in U]
    Px = moved((0, 0), [dot(row, x) for row in P])
    value = dot(x, Px)
    return working(
        f"U = {shown(U)}: P = U U^T = {P}, of rank 1",
        f"x = {shown(x)}: P x = {shown(Px)}",
        f"x . P x > 0: {value} > 0 is {value > 0}",
        comes_out=value > 0,
    )

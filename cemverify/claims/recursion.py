"""Claims about recursion, and about what the paper does not establish (docs/mathematics.md §12, §17)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

import mpmath
from hypothesis import strategies as st

from cemverify.claims.arguments import Instance, Search, Working, properties, working
from cemverify.claims.base import Claim, draft, slip
from cemverify.claims.exact import BEYOND_ROUNDOFF, DIGITS, ENTRY, GAIN, PAIR, energy, show, weights

_ETA = st.integers(1, 4).map(lambda n: Fraction(n, 2))


def claims() -> Iterator[Claim]:
    """Every claim about recursion, each with its arguments."""
    yield from _recursion()
    yield from _not_established()


# §12


def _recursion() -> Iterator[Claim]:
    yield Claim(
        id="12-steps-compose",
        source=draft("Eq. 3, 12", "x^(t+1) = x^(t) - eta Delta x(x^(t) | h), t = 0 .. T-1", "formula"),
        statement="T steps of recursion are T steps down one energy: the one-step map, T times, on the same memory.",
        formula="x^(t+1) = x^(t) - eta P grad eps(x^(t) | h), the same h for all t",
        finding="The memory does not move, so neither the energy nor the map depends on t.",
        advice="`for _ in range(T): x = x + eta * P @ F(x, memory)`",
        holds_for=partial(_steps_compose, memory="fixed"),
        arguments=(
            Search("two tokens, x and eta, integers and halves, one dimension", st.tuples(PAIR, ENTRY, _ETA)),
            properties(
                "recursion/attention/equals-descent",
                "recursion/mlp/equals-descent",
            ),
        ),
    )
    yield Claim(
        id="12-keys-once",
        source=draft("Sec. 2.3, Algorithm 1", "our approach updates only x_i^{(t)} and fix h_{1:i}"),
        statement=(
            "Keys are computed from the memory once, before the recursion; computing them anew changes nothing."
        ),
        formula="k_kj = W_K,k h_j does not depend on t",
        finding=(
            "h is fixed, and so are its keys. One-step calls compute them anew and compose to T steps; cached keys "
            "also serve later tokens."
        ),
        advice="compute the keys before the loop, and cache them for decoding",
        holds_for=partial(_keys_are_fixed, source="memory"),
        arguments=(
            Search("W_Q, W_K, h and eta in one dimension", st.tuples(ENTRY, ENTRY, ENTRY, _ETA)),
            properties("recursion/attention/equals-descent", "structure/decode/cached-equals-uncached-plain"),
        ),
    )
    yield Claim(
        id="12-not-reuse",
        source=draft(
            "Sec. 4.4, Fig. 3c, 4", "whether within-layer recursion is necessary or if naive layer reuse suffices"
        ),
        statement="T steps within a layer are not the same as the layer used T times.",
        formula="D = J = 1, T = 2: h (1 + 2 eta A) against h (1 + eta A)^2, A, h and eta not zero",
        finding=(
            "A layer used again reads its own output as its memory, so the energy of the second use is not that of "
            "the first. In one dimension with one token the difference is eta^2 A^2 h."
        ),
        advice="compare recursion with reuse at equal operations; neither stands for the other",
        holds_for=partial(_differs_from_reuse, tokens="own"),
        arguments=(
            Search(
                "A, h and eta not zero, one dimension, one token",
                st.tuples(ENTRY.filter(bool), ENTRY.filter(bool), _ETA),
            ),
            Instance("A = h = eta = 1", (1, 1, Fraction(1))),
            properties("recursion/attention/equals-descent", "recursion/mlp/equals-descent"),
        ),
    )


def _steps_compose(case: tuple[Any, int, Fraction], *, memory: str) -> Working:
    """Three steps against one step taken three times; a moving memory takes the state as its first token."""
    betas, x, eta = case
    with mpmath.workdps(DIGITS):
        step = mpmath.mpmathify(eta)
        at_once: Any = mpmath.mpf(x)
        for _ in range(3):
            at_once += step * _field(betas, at_once)
        one_by_one: Any = mpmath.mpf(x)
        for t in range(3):
            now = betas if memory == "fixed" or t == 0 else (one_by_one, *betas[1:])
            one_by_one += step * _field(now, one_by_one)
        same = abs(at_once - one_by_one) < mpmath.mpf("1e-20")
    return working(
        f"beta = {show(tuple(betas))}, x = {x}, eta = {eta}: three steps {show(at_once)}, one step three times, "
        f"memory {memory}, {show(one_by_one)}; the same: {bool(same)}",
        comes_out=same,
    )


def _keys_are_fixed(case: tuple[int, int, int, Fraction], *, source: str) -> Working:
    W_Q, W_K, h, eta = case
    x, keys = Fraction(h), []
    for _ in range(3):
        keys.append(W_K * (h if source == "memory" else x))
        x += eta * W_Q * keys[-1]  # one token: its weight is 1
    return working(
        f"W_Q = {W_Q}, W_K = {W_K}, h = {h}, eta = {eta}: keys at each step, from the {source}, "
        f"{', '.join(map(str, keys))}",
        comes_out=len(set(keys)) == 1,
    )


def _differs_from_reuse(case: tuple[int, int, Fraction], *, tokens: str) -> Working:
    A, h, eta = case
    once = h + eta * A * h
    recursion, reuse = once + eta * A * h, once + eta * A * (once if tokens == "own" else h)
    return working(
        f"A = {A}, h = {h}, eta = {eta}: {recursion} after two steps, {reuse} after two uses",
        comes_out=recursion != reuse,
    )


# §17: what is not established


def _not_established() -> Iterator[Claim]:
    yield Claim(
        id="17-in-place",
        source=slip("Algorithm 1, the loop over i", "h_{1:i} <- RMSNorm(h_{1:i})", "formula"),
        statement=(
            "Algorithm 1 normalises and overwrites h token by token, and yet treats all tokens alike, in parallel."
        ),
        formula="the update of token i reads N(h_1), ..., N(h_i) of the layer's input",
        finding=(
            "Read literally, the loop over i writes x_i back into h_i and normalises h_1..h_i again, so token i "
            "attends to earlier tokens that have already moved. That is sequential, cannot be trained in parallel, "
            "and is surely unintended."
        ),
        advice="write the outputs to a new tensor; all tokens read the same input",
        holds_for=partial(_is_parallel, read="literally"),
        arguments=(
            Instance("J = D = 2, K = R = 1, T = 1, eta = 2", ((1, 1), (1, 0), (1, 1), (1, -1), 2)),
            Search(
                "W_Q, W_K and two tokens, integers, and eta 1 or 2",
                st.tuples(PAIR, PAIR, PAIR.filter(any), PAIR.filter(any), st.integers(1, 2)),
            ),
        ),
    )
    yield Claim(
        id="17-newton",
        source=draft(
            "Sec. 2.3, on preconditioners",
            "trainable low-rank positive-definite matrices that approximate curvature information",
        ),
        statement="A positive-definite P can approximate the inverse Hessian: Newton's step lowers the energy.",
        formula="E(x - (Hess E)^-1 grad E) <= E(x)",
        condition=(
            "the energy curves upwards there: never for attention; for an MLP where its gates are negative, as with "
            "V = 1, W h = -1"
        ),
        within=lambda case: case[0] == "mlp" and case[1][0] < 0,
        finding=(
            "Attention's Hessian is negative semi-definite (4-any-step), and its inverse, where there is one, "
            "negative definite. Every positive definite P is further from that inverse than zero is, so P cannot "
            "approximate it, and Newton's own step heads for the maximum. The MLP's Hessian can be positive, and "
            "there the motivation holds. According to a report, v1 does not claim that P estimates the Hessian."
        ),
        advice="think of P as learned scaling; it is no second-order method for attention",
        holds_for=partial(_newton_lowers, sign=1),
        arguments=(
            Search(
                "an MLP with a negative gate, identity, V = 1",
                st.tuples(st.just("mlp"), st.tuples(st.integers(-4, -1)), ENTRY),
            ),
            Instance("attention: patterns 1 and -1, tau = 1, x = 1", ("attention", (1, -1), 1)),
            Search(
                "attention, two patterns and x; an MLP with a positive gate",
                st.one_of(
                    st.tuples(st.just("attention"), PAIR.filter(lambda p: p[0] != p[1]), st.integers(-2, 2)),
                    st.tuples(st.just("mlp"), st.tuples(GAIN), ENTRY),
                ),
                outside=True,
            ),
        ),
    )
    yield Claim(
        id="17-one-step",
        source=draft(
            "Sec. 2.3",
            "A single gradient descent step is often insufficient to reach a low-energy state.",
            "sentence",
        ),
        statement="One gradient step seldom reaches a state of low energy.",
        formula="eps(x^(1)) is far from low",
        finding=(
            "The paper does not say what counts as low, nor for which layers. Attention's energy without a norm has "
            "no lowest value (4-minimum), and the MLP's has one for some gates only."
        ),
        advice="log the energy after each step of your trained layers, and see what a further step still gains",
    )
    yield Claim(
        id="17-more-steps",
        source=draft("Sec. 2, on recursion", "better minimize its energy"),
        statement="More recursion steps lower a layer's energy further.",
        formula="eps(x^(T+1)) <= eps(x^(T)), xi(x^(T+1)) <= xi(x^(T))",
        condition="attention with one P for all heads, at any step size; the MLP below its safe step (9-safe-step)",
        within=lambda case: case[0] == "attention" or case[3] * max(0, -case[1][0]) <= 2,
        finding=(
            "Each step lowers the energy, so more steps lower it further. For the MLP a long step may overshoot, "
            "and every further one makes it worse. Nothing follows for the model's loss."
        ),
        advice="log the energy after each step; it must not rise for attention",
        holds_for=partial(_more_steps_lower, sign=1),
        arguments=(
            Search(
                "attention with two tokens and an MLP with one unit, one dimension, four steps",
                st.one_of(
                    st.tuples(st.just("attention"), PAIR, ENTRY, _ETA),
                    st.tuples(st.just("mlp"), st.tuples(ENTRY), ENTRY, _ETA),
                ),
            ),
            properties("descent/attention/along-steps", "descent/mlp/along-steps"),
            Instance("an MLP, identity, V = 1, W h = -3, eta = 1", ("mlp", (-3,), 1, Fraction(1))),
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


def _is_parallel(case: tuple[Any, Any, Any, Any, int], *, read: str) -> Working:
    W_Q, W_K, h_1, h_2, eta = case
    with mpmath.workdps(DIGITS):
        parallel, sequential = (
            _last_token(W_Q, W_K, (h_1, h_2), eta, in_place=in_place) for in_place in (False, read == "literally")
        )
        same = max(abs(a - b) for a, b in zip(parallel, sequential, strict=True)) < BEYOND_ROUNDOFF
    return working(
        f"W_Q = {show(W_Q)}, W_K = {show(W_K)}, h_1 = {show(h_1)}, h_2 = {show(h_2)}, eta = {eta}",
        f"token 2 goes to {show(parallel)} in parallel, to {show(sequential)} as read {read}; the same: {bool(same)}",
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


def _newton_lowers(case: tuple[str, Any, int], *, sign: int) -> Working:
    layer, of, at = case
    with mpmath.workdps(DIGITS):
        x = mpmath.mpf(at)
        if layer == "attention":
            slope, curvature = -_field(of, x), _curvature(of, x)
        else:
            slope, curvature = -of[0] * x, mpmath.mpf(-of[0])
        y = x - sign * slope / curvature
        before, after = (_energy(layer, of, z) for z in (x, y))
        falls = after <= before + BEYOND_ROUNDOFF
    return working(
        f"{layer}, {'beta' if layer == 'attention' else 'gate'} = {show(tuple(of))}, x = {at}: slope {show(slope)}, "
        f"second derivative {show(curvature)}",
        f"x -> {show(y)}, energy {show(before)} -> {show(after)}; not higher: {bool(falls)}",
        comes_out=falls,
    )


def _energy(layer: str, of: Any, x: Any) -> Any:
    """One dimension: attention over tokens with these beta, or an MLP of one unit, identity, V = 1, with this
    gate."""
    return energy(_scores(of, x)) if layer == "attention" else -of[0] * x * x / 2


def _more_steps_lower(case: tuple[str, Any, int, Fraction], *, sign: int) -> Working:
    layer, of, at, eta = case
    with mpmath.workdps(DIGITS):
        x, step = mpmath.mpf(at), mpmath.mpmathify(eta)
        energies = [_energy(layer, of, x)]
        for _ in range(4):
            x += sign * step * (_field(of, x) if layer == "attention" else of[0] * x)
            energies.append(_energy(layer, of, x))
        falls = all(b <= a + BEYOND_ROUNDOFF for a, b in pairwise(energies))
    return working(
        f"{layer}, {'beta' if layer == 'attention' else 'gate'} = {show(tuple(of))}, x = {at}, eta = {eta}",
        f"energies {', '.join(show(e) for e in energies)}; never higher: {falls}",
        comes_out=falls,
    )

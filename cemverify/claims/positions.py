"""Claims about positions: biases on the scores, and rotary embeddings (docs/mathematics.md §8, §13)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import mpmath
import sympy
import torch
from hypothesis import strategies as st

from cemverify.cem.energies import Interaction
from cemverify.cem.positions import Rotary
from cemverify.cem.presets import CONTEXT, SIZES
from cemverify.claims.arguments import Figures, Instance, Lemma, Search, Symbols, Working, properties, working
from cemverify.claims.base import Claim, draft, ours, slip
from cemverify.claims.exact import DIGITS


def claims() -> Iterator[Claim]:
    """Every claim about positions, each with its arguments."""
    yield from _bias_claims()
    yield from _rotary_claims()


def _bias_claims() -> Iterator[Claim]:
    yield Claim(
        id="8-alibi-sign",
        source=slip("text on positions", "+m|i-j|", "formula"),
        statement="The ALiBi bias as printed is a penalty on distance.",
        formula="b_ijk = +m_k |i - j|, m_k > 0: other things equal, the further token gets no more weight",
        finding=(
            "It is a reward. With equal contents the weights are proportional to exp(m |i - j|), which grows with "
            "the distance: among 2048 tokens the first gets 0.39 of the weight and the token itself nothing. Press "
            "et al. have a minus sign."
        ),
        advice="`bias = -slopes[:, None, None] * (i - j).abs()`",
        holds_for=partial(_penalises, sign=1),
        arguments=(
            Instance("zero content, slope 1/2, the last of three tokens", (3, Fraction(1, 2))),
            Instance("the last of 2048", (2048, Fraction(1, 2))),
            Search(
                "number of tokens and slope, zero content",
                st.tuples(st.integers(1, 9), st.integers(1, 9).map(lambda n: Fraction(n, 4))),
            ),
        ),
    )
    yield Claim(
        id="8-alibi-overhead",
        source=draft("App. A", "This adds negligible overhead compared to RoPE"),
        statement="ALiBi adds a negligible amount of computation, taken here as at most 2 % of attention's.",
        formula="n K additions of a bias for each token <= (2 D^2 + 4 D^2 + 4 n D) / 50 at T = 1 and n keys",
        finding=(
            "It takes one addition per score, while a score and its share of the output take 4 R operations. In a "
            "long context this is more than RoPE takes to rotate queries and keys, but both are negligible."
        ),
        advice="choose between them by quality, not by cost",
        holds_for=partial(_bias_costs, at_most=Fraction(1, 50)),
        arguments=(Figures("the model sizes of Table 1, a full context", tuple(SIZES)),),
    )
    yield Claim(
        id="8-bias-gradient",
        source=draft(
            "App. A", "modifies the logits before normalization but leaves the overall gradient structure unchanged"
        ),
        statement="With a bias on the scores, the update is still a gradient step.",
        formula="-grad [-tau sum_k log sum_j exp(beta_kj . x / tau + b_ijk)] = sum_k sum_j a_kij beta_kj",
        finding=(
            "The bias does not depend on x, so the exponents stay affine in x, §4 applies unchanged, and steps of "
            "every size descend."
        ),
        advice="add the bias to the scores and nowhere else",
        holds_for=partial(_biased_gradient, bias="constant"),
        arguments=(
            Symbols("two tokens, D = 1, everything a letter"),
            properties(
                "gradient/attention/alibi",
                "gradient/attention/stated-energy-alibi",
                "descent/attention/any-step-size-with-diagonal-and-bias",
                "structure/decode/cached-equals-uncached-alibi",
            ),
        ),
    )


def _rotary_claims() -> Iterator[Claim]:
    yield Claim(
        id="13-rotary-gradient",
        source=ours("the text on positions"),
        rests=("finding 8", "cemverify.cem.positions.Rotary", "gradient/attention/rotary"),
        statement=(
            "With rotary positions the gradient is attention whose values are the rotated keys and whose output is "
            "rotated back by the query's own position."
        ),
        formula="-grad eps = sum_k W_Q^T R(i)^T sum_j a_kij [R(j) W_K h_j]",
        finding=(
            "beta_kij = W_Q^T R(i)^T R(j) W_K h_j does not depend on x, so the gradient is -sum a beta; the factor "
            "W_Q^T R(i)^T is common to all j and leaves the sum."
        ),
        advice="`k = rotate(W_K @ h); out = W_Q.T @ rotate_back(sdpa(rotate(W_Q @ x), k, k))`",
        holds_for=partial(_rotary_gradient, back=True),
        arguments=(
            Symbols("R = D = 2, two tokens, weights and angle letters"),
            properties(
                "gradient/attention/rotary",
                "gradient/attention/rotary-with-shared-diagonal",
                "structure/decode/cached-equals-uncached-rotary",
            ),
        ),
    )
    yield Claim(
        id="13-rope-memory",
        source=draft("text on positions", "substantially increases memory costs"),
        statement="Rotary positions need memory for every query, and so substantially more memory.",
        formula="numbers kept for the gradient with rotary positions > without",
        finding=(
            "They need no more. beta_kij depends on the query i, but only through R(i)^T, which is applied once to "
            "the summed output. Only the rotated keys are kept, as many numbers as without rotation; they are the "
            "values too."
        ),
        advice="CEM attention can use RoPE: cache the rotated keys, and rotate the output back",
        holds_for=partial(_needs_more, stored="as written"),
        arguments=(
            Instance("the reference, two heads in two dimensions each, two tokens", (2, 2, 1)),
            Search("heads, tokens and half the head dimension", st.tuples(*[st.integers(1, 4)] * 3), examples=60),
            Lemma("the keys kept give the gradient (13-rotary-gradient)", partial(_rotary_gradient, None, back=True)),
        ),
    )


# --- biases ---------------------------------------------------------------------------------------


def _penalises(case: tuple[int, Fraction], *, sign: int) -> Working:
    tokens, slope = case
    with mpmath.workdps(DIGITS):
        m = sign * mpmath.mpmathify(slope)
        powers = [mpmath.exp(m * (tokens - j)) for j in range(1, tokens + 1)]
        total = mpmath.fsum(powers)
        first, last = powers[0] / total, powers[-1] / total
        penalised = first <= last
    return working(
        f"beta . x = 0 for all {tokens} tokens, m = {slope}, query {tokens}, bias "
        f"{'+' if sign > 0 else '-'}m |i - j|",
        f"weight of the furthest {mpmath.nstr(first, 3)}, of the token itself {mpmath.nstr(last, 3)}; no more: "
        f"{bool(penalised)}",
        comes_out=penalised,
    )


def _bias_costs(names: Sequence[str], *, at_most: Fraction) -> Working:
    """Each token attends to a full context; RoPE takes 3 operations per entry of queries and keys."""
    lines, fits = [], True
    for name in names:
        size = SIZES[name]
        added = CONTEXT * size.heads
        share = Fraction(added, 6 * size.dim**2 + 4 * CONTEXT * size.dim)
        rotating = 2 * 3 * size.dim
        fits = fits and share <= at_most
        lines.append(
            f"{name}: {added:,} additions for each token, {float(share):.2%} of attention; RoPE takes {rotating:,}"
        )
    return working(*lines, f"at most {float(at_most):.2%}: {fits}", comes_out=fits)


def _biased_gradient(_: Any, *, bias: str) -> Working:
    x, tau = sympy.symbols("x tau", positive=True)
    beta, b = sympy.symbols("beta1:3", real=True), sympy.symbols("b1:3", real=True)
    biases = b if bias == "constant" else tuple(v * x for v in b)
    raw = [sympy.exp(p * x / tau + v) for p, v in zip(beta, biases, strict=True)]
    attended = sum(r * p for r, p in zip(raw, beta, strict=True)) / sum(raw)
    difference = sympy.simplify(sympy.diff(tau * sympy.log(sum(raw)), x) - attended)
    return working(
        f"exponents {[str(sympy.log(r)) for r in raw]}",
        f"-grad eps - sum_j a_j beta_j, simplified: {difference}",
        comes_out=difference == 0,
    )


# --- rotary ---------------------------------------------------------------------------------------


def _turn(angle: sympy.Expr) -> sympy.Matrix:
    return sympy.Matrix([[sympy.cos(angle), -sympy.sin(angle)], [sympy.sin(angle), sympy.cos(angle)]])


def _plane(name: str) -> sympy.Matrix:
    return sympy.Matrix(sympy.symbols(f"{name}_1:3", real=True))


def _rotary_gradient(_: Any, *, back: bool) -> Working:
    angle = sympy.Symbol("theta", positive=True)
    W_Q = sympy.Matrix(2, 2, sympy.symbols("q1:3(1:3)", real=True))
    W_K = sympy.Matrix(2, 2, sympy.symbols("k1:3(1:3)", real=True))
    x, h = _plane("x"), {j: _plane(f"h{j}") for j in (1, 2)}
    keys = {j: _turn(j * angle) * W_K * h[j] for j in h}  # all that is stored; it does not depend on the query
    lines, zero = [], []
    for i in (1, 2):
        query = _turn(i * angle) * W_Q * x
        for j in range(1, i + 1):
            slope = sympy.Matrix([query.dot(keys[j])]).jacobian(x).T
            stated = W_Q.T * (_turn(i * angle).T if back else sympy.eye(2)) * keys[j]
            off = (slope - stated).applyfunc(sympy.expand)
            zero.append(off == sympy.zeros(2, 1))
            lines.append(f"i = {i}, j = {j}: zero is {zero[-1]}")
    return working(
        "eps_i = -tau log sum_{j<=i} exp(s_ij / tau), s_ij = (R(i) W_Q x) . (R(j) W_K h_j), R(i) a turn by i theta",
        "-grad eps_i = sum_j a_ij grad s_ij, the a_ij its softmax weights (1-gradient); kept are the R(j) W_K h_j",
        f"grad s_ij - W_Q^T {'R(i)^T ' if back else ''}[R(j) W_K h_j]:",
        *lines,
        comes_out=all(zero),
    )


def _cached(heads: int, tokens: int, half: int, *, rotary: Rotary | None = None) -> int:
    """How many numbers the reference stores for one row; head dimension 2 * half."""
    weights = torch.empty(heads, 2 * half, heads * 2 * half, device="meta")
    energy = Interaction(weights, weights, temperature=1.0, rotary=rotary)
    memory = energy.remember(torch.empty(1, tokens, heads * 2 * half, device="meta"))
    assert memory.states is None
    return memory.keys.numel()


def _needs_more(case: tuple[int, int, int], *, stored: str) -> Working:
    rotated, plain = _cached(*case, rotary=Rotary()), _cached(*case)
    more = rotated > plain
    return working(
        f"{case[0]} heads of dimension {2 * case[2]}, {case[1]} tokens: {rotated} numbers kept with rotary "
        f"positions, {plain} without",
        comes_out=more if stored == "as written" else not more,
    )

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
from cemverify.cem.positions import Rotary, alibi_slopes
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
            "the distance: at 2048 tokens the first gets 0.39 and the token itself nothing. Press et al. have a "
            "minus sign."
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
        statement="ALiBi adds a negligible amount of computation, taken here as at most one in fifty of attention's.",
        formula="n K additions of a bias for each token <= (2 D^2 + 4 D^2 + 4 n D) / 50 at T = 1 and n keys",
        finding=(
            "One addition for each score, where a score and its share of the output take 4 R operations. Where a "
            "context is long, these are more additions than RoPE takes to rotate queries and keys: both are "
            "negligible."
        ),
        advice="choose between them by quality, not by cost",
        holds_for=partial(_bias_costs, at_most=Fraction(1, 50)),
        arguments=(Figures("the model sizes of Table 1, a full context", tuple(SIZES)),),
    )
    yield Claim(
        id="8-alibi-slopes",
        source=ours('the text on positions, which gives the slopes as typical ("e.g.")'),
        statement="The slopes 2^-k, k = 1..K, are ALiBi's.",
        formula="{2^-k : k = 1..K} = the slopes of Press et al. for K heads",
        condition="K = 8, which is one of the four models of Table 1; the other three have K = 12",
        within=lambda K: K == 8,
        finding=(
            "For a power of two Press et al. take 2^(-8k/K), whose first exponent 8/K is 1 only for K = 8. Any other "
            "K takes the slopes of the power of two below it, and then every second one of twice that power. The "
            "paper gives 2^-k as an example and is not wrong; for K = 12 it is a choice of its own."
        ),
        advice="state which slopes you use at K = 12; `cemverify.cem.positions.alibi_slopes` are Press's",
        holds_for=partial(_slopes_agree, base=1),
        arguments=(
            Figures("K = 8, exponents", 8),
            Instance("K = 12, as in Table 1", 12),
            Search("number of heads, any but 8", st.integers(1, 64), outside=True),
        ),
    )
    yield Claim(
        id="8-self-cross",
        source=ours('App. A, "a learnable bias"'),
        statement=(
            "Of the bias on a token's own score and the bias on all others only the difference acts: shifting both "
            "by c moves the energy by -tau K c and leaves the gradient as it is."
        ),
        formula="eps(x; b + c) = eps(x; b) - tau K c,  grad eps(x; b + c) = grad eps(x; b)",
        finding=(
            "Each head's sum of exponentials gains the factor exp(c), its logarithm the summand c. A token that sees "
            "only itself feels neither bias. The paper calls the bias learnable and does not say that its two parts "
            "can be told apart."
        ),
        advice="learn one number per head, b_self - b_cross",
        holds_for=partial(_shift_is_invisible, on="both"),
        arguments=(
            Symbols("two heads, two tokens, all quantities letters"),
            properties("gradient/attention/self-cross-bias"),
        ),
    )
    yield Claim(
        id="8-bias-gradient",
        source=draft(
            "App. A", "modifies the logits before normalization but leaves the overall gradient structure unchanged"
        ),
        statement="With a bias on the scores the update is still a gradient step.",
        formula="-grad [-tau sum_k log sum_j exp(beta_kj . x / tau + b_ijk)] = sum_k sum_j a_kij beta_kj",
        finding=(
            "The bias does not depend on x: the terms in the exponent stay affine in x, so that §4 applies "
            "unchanged, and every step size descends."
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
        statement="Rotary positions need memory for every query, and so substantially more of it.",
        formula="numbers kept for the gradient with rotary positions > without",
        finding=(
            "They need none. beta_kij depends on the query i, but only through R(i)^T, which is applied once to the "
            "summed output. What is kept are the rotated keys, as many numbers as there are without rotation, and "
            "they serve as values too."
        ),
        advice="RoPE is open to CEM attention: cache the rotated keys, and turn the output back",
        holds_for=partial(_needs_more, stored="as written"),
        arguments=(
            Instance("the reference, two heads in two dimensions each, two tokens", (2, 2, 1)),
            Search("heads, tokens and half the head dimension", st.tuples(*[st.integers(1, 4)] * 3), examples=60),
            Lemma("quarter turns, two tokens in the plane: the keys kept give the gradient", _cached_keys_suffice),
        ),
    )
    yield Claim(
        id="13-unrotated-values",
        source=ours("the text on positions, which says the opposite"),
        statement="Weight-tied attention with rotated queries and keys and unrotated values is a gradient in x.",
        formula="the Jacobian of W_Q^T sum_j a_ij W_K h_j in x is symmetric",
        finding=(
            "It is not, as the paper says too. The Jacobian is W_Q^T Cov(value, rotated key) W_Q / tau, a covariance "
            "of two different things. With the rotated-back key as value it is a covariance of one thing with itself."
        ),
        advice="do not reuse a standard RoPE attention kernel with v = k unrotated",
        holds_for=partial(_values_are_conservative, rotated=False),
        arguments=(
            Instance("the second of two tokens in the plane, W_Q = W_K = I, x = 0", (1, 0, 0, 0)),
            Search(
                "two tokens in the plane, integers, quarter turns, equal logits", st.tuples(*[st.integers(-3, 3)] * 4)
            ),
            Lemma("differentiating the softmax gives that Jacobian", _jacobian_by_definition),
        ),
    )
    yield Claim(
        id="13-rotary-concave",
        source=ours("the text on positions"),
        statement="With rotary positions the energy is still concave in x.",
        formula="z . Hess eps(x_i) z = -(1/tau) sum_{j<l} a_ij a_il (z . (beta_ij - beta_il))^2 <= 0",
        finding="beta_ij depends on i and j but not on x, so eps is minus a log-sum-exp of functions linear in x.",
        advice="every step size descends with RoPE, as without",
        holds_for=partial(_rotary_concave, sign=-1),
        arguments=(Symbols("three tokens in the plane, the angle a letter, query at the third"),),
    )


# --- biases ---------------------------------------------------------------------------------------


def _penalises(case: tuple[int, Fraction], *, sign: int) -> Working:
    tokens, slope = case
    with mpmath.workdps(DIGITS):
        m = sign * mpmath.mpf(slope.numerator) / slope.denominator
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


def _press_exponents(heads: int) -> list[Fraction]:
    """e of the slopes 2^-e of Press et al., for any number of heads."""
    below = 1 << (heads.bit_length() - 1)
    above = [Fraction(8 * k, 2 * below) for k in range(1, 2 * below + 1)]
    return [Fraction(8 * k, below) for k in range(1, below + 1)] + above[0::2][: heads - below]


def _bias_costs(names: Sequence[str], *, at_most: Fraction) -> Working:
    """Each token attends to all of a full context; RoPE takes 3 operations for each entry of queries and keys."""
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


def _slopes_agree(heads: int, *, base: int) -> Working:
    press, stated = _press_exponents(heads), [Fraction(base * k) for k in range(1, heads + 1)]
    runs = alibi_slopes(heads) == [2.0 ** -float(e) for e in press]
    return working(
        f"K = {heads}, stated: 2^-e with e = {', '.join(map(str, stated))}",
        f"Press et al.: e = {', '.join(map(str, press))}; the reference's are these: {runs}",
        f"the same: {sorted(press) == stated}",
        comes_out=sorted(press) == stated and runs,
    )


def _shift_is_invisible(_: Any, *, on: str) -> Working:
    heads = 2
    shift = sympy.Symbol("e^c", positive=True)
    cross, own = sympy.symbols("C1:3", positive=True), sympy.symbols("S1:3", positive=True)
    factors, moves = [], []
    for C, S in zip(cross, own, strict=True):
        shifted = (C * shift if on == "both" else C), S * shift
        factors.append(sympy.cancel(sum(shifted) / (C + S)))
        moves.append(sympy.cancel(shifted[0] / sum(shifted) - C / (C + S)))
    return working(
        "C = exp(beta_1 x / tau + b_cross), S = exp(beta_2 x / tau + b_self); eps = -tau sum_k log(C_k + S_k)",
        f"a shift by c multiplies the sums by {factors}: the energy moves by -tau c for each of {heads} heads if "
        "by e^c",
        f"the weight C / (C + S), and with it the gradient, changes by {moves}",
        "a token that sees only itself has the weight S / S = 1, whatever the bias",
        comes_out=all(f == shift for f in factors) and not any(moves),
    )


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


def _quarter_turn(times: int) -> sympy.Matrix:
    return _turn(times * sympy.pi / 2)


def _plane(name: str) -> sympy.Matrix:
    return sympy.Matrix(sympy.symbols(f"{name}_1:3", real=True))


def _rotary_gradient(_: Any, *, back: bool) -> Working:
    angle = sympy.Symbol("theta", positive=True)
    W_Q = sympy.Matrix(2, 2, sympy.symbols("q1:3(1:3)", real=True))
    W_K = sympy.Matrix(2, 2, sympy.symbols("k1:3(1:3)", real=True))
    x, h = _plane("x"), {j: _plane(f"h{j}") for j in (1, 2)}
    keys = {j: _turn(j * angle) * W_K * h[j] for j in h}  # all that is kept: it knows of no query
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
    """How many numbers the reference keeps of one row; head dimension 2 * half."""
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


def _cached_keys_suffice() -> Working:
    h = {1: sympy.Matrix([1, 0]), 2: sympy.Matrix([0, 2])}
    x = _plane("x")
    cached = {j: _quarter_turn(j) * h[j] for j in h}
    lines, suffices = [], True
    for i in (1, 2):
        betas = {j: _quarter_turn(i).T * _quarter_turn(j) * h[j] for j in range(1, i + 1)}  # depend on i and j
        energy = -sympy.log(sum(sympy.exp(b.dot(x)) for b in betas.values()))
        derivative = -sympy.Matrix([energy]).jacobian(x).T.subs(dict.fromkeys(x, 0))
        attended = sum((cached[j] for j in betas), sympy.zeros(2, 1)) / len(betas)  # x = 0: equal weights
        from_cached = _quarter_turn(i).T * attended
        suffices = suffices and derivative == from_cached
        lines.append(
            f"i = {i}: -grad eps = {list(derivative)}; R({i})^T (mean of what is kept) = {list(from_cached)}"
        )
    return working(
        "one head, W_Q = W_K = I, tau = 1, R(j) a turn by j quarters, h_1 = (1, 0), h_2 = (0, 2), x = 0",
        "kept: " + "; ".join(f"R({j}) h_{j} = {list(k)}" for j, k in cached.items()),
        *lines,
        comes_out=suffices,
    )


def _values_are_conservative(case: Sequence[int], *, rotated: bool) -> Working:
    """d/dx of a_1 v_1 + a_2 v_2 at x = 0, the second token's logits being x . (R(1 - 2) h_1) and x . h_2."""
    h_1, h_2 = sympy.Matrix(case[:2]), sympy.Matrix(case[2:])
    beta = _quarter_turn(-1) * h_1
    value = beta if rotated else h_1
    jacobian = (value - h_2) * (beta - h_2).T / 4  # a_1 = a_2 = 1/2: sum_j a_j v_j (beta_j - mean beta)^T
    symmetric = jacobian[0, 1] == jacobian[1, 0]
    return working(
        f"h_1 = {list(h_1)}, h_2 = {list(h_2)}, tau = 1, a quarter turn between them; values {list(value)} and h_2",
        f"beta_1 = R(-1) h_1 = {list(beta)}, beta_2 = h_2; logits at x = 0 are 0, weights 1/2",
        f"Jacobian (v_1 - h_2)(beta_1 - beta_2)^T / 4 = {jacobian.tolist()}, symmetric: {bool(symmetric)}",
        comes_out=symmetric,
    )


def _jacobian_by_definition() -> Working:
    h_1, h_2, x = sympy.Matrix((1, 0)), sympy.Matrix((0, 0)), _plane("x")
    beta = _quarter_turn(-1) * h_1
    powers = [sympy.exp(x.dot(beta)), sympy.exp(x.dot(h_2))]
    update = (powers[0] * h_1 + powers[1] * h_2) / sum(powers)
    defined = update.jacobian(x).subs(dict.fromkeys(x, 0))
    closed = (h_1 - h_2) * (beta - h_2).T / 4
    return working(f"{defined.tolist()} = {closed.tolist()} is {defined == closed}", comes_out=defined == closed)


def _rotary_concave(_: Any, *, sign: int) -> Working:
    angle, tau = sympy.symbols("theta tau", positive=True)
    x, z = _plane("x"), _plane("z")
    beta = [_turn((j - 3) * angle) * _plane(f"h{j}") for j in (1, 2, 3)]
    constant = not any(b.has(*x) for b in beta)
    # E_j = exp(beta_j . x / tau) and v_j = beta_j . z: along z, E_j has the derivative E_j v_j / tau
    E, v = sympy.symbols("E1:4", positive=True), sympy.symbols("v1:4", real=True)
    total = sum(E)
    mean = sum(e * w for e, w in zip(E, v, strict=True)) / total
    curvature = -(sum(e * w * w for e, w in zip(E, v, strict=True)) / total - mean**2) / tau
    squares = sum(E[j] * E[i] * (v[j] - v[i]) ** 2 for j in range(3) for i in range(j)) / total**2
    off = sympy.expand(sympy.together((curvature - sign * squares / tau) * tau * total**2))
    off = sympy.simplify(off)
    return working(
        "beta_3j = R(3)^T R(j) h_j, R(i) a turn by i theta, W_Q = W_K = I (they enter beta alone)",
        f"beta depends on x is {not constant}; so along z the second derivative is minus a variance of the v_j "
        "over tau",
        f"with v_j = beta_3j . z, {z.T.tolist()[0]}: tau total^2 (second derivative {'+' if sign < 0 else '-'} "
        f"(1/tau) sum_(j<l) a_j a_l (v_j - v_l)^2) = {off}",
        comes_out=off == 0 and constant,
    )

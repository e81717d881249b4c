"""Claims about positions: biases on the scores, and rotary embeddings (docs/mathematics.md §8, §13)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import mpmath
import sympy
import torch
from hypothesis import strategies as st

from cemverify.cem.energies import Interaction
from cemverify.cem.positions import Rotary, alibi_slopes
from cemverify.claims.base import Claim
from cemverify.claims.evidence import Counterexample, Derivation, Properties, Search, Working, working


def claims() -> Iterator[Claim]:
    """The sections' claims."""
    yield from _bias_claims()
    yield from _rotary_claims()


def _bias_claims() -> Iterator[Claim]:
    yield Claim(
        id="8-alibi-sign",
        source="text on positions",
        statement="The ALiBi bias as printed, with a plus sign, is a penalty on distance.",
        formula="b_ijk = +m_k |i - j|, m_k > 0: other things equal, the further token gets no more weight",
        proof=(
            "With equal contents the weights are proportional to exp(m |i - j|), which grows with the distance. "
            "Press et al. have a minus sign; that is a penalty."
        ),
        evidence=(
            Counterexample("zero content, slope 1/2, the last of three tokens and of 2048", _printed_sign_rewards),
            Search(
                "number of tokens and slope in units of ln 2, zero content",
                st.tuples(st.integers(1, 5), st.integers(1, 5)),
                violates=lambda c: _last_token(*c)[0] > _last_token(*c)[-1],
                size=max,
                largest=3,
            ),
        ),
    )
    yield Claim(
        id="8-alibi-slopes",
        source="text on positions, Table 1",
        statement="The printed slopes 2^-k, k = 1..K, are ALiBi's.",
        formula="{2^-k : k = 1..K} = the slopes of Press et al. for K heads",
        condition="K = 8, which is one of the four models of Table 1; the other three have K = 12",
        proof=(
            "For a power of two Press et al. take 2^(-8k/K), whose first exponent 8/K is 1 only for K = 8. Any other "
            "K takes the slopes of the power of two n below it, and then every second one of 2n. For n = 8 those "
            "that follow begin with 2^(-1/2), for n > 8 the first is 2^(-8/n), neither an integer power; for n < 8 "
            "the last of the n is 2^-8 with 8 > K."
        ),
        evidence=(
            Derivation("K = 8 agrees, as exponents, and of K = 1..64 no other does", _slopes_agree_at_eight),
            Counterexample("K = 12, as in Table 1", _slopes_at_twelve),
            Search(
                "number of heads",
                st.integers(1, 16),
                violates=lambda K: sorted(_press_exponents(K)) != _printed_exponents(K),
                size=float,
                largest=12,
            ),
        ),
    )
    yield Claim(
        id="8-self-cross",
        source="Sec. 2.3",
        statement="The bias on a token's own score and the bias on all the others are two parameters of the update.",
        formula="(b_self, b_cross) -> x^(1) is one to one",
        proof="Softmax weights do not change when all scores move alike, so only b_self - b_cross can be seen.",
        evidence=(
            Counterexample("two pairs of biases that differ by (1, 1), three tokens", _biases_are_one_parameter),
            Search(
                "two different pairs of integer biases in units of ln 2, three tokens with scores 0, 1, 2",
                st.tuples(*(st.integers(-3, 3) for _ in range(4))),
                violates=lambda c: c[:2] != c[2:] and _biased(c[0], c[1]) == _biased(c[2], c[3]),
                size=lambda c: max(map(abs, c)),
                largest=2,
            ),
        ),
    )
    yield Claim(
        id="8-common-shift",
        source="ours",
        statement=(
            "Shifting both biases by c moves the energy by -tau K c and leaves the gradient as it is; a token that "
            "sees only itself feels neither bias."
        ),
        formula="eps(x; b + c) = eps(x; b) - tau K c,  grad eps(x; b + c) = grad eps(x; b)",
        proof="Each head's sum of exponentials gains the factor exp(c), its logarithm the summand c.",
        evidence=(
            Derivation("two heads, two tokens, all quantities symbols", _common_shift),
            Properties(("gradient/attention/self-cross-bias",), examples=20),
        ),
    )
    yield Claim(
        id="8-bias-gradient",
        source="App. A",
        statement=(
            "With a bias on the scores the update is still a gradient step, and still descends at every step size."
        ),
        formula="-grad [-tau sum_k log sum_j exp(beta_kj . x / tau + b_ijk)] = sum_k sum_j a_kij beta_kj",
        proof=(
            "The bias does not depend on x: the terms in the exponent stay affine in x, so that §4 applies unchanged."
        ),
        evidence=(
            Properties(
                (
                    "gradient/attention/alibi",
                    "gradient/attention/stated-energy-alibi",
                    "descent/attention/any-step-size-with-diagonal-and-bias",
                    "structure/decode/cached-equals-uncached-alibi",
                ),
                examples=20,
            ),
        ),
    )


def _rotary_claims() -> Iterator[Claim]:
    yield Claim(
        id="13-rotary-gradient",
        source="ours",
        statement=(
            "With rotary positions the gradient is attention whose values are the rotated keys and whose output is "
            "rotated back by the query's own position."
        ),
        formula="-grad eps = sum_k W_Q^T R(i)^T sum_j a_kij [R(j) W_K h_j]",
        proof=(
            "beta_kij = W_Q^T R(i)^T R(j) W_K h_j does not depend on x, so the gradient is -sum a beta; the factor "
            "W_Q^T R(i)^T is common to all j and leaves the sum."
        ),
        evidence=(
            Derivation("R = D = 2, two tokens, symbolic weights and angle", _rotary_gradient),
            Properties(
                (
                    "gradient/attention/rotary",
                    "gradient/attention/rotary-with-shared-diagonal",
                    "structure/decode/cached-equals-uncached-rotary",
                ),
                examples=20,
            ),
        ),
    )
    yield Claim(
        id="13-rope-memory",
        source="text on positions",
        statement="Rotary positions need memory for every query, and so substantially more of it.",
        formula="numbers kept for the gradient with rotary positions > without",
        proof=(
            "beta_kij depends on the query i, but only through R(i)^T, which is applied once to the summed output. "
            "What is kept are the rotated keys, as many numbers as there are without rotation, and they serve as "
            "values too."
        ),
        evidence=(
            Counterexample("quarter turns, two tokens in the plane: four numbers suffice", _rotary_memory),
            Search(
                "heads, tokens and half the head dimension",
                st.tuples(*(st.integers(1, 4) for _ in range(3))),
                violates=lambda c: _kept(*c, rotary=Rotary()) <= _kept(*c),
                size=max,
                largest=2,
            ),
        ),
    )
    yield Claim(
        id="13-unrotated-values",
        source="text on positions",
        statement="Weight-tied attention with rotated queries and keys and unrotated values is a gradient in x.",
        formula="the Jacobian of W_Q^T sum_j a_ij W_K h_j in x is symmetric",
        proof=(
            "The Jacobian is W_Q^T Cov(value, rotated key) W_Q / tau, a covariance of two different things, which "
            "need not be symmetric. With the rotated-back key as value it is a covariance of one thing with itself."
        ),
        evidence=(
            Counterexample("the second of two tokens in the plane, W_Q = W_K = I, x = 0", _unrotated_values),
            Search(
                "two tokens in the plane, integers, quarter turns, equal logits",
                st.tuples(*(st.integers(-3, 3) for _ in range(4))),
                violates=lambda c: not _is_symmetric(_jacobian_at_equal_logits(c[:2], c[2:], _quarter_turn(-1))),
                size=lambda c: max(map(abs, c)),
                largest=1,
            ),
        ),
    )
    yield Claim(
        id="13-rotary-concave",
        source="ours",
        statement="With rotary positions the energy is still concave in x.",
        formula="z . Hess eps(x_i) z = -(1/tau) sum_{j<l} a_ij a_il (z . (beta_ij - beta_il))^2 <= 0",
        proof="beta_ij depends on i and j but not on x, so eps is minus a log-sum-exp of functions linear in x.",
        evidence=(Derivation("three tokens in the plane, symbolic angle, query at the third", _rotary_concave),),
    )


# --- biases ---------------------------------------------------------------------------------------


def _softmax(logits: Sequence[int]) -> list[Fraction]:
    """Softmax weights of integer logits in units of ln 2, so that they are rational."""
    powers = [Fraction(2) ** logit for logit in logits]
    return [p / sum(powers) for p in powers]


def _last_token(tokens: int, slope: int) -> list[Fraction]:
    """The last token's weights on all, with zero content and the printed bias, its slope in units of ln 2."""
    return _softmax([slope * (tokens - j) for j in range(1, tokens + 1)])


def _biased(own: int, others: int) -> list[Fraction]:
    """The third token's weights on three tokens with scores 0, 1 and 2, in units of ln 2."""
    return _softmax([0 + others, 1 + others, 2 + own])


def _printed_sign_rewards() -> Working:
    with mpmath.workdps(30):
        slope = mpmath.mpf(1) / 2

        def weights(tokens: int) -> list[mpmath.mpf]:
            powers = [mpmath.exp(slope * (tokens - j)) for j in range(1, tokens + 1)]
            total = mpmath.fsum(powers)
            return [p / total for p in powers]

        few, many = weights(3), weights(2048)
        penalised = few[0] <= few[-1]
        return working(
            "beta . x = 0 for all tokens, m = 1/2 (the first head's slope, 2^-1), query i = 3",
            "bias on tokens 1, 2, 3: " + ", ".join(mpmath.nstr(slope * (3 - j), 3) for j in (1, 2, 3)),
            "weights exp(b) / sum exp(b): " + ", ".join(mpmath.nstr(w, 3) for w in few),
            f"at 2048 tokens the first gets {mpmath.nstr(many[0], 3)} and the last itself {mpmath.nstr(many[-1], 3)}",
            f"weight of the furthest <= weight of the nearest: {mpmath.nstr(few[0], 3)} <= {mpmath.nstr(few[-1], 3)} "
            f"is {bool(penalised)}",
            comes_out=bool(penalised),
        )


def _printed_exponents(heads: int) -> list[Fraction]:
    """k of the printed slopes 2^-k."""
    return [Fraction(k) for k in range(1, heads + 1)]


def _press_exponents(heads: int) -> list[Fraction]:
    """e of the slopes 2^-e of Press et al., for any number of heads."""
    below = 1 << (heads.bit_length() - 1)
    above = [Fraction(8 * k, 2 * below) for k in range(1, 2 * below + 1)]
    return [Fraction(8 * k, below) for k in range(1, below + 1)] + above[0::2][: heads - below]


def _listed(exponents: Sequence[Fraction]) -> str:
    return ", ".join(map(str, exponents))


def _slopes_agree_at_eight() -> Working:
    agree = [K for K in range(1, 65) if sorted(_press_exponents(K)) == _printed_exponents(K)]
    runs = all(alibi_slopes(K) == [2.0 ** -float(e) for e in _press_exponents(K)] for K in range(1, 65))
    return working(
        f"K = 8, Press et al.: 2^-e with e = {_listed(_press_exponents(8))}",
        f"K = 8, printed: e = {_listed(_printed_exponents(8))}",
        f"of K = 1..64 the two sets agree for K in {agree}",
        f"the reference's slopes are those of Press et al. for all these K: {runs}",
        comes_out=agree == [8] and runs,
    )


def _slopes_at_twelve() -> Working:
    press, printed = _press_exponents(12), _printed_exponents(12)
    formula = [Fraction(8 * k, 12) for k in range(1, 13)]
    agree = sorted(press) == printed or formula == printed
    return working(
        f"printed: 2^-e with e = {_listed(printed)}",
        f"Press et al. for 12 heads (8 of K = 8, then every second of K = 16): e = {_listed(press)}",
        f"2^(-8k/K) taken literally at K = 12: e = {_listed(formula)}",
        f"the printed exponents are one or the other is {agree}",
        comes_out=agree,
    )


def _biases_are_one_parameter() -> Working:
    (s, c), (s2, c2) = (1, 0), (2, 1)
    first, second = _biased(s, c), _biased(s2, c2)
    differ = first != second
    return working(
        "query 3 of three tokens with scores 0, 1, 2 before the bias; scores and biases in units of ln 2",
        f"(b_self, b_cross) = ({s}, {c}): weights {_listed(first)}",
        f"(b_self, b_cross) = ({s2}, {c2}): weights {_listed(second)}",
        f"the weights, and with them the update, differ is {differ}",
        comes_out=differ,
    )


def _common_shift() -> Working:
    heads = 2
    x, tau, c = sympy.symbols("x tau c", positive=True)
    beta = sympy.Matrix(heads, 2, sympy.symbols("beta1:3(1:3)"))  # of the token before, of the token itself
    own, others = sympy.symbols("s1:3"), sympy.symbols("o1:3")

    def partition(k: int, shift: sympy.Expr) -> sympy.Expr:
        cross = sympy.exp(beta[k, 0] * x / tau + others[k] + shift)
        return cross + sympy.exp(beta[k, 1] * x / tau + own[k] + shift)

    def energy(shift: sympy.Expr) -> sympy.Expr:
        return -tau * sum(sympy.log(partition(k, shift)) for k in range(heads))

    factors = [sympy.simplify(partition(k, c) / partition(k, sympy.Integer(0))) for k in range(heads)]
    moved = -tau * sum(sympy.expand_log(sympy.log(f), force=True) for f in factors)
    turned = sympy.simplify(sympy.diff(energy(c), x) - sympy.diff(energy(sympy.Integer(0)), x))
    alone = sympy.diff(-tau * sympy.log(sympy.exp(beta[0, 1] * x / tau + own[0])), x)
    return working(
        f"each head's sum of exponentials is multiplied by {factors}",
        f"energy(b + c) - energy(b) = {sympy.simplify(moved)} with K = {heads}",
        f"gradient(b + c) - gradient(b) = {turned}",
        f"a head of the first token, which sees only itself: gradient {sympy.simplify(alone)}, without its bias",
        comes_out=(
            sympy.simplify(moved + tau * heads * c) == 0 and turned == 0 and sympy.simplify(alone + beta[0, 1]) == 0
        ),
    )


# --- rotary ---------------------------------------------------------------------------------------


def _turn(angle: sympy.Expr) -> sympy.Matrix:
    return sympy.Matrix([[sympy.cos(angle), -sympy.sin(angle)], [sympy.sin(angle), sympy.cos(angle)]])


def _quarter_turn(times: int) -> sympy.Matrix:
    return _turn(times * sympy.pi / 2)


def _plane(name: str) -> sympy.Matrix:
    return sympy.Matrix(sympy.symbols(f"{name}_1:3", real=True))


def _rotary_gradient() -> Working:
    angle, tau = sympy.symbols("theta tau", positive=True)
    W_Q = sympy.Matrix(2, 2, sympy.symbols("q1:3(1:3)", real=True))
    W_K = sympy.Matrix(2, 2, sympy.symbols("k1:3(1:3)", real=True))
    x, h = _plane("x"), {j: _plane(f"h{j}") for j in (1, 2)}
    keys = {j: _turn(j * angle) * W_K * h[j] for j in h}  # all that is kept: it knows of no query
    off = []
    for i in (1, 2):
        query = _turn(i * angle) * W_Q * x
        powers = {j: sympy.exp(query.dot(keys[j]) / tau) for j in range(1, i + 1)}
        energy = -tau * sympy.log(sum(powers.values()))
        attended = sum((powers[j] * keys[j] for j in powers), sympy.zeros(2, 1)) / sum(powers.values())
        closed = -W_Q.T * _turn(i * angle).T * attended
        off.append(sympy.simplify(sympy.Matrix([energy]).jacobian(x).T - closed))
    return working(
        "eps_i = -tau log sum_{j<=i} exp((R(i) W_Q x) . (R(j) W_K h_j) / tau), R(i) a turn by i theta",
        "closed form -W_Q^T R(i)^T sum_j a_ij [R(j) W_K h_j], from keys [R(j) W_K h_j] that know of no query",
        *(f"i = {i}: derivative of eps_i minus closed form = {list(o)}" for i, o in enumerate(off, start=1)),
        comes_out=all(o == sympy.zeros(2, 1) for o in off),
    )


def _kept(heads: int, tokens: int, half: int, *, rotary: Rotary | None = None) -> int:
    """How many numbers the reference keeps of one row; head dimension 2 * half."""
    weights = torch.empty(heads, 2 * half, heads * 2 * half, device="meta")
    energy = Interaction(weights, weights, temperature=1.0, rotary=rotary)
    memory = energy.remember(torch.empty(1, tokens, heads * 2 * half, device="meta"))
    assert memory.states is None
    return memory.keys.numel()


def _rotary_memory() -> Working:
    h = {1: sympy.Matrix([1, 0]), 2: sympy.Matrix([0, 2])}
    x = _plane("x")
    kept = {j: _quarter_turn(j) * h[j] for j in h}
    lines, needs_more = [], False
    for i in (1, 2):
        betas = {j: _quarter_turn(i).T * _quarter_turn(j) * h[j] for j in range(1, i + 1)}  # depend on i and j
        energy = -sympy.log(sum(sympy.exp(b.dot(x)) for b in betas.values()))
        at_zero = dict.fromkeys(x, 0)
        derivative = -sympy.Matrix([energy]).jacobian(x).T.subs(at_zero)
        attended = sum((kept[j] for j in betas), sympy.zeros(2, 1)) / len(betas)  # x = 0: equal weights
        from_kept = _quarter_turn(i).T * attended
        needs_more = needs_more or derivative != from_kept
        lines.append(f"i = {i}: -grad eps = {list(derivative)}; R({i})^T (mean of what is kept) = {list(from_kept)}")
    rotated, plain = _kept(2, 2, 1, rotary=Rotary()), _kept(2, 2, 1)
    needs_more = needs_more or rotated > plain
    return working(
        "one head, W_Q = W_K = I, tau = 1, R(j) a turn by j quarters, h_1 = (1, 0), h_2 = (0, 2), x = 0",
        "kept: " + "; ".join(f"R({j}) h_{j} = {list(k)}" for j, k in kept.items()),
        *lines,
        f"the reference, two heads in two dimensions each, two tokens: {rotated} numbers kept with, {plain} without",
        f"more is needed than without rotation is {needs_more}",
        comes_out=needs_more,
    )


def _jacobian_at_equal_logits(first: Sequence[int], second: Sequence[int], back: sympy.Matrix) -> sympy.Matrix:
    """d/dx of a_1 h_1 + a_2 h_2 at x = 0, the second token's logits being x . (R(1 - 2) h_1) and x . h_2.

    Args:
        back: R(-1).
    """
    h_1, h_2 = sympy.Matrix(first), sympy.Matrix(second)
    return (h_1 - h_2) * (back * h_1 - h_2).T / 4  # a_1 = a_2 = 1/2: sum_j a_j v_j (beta_j - mean beta)^T


def _is_symmetric(matrix: sympy.Matrix) -> bool:
    return bool(matrix[0, 1] == matrix[1, 0])


def _unrotated_values() -> Working:
    h_1, h_2, x = (1, 0), (0, 0), _plane("x")
    back = _quarter_turn(-1)
    jacobian = _jacobian_at_equal_logits(h_1, h_2, back)
    # the same from the definition, by differentiating the softmax
    powers = [sympy.exp(x.dot(back * sympy.Matrix(h_1))), sympy.exp(x.dot(sympy.Matrix(h_2)))]
    update = (powers[0] * sympy.Matrix(h_1) + powers[1] * sympy.Matrix(h_2)) / sum(powers)
    defined = update.jacobian(x).subs(dict.fromkeys(x, 0))
    radian = _jacobian_at_equal_logits(h_1, h_2, _turn(sympy.Integer(-1)))
    rotated = (back * sympy.Matrix(h_1)) * (back * sympy.Matrix(h_1)).T / 4
    symmetric = _is_symmetric(jacobian)
    return working(
        f"h_1 = {h_1}, h_2 = {h_2}, tau = 1, R(1) = {_quarter_turn(1).tolist()}; values h_1, h_2",
        f"beta_1 = R(-1) h_1 = {list(back * sympy.Matrix(h_1))}, beta_2 = h_2; logits at x = 0 are 0, weights 1/2",
        f"Jacobian = (h_1 - h_2)(beta_1 - beta_2)^T / 4 = {jacobian.tolist()}",
        f"differentiating the softmax gives the same is {defined == jacobian}",
        f"at an angle of one radian, that of the first plane of every rotary embedding: {radian.tolist()}",
        f"with the rotated-back key as value: {rotated.tolist()}, symmetric",
        f"the Jacobian is symmetric, {jacobian[0, 1]} = {jacobian[1, 0]}, is {symmetric}",
        comes_out=symmetric or defined != jacobian,
    )


def _rotary_concave() -> Working:
    angle, tau = sympy.symbols("theta tau", positive=True)
    x, z = _plane("x"), _plane("z")
    beta = [_turn((j - 3) * angle) * _plane(f"h{j}") for j in (1, 2, 3)]
    powers = [sympy.exp(b.dot(x) / tau) for b in beta]
    total = sum(powers)
    curvature = (z.T * sympy.hessian(-tau * sympy.log(total), list(x)) * z)[0]
    squares = sum(powers[j] * powers[i] * z.dot(beta[j] - beta[i]) ** 2 for j in range(3) for i in range(j))
    off = sympy.expand(sympy.simplify((curvature + squares / (tau * total**2)) * total**2))
    return working(
        "beta_3j = R(3)^T R(j) h_j, R(i) a turn by i theta, W_Q = W_K = I (they enter beta alone)",
        f"beta depends on x is {any(b.has(*x) for b in beta)}",
        f"z . Hess eps z + (1/tau) sum_(j<l) a_j a_l (z . (beta_j - beta_l))^2 = {off}",
        comes_out=off == 0 and not any(b.has(*x) for b in beta),
    )

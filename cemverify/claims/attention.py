"""Claims about the interaction energy: attention as its gradient step, and its concavity.

Eq. 1, 3, 5 and 12, Sec. 2, App. B (docs/mathematics.md §1, §4).
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
    Vector,
    dot,
    energy,
    jacobian_at_zero,
    largest_entry,
    moved,
    shown,
    simplified,
    symmetric,
    weights,
)


def claims() -> Iterator[Claim]:
    """The sections' claims."""
    yield from _gradient_step()
    yield from _concavity()


# §1: the gradient step


def _gradient_step() -> Iterator[Claim]:
    yield Claim(
        id="1-gradient",
        source="Eq. 1, 5",
        statement=(
            "The negative gradient of the interaction energy is multi-head attention with W_V = W_K, W_O = W_Q^T."
        ),
        formula="-grad eps(x_i) = sum_k W_Q,k^T sum_j softmax_j(W_Q,k x_i . W_K,k h_j / tau) W_K,k h_j",
        proof=(
            "The gradient of tau log sum_j exp(s_j / tau) is the softmax-weighted sum of the gradients of the s_j, "
            "and s_j = x . W_Q^T W_K h_j has the gradient W_Q^T W_K h_j. The factor W_K h_j is the key, now read as "
            "the value; W_Q^T is the same for all j and comes out of the sum as the output projection."
        ),
        evidence=(
            Derivation("two heads, two tokens, D = 2, R = 1, every weight a symbol", _attention_is_the_gradient),
            Properties(("gradient/attention/plain", "gradient/attention/conservative-field"), examples=20),
        ),
    )
    yield Claim(
        id="1-temperature",
        source="Eq. 5, Algorithm 1",
        statement="At tau = sqrt(D_h), D_h the model dimension, the step is standard scaled dot-product attention.",
        formula="-grad eps at tau = sqrt(D_h)  =  sum_k W_Q,k^T sum_j softmax_j(q_k . k_kj / sqrt(R)) k_kj",
        condition="tau is sqrt(R), R the head dimension; this is sqrt(D_h) only for a single head",
        proof=(
            "The temperature divides the logits, and standard attention divides them by sqrt(R). With K heads of "
            "R = D_h / K features sqrt(D_h) is larger by sqrt(K), and every softmax flatter."
        ),
        evidence=(
            Properties(
                ("tying/attention/multi-head-attention", "tying/attention/scaled-dot-product-attention"), examples=20
            ),
            Counterexample("the fewest heads above one: K = 2, D_h = 2, R = 1", _model_dimension_is_no_scale),
            Search(
                "two heads of one feature, the second one zero, and two tokens, the second one zero: integers",
                st.tuples(ENTRY, ENTRY, ENTRY, ENTRY),
                violates=lambda c: abs(_one_head(*c, tau=mpmath.sqrt(2)) - _one_head(*c, tau=1)) > BEYOND_ROUNDOFF,
                size=largest_entry,
                largest=1,
            ),
        ),
    )
    yield Claim(
        id="1-scale",
        source="ours",
        statement="Temperature and step size are no freedoms of their own: the scale of A contains them.",
        formula="eps(c A, c tau) = c eps(A, tau), so that a step eta on the one is a step c eta on the other",
        proof=(
            "tau enters as A / tau inside the exponential and as a factor in front of the logarithm. In particular "
            "tau = sqrt(K R) with A and eta is tau = sqrt(R) with A / sqrt(K) and eta sqrt(K)."
        ),
        evidence=(Derivation("two tokens, D = 1, everything else a symbol", _scale_is_redundant),),
    )
    yield Claim(
        id="1-untied-output",
        source="ours",
        statement="Attention with an output projection of its own is the gradient step of some energy, too.",
        formula="sum_k W_O,k sum_j a_kj(x) W_K,k h_j is a gradient field for every W_O",
        proof=(
            "A gradient field has a symmetric Jacobian. For one head it is W_O C W_Q / tau, C the covariance of the "
            "keys under the attention weights; for R = 1 that is symmetric only if W_O is a multiple of W_Q^T, or "
            "if C = 0."
        ),
        evidence=(
            Counterexample("J = D = 2, K = R = 1, tau = 1, at x = 0", _untied_output_is_no_gradient),
            Search(
                "W_Q, W_K, W_O and two tokens, integers, at x = 0",
                st.tuples(PAIR, PAIR, PAIR, PAIR, PAIR),
                violates=lambda c: not symmetric(_untied_jacobian(c[0], c[1], c[2], (c[3], c[4]))),
                size=largest_entry,
                largest=1,
            ),
        ),
    )


def _attention_is_the_gradient() -> Working:
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
        attention += Q.T * sum(r * key for r, key in zip(raw, keys, strict=True)) / sum(raw)
    differences, agree = simplified(*(-sympy.diff(eps, x[i]) - attention[i] for i in (0, 1)))
    return working(
        "eps = -tau sum_k log sum_j exp(x . W_Q,k^T W_K,k h_j / tau)",
        "attention = sum_k W_Q,k^T sum_j softmax_j((W_Q,k x)(W_K,k h_j) / tau) (W_K,k h_j)",
        f"-grad eps - attention, simplified, both components: {differences}",
        comes_out=agree,
    )


def _one_head(query: int, key: int, x: int, h: int, *, tau: Any) -> Any:
    """One feature of attention over the tokens h and 0: W_Q sum_j softmax_j(W_Q x W_K h_j / tau) W_K h_j."""
    return query * weights([query * x * key * h, 0], tau)[0] * key * h


def _model_dimension_is_no_scale() -> Working:
    W_Q = W_K = ((1, 0), (0, 1))
    h, x = ((1, 0), (0, 0)), (1, 0)
    K, D, R = len(W_Q), len(x), 1

    def attention(tau: Any) -> list[Any]:
        update = [mpmath.mpf(0)] * D
        for Q, key in zip(W_Q, W_K, strict=True):
            keys = [int(dot(key, h_j)) for h_j in h]
            a = weights([int(dot(Q, x)) * k for k in keys], tau)
            attended = mpmath.fdot(a, keys)
            update = [u + q * attended for u, q in zip(update, Q, strict=True)]
        return update

    with mpmath.workdps(30):
        standard, printed = attention(mpmath.sqrt(R)), attention(mpmath.sqrt(D))
        same = max(abs(p - s) for p, s in zip(printed, standard, strict=True)) < mpmath.mpf("1e-20")
        logits = tuple(int(dot(W_Q[0], x) * dot(W_K[0], h_j)) for h_j in h)
        return working(
            f"K = {K}, D_h = {D}, R = {R}; W_Q,k = W_K,k = {shown(W_Q[0])} and {shown(W_Q[1])}",
            f"tokens {shown(h[0])} and {shown(h[1])}, x = {shown(x)}: the first head has the logits {logits} / tau, "
            "and the first token's key is its only one that is not zero; the second head has none",
            f"tau = sqrt(R) = {shown(mpmath.sqrt(R))}: the update is {shown(standard)}",
            f"tau = sqrt(D_h) = {shown(mpmath.sqrt(D))}: the update is {shown(printed)}",
            f"at tau = sqrt(D_h) it is standard attention: {shown(printed[0])} = {shown(standard[0])} is {same}",
            comes_out=same,
        )


def _scale_is_redundant() -> Working:
    c, tau, eta, R, K = sympy.symbols("c tau eta R K", positive=True)
    A, x, h_1, h_2 = sympy.symbols("A x h1 h2", real=True)

    def eps(scale: Any, temperature: Any) -> Any:
        return -temperature * sympy.log(sum(sympy.exp(scale * h_j * x / temperature) for h_j in (h_1, h_2)))

    energies, same_energy = simplified(eps(c * A, c * tau) - c * eps(A, tau))
    steps, same_step = simplified(eta * sympy.diff(eps(c * A, c * tau), x) - (c * eta) * sympy.diff(eps(A, tau), x))
    printed = eta * sympy.diff(eps(A, sympy.sqrt(K * R)), x)
    standard = eta * sympy.sqrt(K) * sympy.diff(eps(A / sympy.sqrt(K), sympy.sqrt(R)), x)
    scales, same_scale = simplified(printed - standard)
    return working(
        f"eps(c A, c tau) - c eps(A, tau) = {energies}",
        f"eta grad eps(c A, c tau) - c eta grad eps(A, tau) = {steps}",
        f"tau = sqrt(K R), A, eta against tau = sqrt(R), A / sqrt(K), eta sqrt(K): the steps differ by {scales}",
        comes_out=same_energy and same_step and same_scale,
    )


def _untied_jacobian(W_Q: Vector, W_K: Vector, W_O: Vector, h: Sequence[Vector]) -> tuple[tuple[Fraction, ...], ...]:
    keys = [dot(W_K, h_j) for h_j in h]
    return jacobian_at_zero(W_O, keys, [[q * key for q in W_Q] for key in keys])


def _untied_output_is_no_gradient() -> Working:
    W_Q, W_K, W_O, h = (1, 0), (1, 0), (0, 1), ((1, 0), (0, 0))
    keys = tuple(dot(W_K, h_j) for h_j in h)
    mean = sum(keys) / len(keys)
    variance = sum((key - mean) ** 2 for key in keys) / len(keys)
    tied, untied = _untied_jacobian(W_Q, W_K, W_Q, h), _untied_jacobian(W_Q, W_K, W_O, h)
    return working(
        f"W_Q = W_K = {shown(W_Q)}, tokens {shown(h[0])}, {shown(h[1])}: keys {shown(keys)}, equal weights at x = 0",
        f"the Jacobian is W_O times the variance of the keys, {variance}, times W_Q",
        f"tied, W_O = W_Q^T: {shown(tied)}, symmetric: {symmetric(tied)}",
        f"W_O = {shown(W_O)}^T: {shown(untied)}",
        f"that is symmetric: {symmetric(untied)}",
        comes_out=symmetric(untied),
    )


# §4: concavity


def _concavity() -> Iterator[Claim]:
    yield Claim(
        id="4-concave",
        source="Eq. 1",
        statement="With the memory fixed, the attention energy is concave in x: any A, bias, diagonal and tau > 0.",
        formula="v . Hess eps v = -(1/tau) sum_k sum_{j<l} a_kj a_kl (v . (beta_kj - beta_kl))^2 <= 0",
        proof=(
            "The log-sum-exp of functions affine in x is convex, and eps is minus tau times a sum of such. Its "
            "second derivative along v is minus the variance of v . beta_j under the attention weights, over tau. A "
            "bias only changes the weights."
        ),
        evidence=(
            Derivation("three tokens: the second derivative along a line, in symbols", _second_derivative),
            Properties(("descent/attention/any-step-size-with-diagonal-and-bias",), examples=20),
        ),
    )
    yield Claim(
        id="4-any-step",
        source="Eq. 3, 12",
        statement="A step down the gradient lowers the attention energy, whatever its size and the preconditioner P.",
        formula="eps(x - eta P g) <= eps(x) - eta g . P g for all eta > 0",
        condition=(
            "the keys come from a memory that does not move with x, and P, the same for all heads, has a positive "
            "semi-definite symmetric part"
        ),
        proof=(
            "A concave function lies below its tangent: eps(y) <= eps(x) + g . (y - x), here with y = x - eta P g. "
            "What is missing is tau log sum_j a_j exp(z_j - sum a z), z_j = beta_j . (y - x) / tau, at least 0 since "
            "exp(z) >= 1 + z. P may differ from token to token and from step to step, be singular or not symmetric."
        ),
        evidence=(
            Derivation("the distance from the tangent, two tokens, in symbols", _distance_from_the_tangent),
            Properties(
                (
                    "descent/attention/any-step-size-identity",
                    "descent/attention/any-step-size-diagonal",
                    "descent/attention/any-step-size-low-rank",
                ),
                examples=20,
            ),
            Counterexample("keys that move with x: J = D = 1, A = -1", _moving_keys_ascend),
            Counterexample("P with one slightly negative eigenvalue", _indefinite_ascends),
            Search(
                "keys that move with x, one dimension: A, x integers, eta a positive one",
                st.tuples(ENTRY, ENTRY, GAIN),
                violates=lambda c: -c[0] * (c[1] + 2 * c[2] * c[0] * c[1]) ** 2 > -c[0] * c[1] ** 2,
                size=largest_entry,
                largest=2,
            ),
        ),
    )
    yield Claim(
        id="4-convex",
        source="App. B",
        statement="The log-sum-exp energy of the appendix is convex in x.",
        formula="E((a + b) / 2) <= (E(a) + E(b)) / 2 for E(x) = -tau log sum_j exp(h_j . x / tau)",
        proof="It is minus a convex function, and strictly concave along every line on which two patterns differ.",
        evidence=(
            Counterexample("patterns 1 and -1, tau = 1, between x = -1 and x = 1", _appendix_is_not_convex),
            Search(
                "two patterns and two points in one dimension, integers",
                st.tuples(PAIR, PAIR),
                violates=lambda c: _above_the_chord(*c) > BEYOND_ROUNDOFF,
                size=largest_entry,
                largest=1,
            ),
        ),
    )
    yield Claim(
        id="4-prefactor",
        source="App. B",
        statement="With the prefactor -1/tau the gradient of the log-sum-exp energy is minus the attended patterns.",
        formula="grad (-(1/tau) log sum_j exp(h_j . x / tau)) = -sum_j softmax_j(h_j . x / tau) h_j",
        proof=(
            "The chain rule brings a further 1/tau out of the exponent, so that the printed gradient is 1/tau^2 "
            "times the stated one. The prefactor has to be -tau, Ramsauer's with inverse temperature 1/tau."
        ),
        evidence=(
            Counterexample("patterns 1 and 0, tau = 2, at x = 0", _prefactor_is_off),
            Search(
                "one pattern and tau, integers: the energy is linear, -h x / tau^2",
                st.tuples(ENTRY, GAIN),
                violates=lambda c: Fraction(-c[0], c[1] ** 2) != -c[0],
                size=largest_entry,
                largest=2,
            ),
        ),
    )
    yield Claim(
        id="4-minimum",
        source="Sec. 2, App. B",
        statement="The attention energy has a minimum that the steps approach; it is bounded below.",
        formula="there is an m with eps(x) >= m for all x",
        proof=(
            "Along t u the energy behaves as -t sum_k max_j beta_kj . u. It is bounded below along u and along -u "
            "only if sum_k max_j <= 0 <= sum_k min_j: if all beta_kj . u agree within a head and cancel over the "
            "heads, for every u. Then the energy is constant. Where a gradient vanishes there is a maximum."
        ),
        evidence=(
            Counterexample("J = 2, D = 1, beta = 1 and -1, tau = 1", _no_minimum),
            Search(
                "two tokens in one dimension, integers: the slope far out",
                PAIR,
                violates=lambda c: min(-max(c), -max(-b for b in c)) < 0,
                size=largest_entry,
                largest=1,
            ),
        ),
    )


def _second_derivative() -> Working:
    tau, t = sympy.Symbol("tau", positive=True), sympy.Symbol("t")
    s, v = sympy.symbols("s1:4"), sympy.symbols("v1:4")
    along = -tau * sympy.log(sum(sympy.exp((a + t * b) / tau) for a, b in zip(s, v, strict=True)))
    raw = [sympy.exp(a / tau) for a in s]
    squares = sum(raw[j] * raw[i] * (v[j] - v[i]) ** 2 for j in range(3) for i in range(j)) / sum(raw) ** 2
    difference, same = simplified(sympy.diff(along, t, 2).subs(t, 0) + squares / tau)
    return working(
        "along x + t v the logits are s_j + t v_j, s_j = beta_j . x + tau b_j and v_j = beta_j . v: any D, any bias",
        "claimed: the second derivative is -(1/tau) sum_{j<l} a_j a_l (v_j - v_l)^2, a = softmax(s / tau)",
        f"second derivative minus claimed, simplified: {difference}",
        comes_out=same,
    )


def _distance_from_the_tangent() -> Working:
    tau = sympy.Symbol("tau", positive=True)
    at_x, at_y = sympy.symbols("s1:3", real=True), sympy.symbols("t1:3", real=True)
    total = sum(sympy.exp(s / tau) for s in at_x)
    a = [sympy.exp(s / tau) / total for s in at_x]
    z = [(t - s) / tau for s, t in zip(at_x, at_y, strict=True)]
    mean = sum(p * q for p, q in zip(a, z, strict=True))
    spread = sum(p * sympy.exp(q - mean) for p, q in zip(a, z, strict=True))
    # eps(y) - eps(x) - g.(y - x) = -tau log(spread), divided by -tau and without the logarithms
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


def _moving_keys_ascend() -> Working:
    A, x = Fraction(-1), Fraction(1)

    def after_step(eta: Fraction) -> tuple[Fraction, Fraction]:
        y = x - eta * (-2 * A * x)
        return y, -A * y * y

    before, (y, after), (z, edge) = -A * x * x, after_step(Fraction(2)), after_step(Fraction(1))
    return working(
        f"A = {A}; the key is A x and moves: eps(x) = -(A x) x, with gradient -2 A x = {-2 * A * x} at x = {x}",
        f"eta = 1: x {x} -> {z}, energy {before} -> {edge}: beyond this step it rises",
        f"eta = 2: x {x} -> {y}, energy {before} -> {after}",
        f"energy after <= energy before: {after} <= {before} is {after <= before}",
        comes_out=after <= before,
    )


def _indefinite_ascends() -> Working:
    beta, x, P = (0, 1), (0, 0), (Fraction(1), Fraction(-1, 1000))
    step = tuple(p * b for p, b in zip(P, beta, strict=True))
    before, after = -dot(beta, x), -dot(beta, moved(x, step))
    return working(
        f"one token with beta = {shown(beta)}: eps = -beta . x, g = -beta; P = diag{shown(P)}, eta = 1",
        f"x: {shown(x)} -> {shown(moved(x, step))}, energy: {before} -> {after}",
        f"energy after <= energy before: {after} <= {before} is {after <= before}",
        comes_out=after <= before,
    )


def _above_the_chord(patterns: Vector, ends: Vector) -> Any:
    """By how much E at the middle exceeds the mean of E at the ends."""
    middle = mpmath.mpf(ends[0] + ends[1]) / 2
    at_ends = [energy([h * x for h in patterns]) for x in ends]
    return energy([h * middle for h in patterns]) - mpmath.fsum(at_ends) / 2


def _appendix_is_not_convex() -> Working:
    patterns, ends = (1, -1), (-1, 1)
    with mpmath.workdps(30):
        at_ends, middle = [energy([h * x for h in patterns]) for x in ends], energy([h * 0 for h in patterns])
        chord = mpmath.fsum(at_ends) / 2
        return working(
            f"patterns {shown(patterns)}: E(x) = -log(e^x + e^-x)",
            f"E({ends[0]}) = {shown(at_ends[0])}, E({ends[1]}) = {shown(at_ends[1])}; their mean is {shown(chord)}",
            f"E(0) = {shown(middle)}",
            f"E(0) <= that mean: {shown(middle)} <= {shown(chord)} is {bool(middle <= chord)}",
            comes_out=bool(middle <= chord),
        )


def _prefactor_is_off() -> Working:
    x, tau, patterns = sympy.Symbol("x"), sympy.Integer(2), (1, 0)
    log_sum = sympy.log(sum(sympy.exp(h * x / tau) for h in patterns))
    printed, right = (sympy.diff(factor * log_sum, x).subs(x, 0) for factor in (-1 / tau, -tau))
    attended = sympy.Rational(sum(patterns), len(patterns))
    return working(
        f"patterns {shown(patterns)}, tau = {tau}, x = 0: all weights are equal, the attended pattern is {attended}",
        f"gradient with the prefactor -tau: {right}, which is minus the attended pattern: {right == -attended}",
        f"gradient with the printed prefactor -1/tau: {printed}, {printed / right} of it",
        f"the printed gradient is minus the attended pattern: {printed} = {-attended} is {printed == -attended}",
        comes_out=bool(printed == -attended),
    )


def _no_minimum() -> Working:
    betas, x = (1, -1), sympy.Symbol("x")
    limit = sympy.limit(-sympy.log(sum(sympy.exp(b * x) for b in betas)), x, sympy.oo)
    with mpmath.workdps(30):
        values = [f"eps({t}) = {shown(energy([b * t for b in betas]))}" for t in (0, 10, 1000)]
    return working(
        f"beta = {betas[0]} and {betas[1]}: eps(x) = -log(e^x + e^-x)",
        ", ".join(values),
        f"its limit as x grows: {limit}",
        f"bounded below: {bool(limit > -sympy.oo)}",
        comes_out=bool(limit > -sympy.oo),
    )

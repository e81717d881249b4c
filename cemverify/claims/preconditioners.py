"""Claims about preconditioners: Eq. 12 and 13, App. C.4 (docs/mathematics.md §5, §6)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from random import Random
from typing import Any

import mpmath
import sympy
import torch
from hypothesis import strategies as st

from cemverify.claims.base import Claim
from cemverify.claims.evidence import Counterexample, Derivation, Properties, Search, Working, working
from cemverify.claims.exact import DIGITS, Matrix, inner


def claims() -> Iterator[Claim]:
    """The sections' claims."""
    yield from _per_head()
    yield from _definiteness()
    yield from _safe_forms()
    yield from _training()


# --- section 5 ----------------------------------------------------------------------------------------


def _per_head() -> Iterator[Claim]:
    yield Claim(
        id="5-per-head",
        source="Eq. 12",
        statement="Each head may have a positive definite preconditioner of its own; the step still descends.",
        formula="P_k > 0 for all k  =>  sum_k P_k g_k is a descent direction for sum_k g_k",
        condition="all heads share one preconditioner",
        proof=(
            "First-order descent for all gradients needs the block matrix of (P_k + P_l) / 2 to be positive "
            "semi-definite. For two heads its Schur complement is -(P_1 - P_2) P_1^-1 (P_1 - P_2) / 4, never "
            "positive and zero only if P_1 = P_2. With one P for all heads the step is P times the gradient."
        ),
        evidence=(
            Properties(("descent/attention/any-step-size-low-rank",)),
            Counterexample("K = 2, D = R = J = 1: the energy is -x and the step goes to -1", _per_head_ascends),
            Search(
                "two heads in one dimension, integers",
                st.tuples(*(st.integers(-3, 3) for _ in range(2)), *(st.integers(1, 3) for _ in range(2))),
                violates=lambda c: (c[0] + c[1]) * (c[2] * c[0] + c[3] * c[1]) < 0,
                size=lambda c: max(map(abs, c)),
                largest=3,
            ),
        ),
    )
    yield Claim(
        id="5-trace-and-determinant",
        source="ours, for Eq. 12",
        statement="It is enough for descent that the heads' preconditioners have one trace and one determinant.",
        formula="P_k = Q_k diag(s) Q_k^T > 0, Q_k orthogonal  =>  g.sum_k P_k g_k >= 0, g = sum_k g_k",
        proof=(
            "Turning the axes of one head's P against another's is as bad as scaling it: in the example each P "
            "stretches just the coordinate in which its head pulls against the other."
        ),
        evidence=(
            Counterexample("K = D = 2, one token, P_1 = diag(1, 3), P_2 = diag(3, 1)", _turned_axes_ascend),
            Search(
                "two heads in two dimensions, integers, P_1 = diag(p, q), P_2 = diag(q, p)",
                st.tuples(*(st.integers(-3, 3) for _ in range(4)), st.integers(1, 3), st.integers(1, 3)),
                violates=lambda c: (
                    (c[0] + c[2]) * (c[4] * c[0] + c[5] * c[2]) + (c[1] + c[3]) * (c[5] * c[1] + c[4] * c[3]) < 0
                ),
                size=lambda c: max(map(abs, c)),
                largest=3,
            ),
        ),
    )
    yield Claim(
        id="5-only-equal",
        source="ours, for Eq. 12",
        statement="Preconditioners per head descend for all gradients if and only if they are all equal.",
        formula="(sum_k g_k).(sum_k P_k g_k) >= 0 for all g_1 ... g_K  <=>  P_1 = ... = P_K; each P_k > 0, symmetric",
        proof=(
            "The form has the block matrix M_kl = (P_k + P_l) / 2. With the gradients of the other heads zero, two "
            "heads remain. The Schur complement of P_1 in their block is P_2 - (P_1 + P_2) P_1^-1 (P_1 + P_2) / 4 = "
            "-(P_1 - P_2) P_1^-1 (P_1 - P_2) / 4, which is never positive and zero only if P_1 = P_2. So where they "
            "differ, g_1 = -P_1^-1 (P_1 + P_2) v / 2 and g_2 = v ascend for some v. If all are equal, the form is "
            "g.Pg."
        ),
        evidence=(
            Derivation("the Schur complement for D = 1 and D = 2, symbolically", _schur_complement),
            Derivation("the ascending gradients for pairs of small integer matrices", _ascending_gradients),
            Properties(
                ("descent/attention/any-step-size-diagonal", "descent/attention/any-step-size-low-rank"), examples=20
            ),
        ),
    )
    yield Claim(
        id="5-field",
        source="Eq. 3, 12",
        statement=(
            "A step with one preconditioner per head still goes down the gradient of some energy, as it does with a "
            "shared P, whose steps are gradient steps in the coordinates P^-1/2 x."
        ),
        formula="there are Q = Q^T > 0 and an energy E with Q sum_k P_k g_k = grad E",
        proof=(
            "With two tokens the Jacobian of -g_k is w_k(x) c_k c_k^T, c_k the difference of the two beta and w_k "
            "the product of the two weights. So Q must make Q sum_k w_k P_k c_k c_k^T symmetric wherever x is. For "
            "c_1 = (1, 0), c_2 = (0, 1), P_1 = I and P_2 = ((2, 1), (1, 2)) two places suffice to leave only Q that "
            "are not positive definite. With a shared P there is Q = P^-1."
        ),
        evidence=(
            Counterexample("K = J = D = 2, at x = (0, 0) and x = (ln 2, 0)", _no_metric_makes_it_a_gradient),
            Search(
                "two heads, c_1 = (1, 0), c_2 = (0, 1), P_1 and P_2 positive definite, integers",
                st.tuples(*(st.tuples(st.integers(1, 3), st.integers(-2, 2), st.integers(1, 3)) for _ in range(2))),
                violates=lambda c: all(a * d > b * b for a, b, d in c) and _no_metric(*c),
                size=lambda c: max(abs(v) for P in c for v in P),
                largest=2,
            ),
        ),
    )
    yield Claim(
        id="5-merge",
        source="ours, for Eq. 12",
        statement=(
            "Preconditioners per head cost nothing per token: they can be multiplied into the output projection once."
        ),
        formula="sum_k P_k W_Q,k^T o_k = sum_k (P_k W_Q,k^T) o_k",
        proof=(
            "Matrix products associate. P_k W_Q,k^T has the shape of W_Q,k^T, so that the merged layer does per "
            "token what plain attention does. Unmerged, diag + U V^T + V U^T of rank r costs K D (8 r + 1) "
            "operations a token."
        ),
        evidence=(
            Derivation("K = D = 2, R = 1, symbolically, and the operations at the sizes of Table 1", _merged),
            Properties(("gradient/attention/preconditioner-low-rank-per-head",), examples=20),
        ),
    )


def _per_head_ascends() -> Working:
    h, x, tau, eta = 1, Fraction(1), 1, Fraction(1)
    W_Q, W_K, P = (2, -1), (1, 1), (1, 3)
    beta = [q * k * h for q, k in zip(W_Q, W_K, strict=True)]  # one token: the softmax weight is 1
    step = sum(p * b for p, b in zip(P, beta, strict=True))
    before, after = -sum(beta) * x, -sum(beta) * (x + eta * step)
    return working(
        f"tau = {tau}, h = x = {x}, W_Q = {W_Q}, W_K = {W_K}, P = {P}, eta = {eta}",
        f"beta_k = W_Q,k W_K,k h = {beta}; with one token the energy is -sum_k beta_k x = {-sum(beta)} x",
        f"step = sum_k P_k beta_k = {P[0]}({beta[0]}) + {P[1]}({beta[1]}) = {step}",
        f"x: {x} -> {x + eta * step}, energy: {before} -> {after}",
        f"energy after <= energy before: {after} <= {before} is {after <= before}",
        comes_out=after <= before,
    )


def _turned_axes_ascend() -> Working:
    h = x = (Fraction(1), Fraction(0))
    W_Q, W_K, P = ((2, -1), (-1, 2)), ((1, 0), (1, 0)), ((1, 3), (3, 1))
    keys = [sum(k * a for k, a in zip(row, h, strict=True)) for row in W_K]
    betas = [[q * key for q in row] for row, key in zip(W_Q, keys, strict=True)]  # one token: its weight is 1
    total = [sum(beta[d] for beta in betas) for d in range(2)]
    step = [sum(p[d] * beta[d] for p, beta in zip(P, betas, strict=True)) for d in range(2)]
    after = [a + s for a, s in zip(x, step, strict=True)]
    before_energy, after_energy = (-sum(t * a for t, a in zip(total, point, strict=True)) for point in (x, after))
    return working(
        f"h = x = {_row(x)}, W_Q = {W_Q}, W_K = {W_K}, eta = 1",
        f"traces of P_1, P_2: {[sum(p) for p in P]}, determinants {[math.prod(p) for p in P]}",
        f"beta_1 = {_row(betas[0])}, beta_2 = {_row(betas[1])}; the energy is -{_row(total)}.x",
        f"step = diag{P[0]} beta_1 + diag{P[1]} beta_2 = {_row(step)}",
        f"x: {_row(x)} -> {_row(after)}, energy: {before_energy} -> {after_energy}",
        f"energy after <= energy before: {after_energy} <= {before_energy} is {after_energy <= before_energy}",
        comes_out=after_energy <= before_energy,
    )


def _row(values: Sequence[Any]) -> str:
    return f"({', '.join(map(str, values))})"


def _schur_complement() -> Working:
    lines, right = [], []
    for D in (1, 2):
        P1, P2 = (_symmetric(name, D) for name in ("p", "q"))
        mean = (P1 + P2) / 2
        schur = P2 - mean * P1.inv() * mean
        expected = -(P1 - P2) * P1.inv() * (P1 - P2) / 4
        difference = (schur - expected).applyfunc(sympy.simplify)
        lines.append(f"D = {D}: Schur complement + (P_1 - P_2) P_1^-1 (P_1 - P_2) / 4 = {difference.tolist()}")
        right.append(difference == sympy.zeros(D, D))
    return working(*lines, comes_out=all(right))


def _symmetric(name: str, D: int) -> Any:
    return sympy.Matrix(D, D, lambda i, j: sympy.Symbol(f"{name}{min(i, j) + 1}{max(i, j) + 1}", real=True))


def _ascending_gradients() -> Working:
    definite = [
        sympy.Matrix([[a, b], [b, d]])
        for a, b, d in product((1, 2, 3), (-1, 0, 1), (1, 2, 3))
        if a * d > b * b and (a + b + d) % 2
    ]
    pairs = ascents = 0
    for P1, P2 in product(definite, repeat=2):
        if P1 == P2:
            continue
        pairs += 1
        candidates = (sympy.Matrix(v) for v in ((1, 0), (0, 1)))
        ascents += any(_form(P1, P2, -P1.inv() * (P1 + P2) / 2 * v, v) < 0 for v in candidates)
    P1, P2 = sympy.diag(1, 3), sympy.diag(3, 1)
    v = sympy.Matrix([1, 0])
    g1 = -P1.inv() * (P1 + P2) / 2 * v
    return working(
        f"P_1 = diag(1, 3), P_2 = diag(3, 1), v = {_row(v)}: g_1 = {_row(g1)}, g.(P_1 g_1 + P_2 g_2) = "
        f"{_form(P1, P2, g1, v)}",
        f"of {pairs} unequal pairs, v = (1, 0) or (0, 1) gives an ascent in {ascents}",
        comes_out=ascents == pairs,
    )


def _form(P1: Any, P2: Any, g1: Any, g2: Any) -> Any:
    """(g_1 + g_2).(P_1 g_1 + P_2 g_2)."""
    return (g1 + g2).dot(P1 * g1 + P2 * g2)


_Symmetric = tuple[int, int, int]  # the entries 11, 12 and 22
_RATIOS = ((1, 1), (2, 1))  # of the two softmax weights, for each head, at x = (0, 0) and (ln 2, 0)
_WEIGHTS = [[Fraction(r, (1 + r) ** 2) for r in ratios] for ratios in _RATIOS]  # their products w_1, w_2


def _conditions(P1: _Symmetric, P2: _Symmetric) -> list[tuple[Fraction, Fraction, Fraction]]:
    """At each place, the r with r.(q11, q12, q22) = 0 iff Q J is symmetric, J = sum_i w_i P_i e_i e_i^T."""
    rows = []
    for w1, w2 in _WEIGHTS:
        J11, J21, J12, J22 = w1 * P1[0], w1 * P1[1], w2 * P2[1], w2 * P2[2]
        rows.append((J12, J22 - J11, -J21))
    return rows


def _solution(P1: _Symmetric, P2: _Symmetric) -> tuple[Fraction, Fraction, Fraction]:
    """The Q that fulfils both conditions, unique up to a factor, or zero if it is not unique."""
    (a, b, c), (d, e, f) = _conditions(P1, P2)
    return b * f - c * e, c * d - a * f, a * e - b * d


def _no_metric(P1: _Symmetric, P2: _Symmetric) -> bool:
    q11, q12, q22 = Q = _solution(P1, P2)
    return any(Q) and q11 * q22 - q12 * q12 <= 0


def _no_metric_makes_it_a_gradient() -> Working:
    P1, P2 = (1, 0, 1), (2, 1, 2)
    q11, q12, q22 = _solution(P1, P2)
    determinant = q11 * q22 - q12**2
    lines = [
        f"at place {i}: w = {_row(w)}, condition {_row(row)}.(q11, q12, q22) = 0"
        for i, (w, row) in enumerate(zip(_WEIGHTS, _conditions(P1, P2), strict=True), 1)
    ]
    return working(
        f"P_1 = ({P1[0]}, {P1[1]}; {P1[1]}, {P1[2]}), P_2 = ({P2[0]}, {P2[1]}; {P2[1]}, {P2[2]}), tau = 1",
        f"the weights of head k have the ratio e^x_k: {' and '.join(map(str, _RATIOS))} at the two places",
        *lines,
        f"so Q is a multiple of ({q11}, {q12}; {q12}, {q22}), of determinant {determinant}",
        f"Q can be positive definite: determinant > 0 is {determinant > 0}",
        comes_out=determinant > 0,
    )


def _merged() -> Working:
    W_Q = [sympy.Matrix(1, 2, sympy.symbols(f"w{k}1 w{k}2")) for k in (1, 2)]
    P = [_symmetric(f"p{k}", 2) for k in (1, 2)]
    o = [sympy.Matrix(1, 1, [sympy.Symbol(f"o{k}")]) for k in (1, 2)]
    apart = sum((P[k] * (W_Q[k].T * o[k]) for k in range(2)), sympy.zeros(2, 1))
    output = sympy.Matrix.hstack(*(P[k] * W_Q[k].T for k in range(2)))  # the merged W_O, (D, K R)
    difference = (apart - output * sympy.Matrix.vstack(*o)).applyfunc(sympy.expand)
    sizes, rank = ((672, 8), (768, 12), (864, 12)), 4
    return working(
        f"sum_k P_k (W_Q,k^T o_k) - [P_1 W_Q,1^T, P_2 W_Q,2^T] (o_1, o_2) = {difference.tolist()}",
        f"merged W_O: {output.shape}, as W_Q^T: {sympy.Matrix.hstack(*(w.T for w in W_Q)).shape}",
        *(f"saved at D = {D}, K = {K}, rank {rank}: {K * D * (8 * rank + 1)} operations a token" for D, K in sizes),
        comes_out=difference == sympy.zeros(2, 1) and output.shape == (2, sum(w.shape[0] for w in W_Q)),
    )


# --- section 6: is it definite? -------------------------------------------------------------------------


def _definiteness() -> Iterator[Claim]:
    yield Claim(
        id="6-softplus-diagonal",
        source="Eq. 12, 13",
        statement="A softplus diagonal makes diag(softplus(d)) + U V^T + V U^T positive definite.",
        formula="diag(softplus(d)) + U V^T + V U^T > 0 for all d, U, V",
        proof="At rank one the cross term has eigenvalues u.v +- |u||v|, and the lower one has no lower bound.",
        evidence=(
            Counterexample("D = R = 1, d = 0, U = 1, V = -1", _softplus_is_not_enough),
            Search(
                "d, U, V integers in one dimension",
                st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(-3, 3)),
                violates=lambda c: mpmath.log(1 + mpmath.exp(c[0])) + 2 * c[1] * c[2] <= 0,
                size=lambda c: max(map(abs, c)),
                largest=1,
            ),
        ),
    )
    yield Claim(
        id="6-low-rank",
        source="the text on Eq. 12",
        statement='A preconditioner can be "low-rank positive-definite".',
        formula="rank P < D and P > 0",
        proof=(
            "A matrix of rank below D has a vector z that it maps to zero, and z.Pz = 0. What can be positive "
            "definite is a diagonal plus a low rank, and that has full rank."
        ),
        evidence=(
            Counterexample("U V^T + V U^T for every U and V, D = 3, R = 1", _low_rank_is_singular),
            Search(
                "U and V integers, D = 3, R = 1, z an integer vector",
                st.tuples(*(st.tuples(*(st.integers(-2, 2) for _ in range(3))) for _ in range(3))),
                violates=lambda c: all(map(any, c)) and inner(c[0], c[2]) * inner(c[1], c[2]) <= 0,
                size=lambda c: max(abs(v) for row in c for v in row),
                largest=1,
            ),
        ),
    )
    yield Claim(
        id="6-exact-test",
        source="ours, for Eq. 12, 13",
        statement="Whether the printed P is positive definite can be read off a matrix of size 2 R.",
        formula=(
            "P > 0 <=> every eigenvalue of J B^T S^-1 B exceeds -1, S = diag(softplus(d)), B = [U V], J = [[0, I], "
            "[I, 0]]; for R = 1: sqrt(a b) - c < 1, a = u.S^-1 u, b = v.S^-1 v, c = u.S^-1 v"
        ),
        proof=(
            "P = S + B J B^T = S^1/2 (I + N) S^1/2 with N = S^-1/2 B J B^T S^-1/2. N is symmetric, and its non-zero "
            "eigenvalues are those of J B^T S^-1 B, as for X Y and Y X always. For R = 1 that is [[c, b], [a, c]], "
            "with eigenvalues c +- sqrt(a b)."
        ),
        evidence=(
            Derivation("R = 1, D = 2: a grid of integers against the minors of P, exact", _rank_one_test),
            Derivation("R = 2, D = 3: random integers, exact characteristic polynomials", _rank_two_test),
        ),
    )
    yield Claim(
        id="6-product-bound",
        source="ours, for Eq. 12, 13",
        statement="The printed P is positive definite.",
        formula="diag(softplus(d)) + U V^T + V U^T > 0",
        condition=(
            "min softplus(d) > 2 |U|_2 |V|_2 suffices, and the constant 2 cannot be lowered: with equality P can be "
            "singular"
        ),
        proof=(
            "|U V^T + V U^T|_2 <= 2 |U|_2 |V|_2, so that no eigenvalue of P is below min softplus(d) minus that. "
            "With R = 1, V = -U and S = s I, P = s I - 2 u u^T has the eigenvalue s - 2 |u|^2 = s - 2 |u| |v|."
        ),
        evidence=(
            Derivation("R = 1, D = 2: a grid of integers, exact", _product_bound),
            Derivation("R = 2, D = 3: random integers, eigenvalues in 30 digits", _product_bound_at_rank_two),
            Counterexample("D = 2, u = (1, 0), v = -u, at equality", _product_bound_is_sharp),
            Search(
                "u and v integers, D = 2, S = 2 |u| |v| I exactly",
                st.tuples(*(st.integers(-3, 3) for _ in range(4))),
                violates=lambda c: _fails_at_the_bound(c[:2], c[2:]),
                size=lambda c: max(map(abs, c)),
                largest=1,
            ),
        ),
    )
    yield Claim(
        id="6-difference-bound",
        source="ours, for Eq. 12, 13",
        statement="The printed P is positive definite whenever U and V are close enough, however large they are.",
        formula="min softplus(d) > |U - V|_2^2 / 2  =>  P > 0; for R = 1 and S = s I: P > 0 <=> s > |u| |v| - u.v",
        proof=(
            "U V^T + V U^T = ((U + V)(U + V)^T - (U - V)(U - V)^T) / 2, whose first term is positive semi-definite "
            "and whose second is at least -|U - V|_2^2 / 2. For R = 1, u v^T + v u^T has the eigenvalues u.v +- |u| "
            "|v| and 0."
        ),
        evidence=(
            Derivation("the identity symbolically, D = R = 2, and a grid of integers with R = 1", _difference_bound),
        ),
    )
    yield Claim(
        id="6-initialisation",
        source="App. C.4",
        statement="At the paper's initialisation, V = 0 and d = 1, P is the identity.",
        formula="softplus(1) = 1",
        proof="With V = 0, P = softplus(1) I = ln(1 + e) I. The identity needs d = ln(e - 1) = 0.5413.",
        evidence=(
            Counterexample("d = 1, V = 0", _starts_above_the_identity),
            Search(
                "d a positive integer, V = 0: off by a tenth or more",
                st.integers(1, 5),
                violates=lambda d: abs(mpmath.log(1 + mpmath.exp(d)) - 1) >= mpmath.mpf(1) / 10,
                size=abs,
                largest=1,
            ),
        ),
    )
    yield Claim(
        id="6-stays-definite",
        source="ours, for App. C.4 and Table 2",
        statement=(
            "Started there, training at the paper's learning rate keeps the printed P positive definite over the "
            "first hundred steps, whatever the gradients are."
        ),
        formula="d = 1, U of size 0.02, V(0) = 0, |V(t) - V(t-1)| = 0.002  =>  P(t) > 0 for t <= 100",
        proof=(
            "A step of Adam moves each entry by about the learning rate. If all of them move V against U, after t "
            "steps V = -0.1 t U, and with D = 672 and R = 1 the lower eigenvalue of U V^T + V U^T is -2 |U| |V| = "
            "-0.05376 t. Possible is not typical: gradients that push so for 25 steps would be unusual."
        ),
        evidence=(
            Counterexample("D = 672, R = 1, each entry of U 0.02, V moves against U", _leaves_definiteness),
            Search(
                "t from 1 to 100, D = 672, 768 or 864",
                st.tuples(st.integers(1, 100), st.sampled_from((672, 768, 864))),
                violates=lambda c: _smallest_after(c[1], c[0]) <= 0,
                size=lambda c: c[0],
                largest=25,
            ),
        ),
    )


def _softplus_is_not_enough() -> Working:
    with mpmath.workdps(30):
        P = mpmath.log(1 + mpmath.exp(0)) + 2 * 1 * (-1)
        return working(
            "d = 0, U = 1, V = -1",
            f"P = softplus(0) + U V + V U = ln 2 - 2 = {mpmath.nstr(P, 6)}",
            f"P > 0 is {bool(P > 0)}",
            comes_out=bool(P > 0),
        )


def _printed(S: Sequence[Any], u: Sequence[Any], v: Sequence[Any]) -> Matrix:
    """diag(S) + u v^T + v u^T."""
    return [[(S[i] if i == j else 0) + u[i] * v[j] + v[i] * u[j] for j in range(len(S))] for i in range(len(S))]


def _is_definite(P: Matrix) -> bool:
    """By Sylvester's leading minors, D = 2."""
    return bool(P[0][0] > 0 and P[0][0] * P[1][1] - P[0][1] * P[1][0] > 0)


def _low_rank_is_singular() -> Working:
    u, v = (sympy.Matrix(sympy.symbols(f"{name}1:4", real=True)) for name in "uv")
    P = u * v.T + v * u.T
    determinant, z = sympy.expand(P.det()), u.cross(v)
    image = (P * z).applyfunc(sympy.expand)
    possible = determinant != 0
    return working(
        f"det(u v^T + v u^T) = {determinant} for every u and v",
        f"it maps u x v to {image.tolist()}; where u x v = 0 the rank is one at most",
        f"positive definite needs a determinant > 0: possible is {possible}",
        comes_out=possible,
    )


def _rank_one_test() -> Working:
    entries, diagonals = range(-2, 3), ((1, 1), (1, 4), (3, 2))
    outcomes, mismatches = [], 0
    for S, u, v in product(diagonals, product(entries, repeat=2), product(entries, repeat=2)):
        a, b, c = (
            sum(Fraction(p * q, s) for p, q, s in zip(x, y, S, strict=True)) for x, y in ((u, u), (v, v), (u, v))
        )
        small = 1 + c > 0 and a * b < (1 + c) ** 2  # sqrt(a b) - c < 1 without a root
        definite = _is_definite(_printed(S, u, v))
        outcomes.append(definite)
        mismatches += small != definite
    return working(
        f"S among {diagonals}, u and v from {min(entries)} to {max(entries)}: {len(outcomes)} cases",
        f"P > 0 in {sum(outcomes)} of them; sqrt(a b) - c < 1 says otherwise in {mismatches}",
        comes_out=mismatches == 0 and 0 < sum(outcomes) < len(outcomes),
    )


def _random_cases(count: int, largest: int) -> Iterator[tuple[Any, Any, Any]]:
    """S, U and V of small integers, D = 3 and R = 2."""
    random = Random(6)  # noqa: S311  (no secret)
    for _ in range(count):
        S = sympy.diag(*(random.randint(1, 12) for _ in range(3)))
        U, V = (sympy.Matrix(3, 2, lambda *_: random.randint(-largest, largest)) for _ in range(2))
        yield S, U, V


def _rank_two_test() -> Working:
    outcomes, mismatches = [], 0
    J = sympy.Matrix(4, 4, lambda i, j: int(abs(i - j) == 2))
    for S, U, V in _random_cases(120, 2):
        P, B = S + U * V.T + V * U.T, sympy.Matrix.hstack(U, V)
        definite = all(P[:n, :n].det() > 0 for n in (1, 2, 3))
        small = _has_positive_roots(sympy.eye(4) + J * B.T * S.inv() * B)
        outcomes.append(definite)
        mismatches += small != definite
    return working(
        f"{len(outcomes)} cases, P > 0 by its minors in {sum(outcomes)}",
        "all roots of the polynomial of I + J B^T S^-1 B are real, and positive where its signs alternate;",
        f"that says otherwise in {mismatches}",
        comes_out=mismatches == 0 and 0 < sum(outcomes) < len(outcomes),
    )


def _has_positive_roots(matrix: Any) -> bool:
    """Whether all eigenvalues, known to be real, are positive: then the coefficients alternate strictly."""
    coefficients = matrix.charpoly().all_coeffs()
    return all(c * (-1) ** i > 0 for i, c in enumerate(coefficients))


def _product_bound() -> Working:
    entries, diagonals = range(-2, 3), range(1, 18, 2)
    inside = failures = 0
    for s, more, u, v in product(diagonals, (0, 3), product(entries, repeat=2), product(entries, repeat=2)):
        if s * s > 4 * inner(u, u) * inner(v, v):
            inside += 1
            failures += not _is_definite(_printed((s, s + more), u, v))
    return working(
        f"S = (s, s) and (s, s + 3), s from {min(diagonals)} to {max(diagonals)}, u and v from -2 to 2",
        f"s > 2 |u| |v| in {inside} cases, P > 0 fails in {failures} of them",
        comes_out=failures == 0 < inside,
    )


def _product_bound_at_rank_two() -> Working:
    smallest = []
    with mpmath.workdps(DIGITS):
        for S, U, V in _random_cases(60, 2):
            norms = [mpmath.sqrt(max(mpmath.eigsy(_mp(X.T * X), eigvals_only=True))) for X in (U, V)]
            least = int(mpmath.floor(2 * norms[0] * norms[1])) + 1  # the next integer above the bound
            P = S + (least - min(S.diagonal())) * sympy.eye(3) + U * V.T + V * U.T
            smallest.append(min(mpmath.eigsy(_mp(P), eigvals_only=True)))
    return working(
        f"S, U and V of integers, S moved so that min S is the next above 2 |U|_2 |V|_2: {len(smallest)} cases",
        f"smallest eigenvalue of P in all of them {mpmath.nstr(min(smallest), 4)}, positive is {min(smallest) > 0}",
        comes_out=bool(min(smallest) > 0),
    )


def _mp(matrix: Any) -> Any:
    """As an mpmath matrix."""
    return mpmath.matrix([[mpmath.mpf(int(v)) for v in row] for row in matrix.tolist()])


def _fails_at_the_bound(u: Sequence[int], v: Sequence[int]) -> bool:
    """Whether P is not definite with S = 2 |u| |v| I, a positive integer."""
    squared = inner(u, u) * inner(v, v)
    root = math.isqrt(squared)
    return root**2 == squared > 0 and not _is_definite(_printed((2 * root, 2 * root), u, v))


def _product_bound_is_sharp() -> Working:
    u, s = (1, 0), 2
    v = tuple(-a for a in u)
    P = _printed((s, s), u, v)
    determinant = P[0][0] * P[1][1] - P[0][1] * P[1][0]
    more = s + Fraction(1, 100)
    above = _is_definite(_printed((more, more), u, v))
    return working(
        f"u = {u}, v = {v}, softplus(d) = {s} for both: 2 |u| |v| = {2 * inner(u, u)}",
        f"P = {P}; with {more} in place of {s} positive definite is {above}",
        f"P > 0: determinant {determinant} > 0 is {determinant > 0}",
        comes_out=determinant > 0,
    )


def _difference_bound() -> Working:
    U, V = (sympy.Matrix(2, 2, sympy.symbols(f"{n}11 {n}12 {n}21 {n}22")) for n in "uv")
    identity = U * V.T + V * U.T - ((U + V) * (U + V).T - (U - V) * (U - V).T) / 2
    identity = identity.applyfunc(sympy.expand)
    inside = failures = mismatches = 0
    entries, diagonals = range(-2, 3), range(1, 10)
    for s, u, v in product(diagonals, product(entries, repeat=2), product(entries, repeat=2)):
        definite = _is_definite(_printed((s, s), u, v))
        gap = [a - b for a, b in zip(u, v, strict=True)]
        if 2 * s > inner(gap, gap):
            inside += 1
            failures += not definite
        room = s + inner(u, v)  # s > |u| |v| - u.v without a root
        mismatches += definite != (room > 0 and room**2 > inner(u, u) * inner(v, v))
    return working(
        f"U V^T + V U^T - ((U + V)(U + V)^T - (U - V)(U - V)^T) / 2 = {identity.tolist()}",
        f"S = s I, s from {min(diagonals)} to {max(diagonals)}, u and v from {min(entries)} to {max(entries)}:",
        f"s > |u - v|^2 / 2 in {inside} cases, P > 0 fails in {failures} of them",
        f"P > 0 differs from s > |u| |v| - u.v in {mismatches} cases",
        comes_out=identity == sympy.zeros(2, 2) and failures == 0 < inside and mismatches == 0,
    )


def _starts_above_the_identity() -> Working:
    with mpmath.workdps(DIGITS):
        start, needed = mpmath.log(1 + mpmath.e), mpmath.log(mpmath.e - 1)
        again = mpmath.log(1 + mpmath.exp(needed))
        equal = bool(abs(start - 1) < mpmath.mpf(10) ** -20)
    return working(
        f"P = softplus(1) I = ln(1 + e) I = {mpmath.nstr(start, 7)} I",
        f"d = ln(e - 1) = {mpmath.nstr(needed, 7)} would give {mpmath.nstr(again, 7)} I",
        f"{mpmath.nstr(start, 7)} = 1 is {equal}",
        comes_out=equal,
    )


def _smallest_after(D: int, steps: int) -> Any:
    """The smallest eigenvalue of P, R = 1, all entries of U 0.02, V moved against U by 0.002 a step."""
    u, v = Fraction(2, 100), -steps * Fraction(2, 1000)
    return mpmath.log(1 + mpmath.e) + mpmath.mpf(2 * D * (u * v).numerator) / (u * v).denominator


def _leaves_definiteness() -> Working:
    D, limit = 672, 100
    with mpmath.workdps(DIGITS):
        values = [_smallest_after(D, t) for t in range(limit + 1)]
        first = next((t for t, value in enumerate(values) if value <= 0), None)
    shown = (0, 1, *((first - 1, first) if first else ()), limit)
    return working(
        "U = 0.02 (1 ... 1), V(t) = -0.002 t (1 ... 1): U V^T + V U^T has the eigenvalue 2 U.V and otherwise 0",
        *(f"t = {t}: softplus(1) + 2 U.V = {mpmath.nstr(values[t], 5)}" for t in shown),
        f"P(t) > 0 for all t <= {limit} is {first is None}",
        comes_out=first is None,
    )


# --- section 6: forms that are always definite ------------------------------------------------------------


def _safe_forms() -> Iterator[Claim]:
    yield Claim(
        id="6-safe-form",
        source="ours, in place of Eq. 12, 13",
        statement=(
            "Scaling the cross term by its norms gives a P that is positive definite for all parameters, as many as "
            "the printed one has."
        ),
        formula=(
            "P = S^1/2 (I + c (U V^T + V U^T)) S^1/2, c = min(1, rho / (2 |U|_F |V|_F)), 0 < rho < 1: "
            "lambda_min(P) >= (1 - rho) min softplus(d)"
        ),
        proof=(
            "|U V^T + V U^T|_2 <= 2 |U|_2 |V|_2 <= 2 |U|_F |V|_F, so that c times it is at most rho and the bracket "
            "at least 1 - rho. x.Px >= (1 - rho) |S^1/2 x|^2 follows. V = -U with R = 1 attains it. Where the norms "
            "are small, c = 1 and P agrees with the printed one up to the factors S^1/2."
        ),
        evidence=(
            Derivation("random integers, D = 3 and R = 2, eigenvalues in 30 digits", _safe_form_is_bounded),
            Properties(
                (
                    "gradient/attention/preconditioner-low-rank",
                    "gradient/mlp/preconditioner-low-rank",
                    "descent/attention/any-step-size-low-rank",
                    "descent/mlp/safe-step-low-rank",
                ),
                examples=20,
            ),
        ),
    )
    yield Claim(
        id="6-sum-of-squares",
        source="ours, in place of Eq. 12, 13",
        statement=(
            "S + U U^T + V V^T is positive definite for all parameters, but V does not move from V = 0, where the "
            "paper starts it."
        ),
        formula="x.Px >= x.Sx > 0, and dP/dV = 0 at V = 0",
        proof=(
            "x.Px = x.Sx + |U^T x|^2 + |V^T x|^2. V enters by its square, whose derivative V dV^T + dV V^T vanishes "
            "at zero, and with it that of any loss. The printed form has U dV^T + dV U^T there."
        ),
        evidence=(Derivation("both symbolically, D = 2, R = 1", _squares_do_not_move),),
    )
    yield Claim(
        id="6-product-form",
        source="ours, in place of Eq. 12, 13",
        statement="(I + U V^T) S (I + V U^T) is positive definite.",
        formula="x.Px = |S^1/2 (I + V U^T) x|^2 > 0 for x != 0",
        condition="det(I + V^T U) != 0; it is positive semi-definite always",
        proof=(
            "P = M S M^T with M = I + U V^T, so x.Px = |S^1/2 M^T x|^2 >= 0, with equality for some x != 0 exactly "
            "where det M = det(I + V^T U) = 0. With S = I it is the printed form up to U V^T V U^T; at V = 0 it is "
            "S, and its derivative in V is not zero."
        ),
        evidence=(
            Derivation("square and determinant symbolically, D = 2, R = 1", _product_is_a_square),
            Counterexample("D = R = 1, u = 1, v = -1", _product_can_be_singular),
            Search(
                "u, v and S integers in one dimension",
                st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(1, 3)),
                violates=lambda c: (1 + c[0] * c[1]) * c[2] * (1 + c[1] * c[0]) <= 0,
                size=lambda c: max(map(abs, c)),
                largest=1,
            ),
        ),
    )


def _safe_form_is_bounded() -> Working:
    ratios, shrunk = [], 0
    with mpmath.workdps(DIGITS):
        rho = mpmath.mpf(99) / 100
        for S, U, V in _random_cases(60, 2):
            ratio, c = _safe_ratio(S, U, V, rho)
            ratios.append(ratio)
            shrunk += c < 1
        u = sympy.Matrix([1, 2, -1])
        attained, _ = _safe_ratio(sympy.eye(3), u, -u, rho)
        room = mpmath.mpf(10) ** -20
        held = bool(min(ratios) >= 1 - rho - room and abs(attained - (1 - rho)) < room)
    return working(
        f"rho = {mpmath.nstr(rho, 3)}, {len(ratios)} cases, c < 1 in {shrunk}",
        f"smallest lambda_min(P) / min S = {mpmath.nstr(min(ratios), 4)}, 1 - rho = {mpmath.nstr(1 - rho, 4)}",
        f"S = I, u = {_row(u)}, v = -u: lambda_min(P) / min S = {mpmath.nstr(attained, 12)}",
        f"bounded by 1 - rho and attained is {held}",
        comes_out=held,
    )


def _safe_ratio(S: Any, U: Any, V: Any, rho: Any) -> tuple[Any, Any]:
    """lambda_min(P) / min S of the safe form, and c."""
    norms = [mpmath.sqrt(sum(int(a) ** 2 for a in X)) for X in (U, V)]
    c = min(mpmath.mpf(1), rho / (2 * norms[0] * norms[1])) if all(norms) else mpmath.mpf(1)
    roots = [mpmath.sqrt(int(S[i, i])) for i in range(S.rows)]
    cross = _mp(U * V.T + V * U.T)
    P = mpmath.matrix(S.rows, S.rows)
    for i, j in product(range(S.rows), repeat=2):
        P[i, j] = roots[i] * ((i == j) + c * cross[i, j]) * roots[j]
    return min(mpmath.eigsy(P, eigvals_only=True)) / min(roots) ** 2, c


def _rank_one_symbols() -> tuple[Any, Any, Any, Any]:
    """S, u, v and x, D = 2."""
    S = sympy.diag(*sympy.symbols("s1:3", positive=True))
    u, v, x = (sympy.Matrix(sympy.symbols(f"{name}1:3", real=True)) for name in "uvx")
    return S, u, v, x


def _derivatives_at_zero(P: Any, v: Any) -> list[Any]:
    """dP/dv_d at v = 0, for each d."""
    zero = dict.fromkeys(v, 0)
    return [P.diff(a).subs(zero) for a in v]


def _squares_do_not_move() -> Working:
    S, u, v, x = _rank_one_symbols()
    P = S + u * u.T + v * v.T
    excess = sympy.expand((x.T * P * x)[0] - (x.T * S * x)[0] - u.dot(x) ** 2 - v.dot(x) ** 2)
    squares = _derivatives_at_zero(P, v)
    printed = _derivatives_at_zero(S + u * v.T + v * u.T, v)
    still, moves = all(d == sympy.zeros(2, 2) for d in squares), all(d != sympy.zeros(2, 2) for d in printed)
    return working(
        f"x.Px - x.Sx - (u.x)^2 - (v.x)^2 = {excess}",
        f"d(S + u u^T + v v^T)/dv_1 at v = 0: {squares[0].tolist()}, d/dv_2: {squares[1].tolist()}",
        f"d(S + u v^T + v u^T)/dv_1 at v = 0: {printed[0].tolist()}",
        f"zero for the squares is {still}, not zero for the printed form is {moves}",
        comes_out=excess == 0 and still and moves,
    )


def _product_is_a_square() -> Working:
    S, u, v, x = _rank_one_symbols()
    M = sympy.eye(2) + u * v.T
    P = M * S * M.T
    y = M.T * x
    excess = sympy.expand((x.T * P * x)[0] - sum(S[i, i] * y[i] ** 2 for i in range(2)))
    determinant = sympy.expand(P.det() - S.det() * (1 + v.dot(u)) ** 2)
    printed = (P.subs({S[0, 0]: 1, S[1, 1]: 1}) - sympy.eye(2) - u * v.T - v * u.T).applyfunc(sympy.expand)
    second_order = (printed - u * u.T * v.dot(v)).applyfunc(sympy.expand)
    derivatives = _derivatives_at_zero(P, v)
    moves = all(d != sympy.zeros(2, 2) for d in derivatives)
    return working(
        f"x.Px - |S^1/2 (I + v u^T) x|^2 = {excess}",
        f"det P - det S (1 + v.u)^2 = {determinant}",
        f"S = I: P - (I + u v^T + v u^T) - |v|^2 u u^T = {second_order.tolist()}",
        f"dP/dv_1 at v = 0: {derivatives[0].tolist()}",
        comes_out=excess == 0 and determinant == 0 and second_order == sympy.zeros(2, 2) and moves,
    )


def _product_can_be_singular() -> Working:
    u, v, s = 1, -1, 1
    P = (1 + u * v) * s * (1 + v * u)
    return working(
        f"u = {u}, v = {v}, S = {s}: I + v u = {1 + v * u}",
        f"P = ({1 + u * v}) {s} ({1 + v * u}) = {P}",
        f"P > 0 is {P > 0}",
        comes_out=P > 0,
    )


# --- section 6: training ------------------------------------------------------------------------------------


def _training() -> Iterator[Claim]:
    yield Claim(
        id="6-scaled-diagonal",
        source="App. C.4, Table 2",
        statement="With d = sqrt(D) p, a step of Adam on p moves d by sqrt(D) times the learning rate.",
        formula="|d(1) - d(0)| = sqrt(D) lr = 0.052 for D = 672 and lr = 0.002",
        proof=(
            "Adam's first step is lr times the sign of the gradient, whatever its size: both moments are that of one "
            "gradient, corrected for their start at zero. Later steps are of that order. So d moves 26 times faster "
            "than U and V do."
        ),
        evidence=(
            Derivation("the first step, symbolically", _first_step_of_adam),
            Derivation("torch's AdamW with the settings of Table 2, without decay", _adam_moves_the_diagonal),
        ),
    )
    yield Claim(
        id="6-weight-decay",
        source="ours, for App. C.4 and Table 2",
        statement="Weight decay on p pulls the preconditioner towards the identity.",
        formula="lim softplus(sqrt(D) p(t)) = 1 for p(t+1) = (1 - lr wd) p(t), 0 < lr wd < 1",
        proof="p goes to zero, and with it d = sqrt(D) p. softplus(0) = ln 2, not 1.",
        evidence=(
            Counterexample("the limit, symbolically", _decays_to_ln2),
            Search(
                "D from 1 to 9, p(0) from 1 to 3, lr wd = 1/2, 200 steps",
                st.tuples(st.integers(1, 9), st.integers(1, 3)),
                violates=lambda c: abs(math.log1p(math.exp(math.sqrt(c[0]) * c[1] * 0.5**200)) - 1) > 0.1,
                size=max,
                largest=1,
            ),
        ),
    )


def _first_step_of_adam() -> Working:
    g, lr, b1, b2, D = sympy.symbols("g lr b1 b2 D", positive=True)
    first = (1 - b1) * g / (1 - b1)
    second = (1 - b2) * g**2 / (1 - b2)
    move = sympy.simplify(lr * first / sympy.sqrt(second))
    on_d = sympy.sqrt(D) * move
    width, rate = 672, sympy.Rational(2, 1000)
    number = on_d.subs({D: width, lr: rate})
    return working(
        f"first moment, corrected: {sympy.simplify(first)}; second: {sympy.simplify(second)} for a gradient g > 0",
        f"p moves by {move}, d = sqrt(D) p by {on_d}",
        f"at D = {width}, lr = {rate}: {sympy.N(number, 5)}",
        f"the move of d is sqrt(D) lr is {on_d == sympy.sqrt(D) * lr}",
        comes_out=on_d == sympy.sqrt(D) * lr,
    )


def _adam_moves_the_diagonal() -> Working:
    D, lr = 672, 0.002
    moves = {}
    for size in (1e-3, 1.0, 1e3):
        p = torch.full((1,), 1 / math.sqrt(D), dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.AdamW([p], lr=lr, betas=(0.9, 0.95), eps=1e-9, weight_decay=0.0)
        before = float(math.sqrt(D) * p.detach())
        (size * math.sqrt(D) * p).sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        moves[size] = before - float(math.sqrt(D) * p.detach())
    held = all(abs(move - math.sqrt(D) * lr) < 1e-6 for move in moves.values())
    return working(
        f"D = {D}, lr = {lr}: sqrt(D) lr = {math.sqrt(D) * lr:.4f}",
        *(f"gradient {size:g} in d: d moves by {move:.4f}" for size, move in moves.items()),
        f"all equal to six digits is {held}",
        comes_out=held,
    )


def _decays_to_ln2() -> Working:
    p, D = sympy.symbols("p D", positive=True)
    rate, decay = sympy.Rational(2, 1000), sympy.Rational(1, 10)
    t, keep = sympy.Symbol("t", positive=True), 1 - rate * decay
    limit = sympy.limit(sympy.log(1 + sympy.exp(sympy.sqrt(D) * p * keep**t)), t, sympy.oo)
    return working(
        f"p(t) = (1 - lr wd)^t p(0), with lr = {rate} and wd = {decay} the factor is {keep}",
        f"lim softplus(sqrt(D) p(t)) = {limit} = {sympy.N(limit, 5)}",
        f"{limit} = 1 is {limit == 1}",
        comes_out=limit == 1,
    )

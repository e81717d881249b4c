"""Claims about preconditioners: Eq. 12 and 13, App. C.4 (docs/mathematics.md §5, §6)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from itertools import product
from random import Random
from typing import Any, NamedTuple

import mpmath
import numpy as np
import sympy
import torch
from hypothesis import strategies as st

from cemverify.cem.presets import CONTEXT, SIZES, llama
from cemverify.claims.arguments import Figures, Instance, Lemma, Sample, Search, Symbols, Working, properties, working
from cemverify.claims.base import Claim, draft, ours
from cemverify.claims.exact import DIGITS, Matrix, inner, show

_SMALL = st.integers(-3, 3)
_POSITIVE = st.integers(1, 3)
_PRINTED = "P = diag(softplus(d)) + U V^T + V U^T"


def claims() -> Iterator[Claim]:
    """Every claim about preconditioners, each with its arguments."""
    yield from _per_head()
    yield from _definiteness()
    yield from _safe_forms()
    yield from _training()


# --- section 5 ----------------------------------------------------------------------------------------


class _TwoHeads(NamedTuple):
    """The gradients of two heads in the plane, negated, and their P as (11, 12, 22)."""

    g: tuple[tuple[int, int], tuple[int, int]]
    P: tuple[tuple[int, int, int], tuple[int, int, int]]


def _two_heads(*, equal: bool) -> st.SearchStrategy[_TwoHeads]:
    P = st.tuples(_POSITIVE, _SMALL, _POSITIVE).filter(lambda p: p[0] * p[2] > p[1] ** 2)
    both = P.map(lambda p: (p, p)) if equal else st.tuples(P, P)
    pair = st.tuples(_SMALL, _SMALL)
    return st.builds(_TwoHeads, st.tuples(pair, pair), both)


def _per_head() -> Iterator[Claim]:
    yield Claim(
        id="5-per-head",
        source=draft("Sec. 2.3, on Eq. 12", "For the interaction energy, we insert per-head preconditioners"),
        statement="Each head may have a positive definite preconditioner of its own; the step still descends.",
        formula="P_k > 0 for all k  =>  sum_k P_k g_k is a descent direction for sum_k g_k",
        condition="all heads share one preconditioner",
        within=lambda case: case.P[0] == case.P[1],
        finding=(
            "First-order descent for all gradients needs the block matrix of (P_k + P_l) / 2 to be positive "
            "semi-definite. For two heads its Schur complement is -(P_1 - P_2) P_1^-1 (P_1 - P_2) / 4, never "
            "positive and zero only if P_1 = P_2 (5-only-equal). Random P "
            "do so seldom: in eight dimensions in less than one draw of a thousand."
        ),
        advice="`P @ sum_k g_k` with one P; with per-head P log how often `g @ step < 0`",
        holds_for=partial(_is_descent, sign=1),
        arguments=(
            Search("two heads in the plane, integers, equal P", _two_heads(equal=True)),
            properties("descent/attention/any-step-size-low-rank"),
            Instance(
                "in effect one dimension: energy -x, step -1", _TwoHeads(((2, 0), (-1, 0)), ((1, 0, 1), (3, 0, 1)))
            ),
            Search("two heads in the plane, integers", _two_heads(equal=False), outside=True, examples=5000),
            Lemma("how seldom: P_k = diag(softplus(d_k)), d_k and the gradients normal", _seldom_uphill),
        ),
    )
    yield Claim(
        id="5-trace-and-determinant",
        source=ours("Eq. 12"),
        statement="It is enough for descent that the heads' preconditioners have one trace and one determinant.",
        formula="P_k = Q_k diag(s) Q_k^T > 0, Q_k orthogonal  =>  g.sum_k P_k g_k >= 0, g = sum_k g_k",
        finding=(
            "It is not. Turning the axes of one head's P against another's is as bad as scaling it: in the example "
            "each P stretches just the coordinate in which its head pulls against the other."
        ),
        advice="normalising the heads' preconditioners does not save per-head P",
        holds_for=partial(_is_descent, sign=1),
        arguments=(
            Instance("P_1 = diag(1, 3), P_2 = diag(3, 1)", _TwoHeads(((2, -1), (-1, 2)), ((1, 0, 3), (3, 0, 1)))),
            Search(
                "P_1 = diag(p, q), P_2 = diag(q, p), integers",
                st.builds(
                    lambda g, p, q: _TwoHeads(g, ((p, 0, q), (q, 0, p))),
                    st.tuples(st.tuples(_SMALL, _SMALL), st.tuples(_SMALL, _SMALL)),
                    *(_POSITIVE, _POSITIVE),
                ),
                examples=5000,
            ),
        ),
    )
    yield Claim(
        id="5-only-equal",
        source=ours("Eq. 12"),
        statement="Preconditioners per head that differ ascend for some gradients, whatever they are.",
        formula="(sum_k g_k).(sum_k P_k g_k) >= 0 for all g_1 ... g_K  <=>  P_1 = ... = P_K; each P_k > 0, symmetric",
        finding=(
            "The form has the block matrix M_kl = (P_k + P_l) / 2. With the gradients of the other heads zero, two "
            "heads remain. The Schur complement of P_1 in their block is P_2 - (P_1 + P_2) P_1^-1 (P_1 + P_2) / 4 = "
            "-(P_1 - P_2) P_1^-1 (P_1 - P_2) / 4. So where they differ, g_1 = -P_1^-1 (P_1 + P_2) v / 2 and g_2 = v "
            "ascend for some v. If all are equal, the form is g.Pg."
        ),
        advice="there is no condition on per-head P short of equality that a layer could enforce",
        holds_for=partial(_ascends_somewhere, blend=1),
        arguments=(
            Sample("unequal pairs of small integer matrices, exact", _unequal_pairs),
            Lemma("the Schur complement for D = 1 and D = 2, in letters", _schur_complement),
        ),
    )
    yield Claim(
        id="5-field",
        source=ours("Eq. 3, 12"),
        statement=(
            "A step with one preconditioner per head still goes down the gradient of some energy, as it does with a "
            "shared P, whose steps are gradient steps in the coordinates P^-1/2 x."
        ),
        formula="there are Q = Q^T > 0 and an energy E with Q sum_k P_k g_k = grad E",
        finding=(
            "It need not. With two tokens the Jacobian of -g_k is w_k(x) c_k c_k^T, c_k the difference of the two "
            "beta and w_k the product of the two weights. So Q must make Q sum_k w_k P_k c_k c_k^T symmetric "
            "wherever x is. For c_1 = (1, 0), c_2 = (0, 1) two places suffice to leave only Q that are not positive "
            "definite. With a shared P there is Q = P^-1."
        ),
        advice="call the step of per-head P an update; it descends no energy in any metric",
        holds_for=partial(_has_a_metric, shared=False),
        arguments=(
            Instance("P_1 = I, P_2 = ((2, 1), (1, 2)), at x = (0, 0) and (ln 2, 0)", ((1, 0, 1), (2, 1, 2))),
            Search(
                "P_1 and P_2 positive definite, integers",
                st.tuples(
                    *[st.tuples(_POSITIVE, st.integers(-2, 2), _POSITIVE).filter(lambda p: p[0] * p[2] > p[1] ** 2)]
                    * 2
                ),
            ),
        ),
    )
    yield Claim(
        id="5-merge",
        source=ours("Eq. 12"),
        statement=(
            "Preconditioners per head cost nothing per token: they can be multiplied into the output projection once."
        ),
        formula="sum_k P_k W_Q,k^T o_k = sum_k (P_k W_Q,k^T) o_k",
        finding=(
            "Matrix products associate, and P_k W_Q,k^T has the shape of W_Q,k^T. But the merged output projection "
            "is no longer W_Q^T: the layer then keeps three matrices, 3/4 of Llama's attention and not half. "
            "Unmerged, diag + U V^T + V U^T of rank r costs K D (8 r + 1) operations a token."
        ),
        advice="merge for inference where time counts and not memory; train unmerged, so that the tie stays",
        holds_for=partial(_merges, order="P W"),
        arguments=(
            Symbols("K = D = 2, R = 1, in letters, and the operations and matrices at the sizes of Table 1"),
            properties("gradient/attention/preconditioner-low-rank-per-head"),
        ),
    )


def _times(P: tuple[int, int, int], v: Sequence[int]) -> tuple[int, int]:
    a, b, d = P
    return a * v[0] + b * v[1], b * v[0] + d * v[1]


def _seldom_uphill() -> Working:
    """How often a random step with one diagonal P per head climbs."""
    rng, draws = np.random.default_rng(0), 200_000
    lines, shares = [], {}
    for D, K in product((2, 8), (2, 8)):
        g = rng.standard_normal((draws, K, D))
        P = np.log1p(np.exp(rng.standard_normal((draws, K, D))))  # softplus(d)
        climbs = np.einsum("nd,nkd->n", g.sum(1), P * g) < 0
        shares[D, K] = float(climbs.mean())
        lines.append(f"D = {D}, K = {K}: {climbs.sum():,} of {draws:,} draws go uphill, {shares[D, K]:.2%}")
    return working(*lines, comes_out=all(0 < shares[8, K] < shares[2, K] / 10 for K in (2, 8)))


def _is_descent(case: _TwoHeads, *, sign: int) -> Working:
    """One token per head in memory: beta_k = g_k, whatever x, so that the energy is -(g_1 + g_2) . x."""
    total = [a + b for a, b in zip(*case.g, strict=True)]
    steps = [_times(P, g) for P, g in zip(case.P, case.g, strict=True)]
    step = [a + b for a, b in zip(*steps, strict=True)]
    along = sum(t * s for t, s in zip(total, step, strict=True))
    return working(
        f"beta_1 = {case.g[0]}, beta_2 = {case.g[1]}: the energy is -{_row(total)}.x",
        f"P (11, 12, 22): {case.P[0]} and {case.P[1]}; step = P_1 beta_1 + P_2 beta_2 = {_row(step)}",
        f"at eta = 1 the energy changes by {-sign * along}; not up: {sign * along >= 0}",
        comes_out=sign * along >= 0,
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


def _unequal_pairs() -> Iterator[tuple[Any, Any]]:
    definite = [
        (a, b, d) for a, b, d in product((1, 2, 3), (-1, 0, 1), (1, 2, 3)) if a * d > b * b and (a + b + d) % 2
    ]
    return ((P1, P2) for P1, P2 in product(definite, repeat=2) if P1 != P2)


def _ascends_somewhere(case: tuple[tuple[int, int, int], tuple[int, int, int]], *, blend: int) -> Working:
    (a, b, d), other = case
    P1 = sympy.Matrix([[a, b], [b, d]])
    P2 = sympy.Matrix([[other[0], other[1]], [other[1], other[2]]]) if blend else P1
    spectra = []
    for v in (sympy.Matrix([1, 0]), sympy.Matrix([0, 1])):
        g1 = -P1.inv() * (P1 + P2) / 2 * v
        spectra.append((_row(g1), (g1 + v).dot(P1 * g1 + P2 * v)))
    lowest = min(value for _, value in spectra)
    return working(
        f"P_1 = {P1.tolist()}, P_2 = {P2.tolist()}",
        *(f"g_1 = {g1}: g . (P_1 g_1 + P_2 g_2) = {value}" for g1, value in spectra),
        f"an ascent: {lowest < 0}",
        comes_out=lowest < 0,
    )


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


def _has_a_metric(case: tuple[_Symmetric, _Symmetric], *, shared: bool) -> Working:
    """Whether some positive definite Q fulfils both conditions."""
    P1, P2 = case[0], case[0] if shared else case[1]
    rows = _conditions(P1, P2)
    space = sympy.Matrix(rows).nullspace()
    q = sympy.symbols("s t u")[: len(space)]
    q11, q12, q22 = sum((a * v for a, v in zip(q, space, strict=True)), sympy.zeros(3, 1))
    grid = product((-2, -1, 0, 1, 2), repeat=len(space)) if len(space) > 1 else ((1,), (-1,))
    values = ([e.subs(dict(zip(q, at, strict=True))) for e in (q11, q12, q22)] for at in grid)
    exists = any(x > 0 and x * z - y * y > 0 for x, y, z in values)
    return working(
        f"P_1 (11, 12, 22) = {P1}, P_2 = {P2}, tau = 1, c_1 = (1, 0), c_2 = (0, 1)",
        f"the weights of head k have the ratio e^x_k: {' and '.join(map(str, _RATIOS))} at the two places",
        *(f"place {i}: {_row(row)} . (q11, q12, q22) = 0" for i, row in enumerate(rows, 1)),
        f"Q = ({q11}, {q12}; {q12}, {q22}); some such Q is positive definite: {exists}",
        comes_out=exists,
    )


def _merges(_: Any, *, order: str) -> Working:
    W_Q = [sympy.Matrix(1, 2, sympy.symbols(f"w{k}1 w{k}2")) for k in (1, 2)]
    P = [_symmetric(f"p{k}", 2) for k in (1, 2)]
    o = [sympy.Matrix(1, 1, [sympy.Symbol(f"o{k}")]) for k in (1, 2)]
    apart = sum((P[k] * (W_Q[k].T * o[k]) for k in range(2)), sympy.zeros(2, 1))
    sides = [(P[k] if order == "P W" else P[1 - k]) * W_Q[k].T for k in range(2)]
    output = sympy.Matrix.hstack(*sides)  # the merged W_O, (D, K R)
    difference = (apart - output * sympy.Matrix.vstack(*o)).applyfunc(sympy.expand)
    rank = 4
    return working(
        f"sum_k P_k (W_Q,k^T o_k) - [P_1 W_Q,1^T, P_2 W_Q,2^T] (o_1, o_2) = {difference.tolist()}",
        *(
            f"{name}: saved {s.heads * s.dim * (8 * rank + 1):,} operations a token at rank {rank}; matrices kept "
            f"{3 * s.dim**2:,} of Llama's {4 * s.dim**2:,}, tied {2 * s.dim**2:,}"
            for name, s in SIZES.items()
        ),
        comes_out=difference == sympy.zeros(2, 1) and output.shape == (2, sum(w.shape[0] for w in W_Q)),
    )


# --- section 6: is it definite? -------------------------------------------------------------------------


class _Rank1(NamedTuple):
    """S + u v^T + v u^T in the plane."""

    S: Sequence[Any]
    u: Sequence[int]
    v: Sequence[int]


_TWO = st.tuples(_SMALL, _SMALL)


def _definiteness() -> Iterator[Claim]:
    yield Claim(
        id="6-softplus-diagonal",
        source=draft("Eq. 12, 13; App. C.4", _PRINTED, "formula"),
        statement="The softplus makes the preconditioner diag(softplus(d)) + U V^T + V U^T positive definite.",
        formula="diag(softplus(d)) + U V^T + V U^T > 0 for all d, U, V",
        finding=(
            "It does not. At rank one the cross term has the eigenvalues u.v +- |u||v|, and the lower one has no "
            "lower bound. 6-product-bound says how small U and V must be; 6-safe-form is one that cannot fail."
        ),
        advice="`S.sqrt() * (I + c * (U @ V.T + V @ U.T)) * S.sqrt()` with `c = min(1, rho / (2 |U|_F |V|_F))`",
        holds_for=partial(_softplus_is_enough, form="printed"),
        arguments=(
            Instance("D = R = 1, d = 0, U = 1, V = -1", (0, 1, -1)),
            Search("d, U and V integers in one dimension", st.tuples(_SMALL, _SMALL, _SMALL)),
        ),
    )
    yield Claim(
        id="6-exact-test",
        source=ours("Eq. 12, 13"),
        statement="Whether the printed P is positive definite can be read off a matrix of size 2 R.",
        formula=(
            "P > 0 <=> every eigenvalue of J B^T S^-1 B exceeds -1, S = diag(softplus(d)), B = [U V], J = [[0, I], "
            "[I, 0]]; for R = 1: sqrt(a b) - c < 1, a = u.S^-1 u, b = v.S^-1 v, c = u.S^-1 v"
        ),
        finding=(
            "P = S + B J B^T = S^1/2 (I + N) S^1/2 with N = S^-1/2 B J B^T S^-1/2. N is symmetric, and its non-zero "
            "eigenvalues are those of J B^T S^-1 B, as for X Y and Y X always. For R = 1 that is [[c, b], [a, c]], "
            "with eigenvalues c +- sqrt(a b)."
        ),
        advice="`eigvals(J @ B.T @ (B / S[:, None])).real.min() > -1`: exact, and O(D R^2)",
        holds_for=partial(_small_test_decides, least=-1),
        arguments=(
            Sample("R = 1, D = 2: integers against the minors of P, exact", _rank_one_cases),
            Lemma("R = 2, D = 3: random integers, exact characteristic polynomials", _rank_two_test),
        ),
    )
    yield Claim(
        id="6-product-bound",
        source=ours("Eq. 12, 13"),
        statement="The printed P is positive definite if its diagonal exceeds twice the product of the norms.",
        formula="min softplus(d) > 2 |U|_2 |V|_2  =>  diag(softplus(d)) + U V^T + V U^T > 0; 2 cannot be lowered",
        finding=(
            "|U V^T + V U^T|_2 <= 2 |U|_2 |V|_2, so that no eigenvalue of P is below min softplus(d) minus that. "
            "With R = 1, V = -U and S = s I the eigenvalue s - 2 |u| |v| is reached."
        ),
        advice="log `softplus(d).min() / (2 * norm(U, 2) * norm(V, 2))`; above 1 all is well",
        holds_for=partial(_bound_suffices, constant=2),
        arguments=(
            Sample("R = 1, D = 2: a grid of integers, exact", _bound_cases),
            Lemma("R = 2, D = 3: random integers, eigenvalues in 30 digits", _product_bound_at_rank_two),
        ),
    )
    yield Claim(
        id="6-difference-bound",
        source=ours("Eq. 12, 13"),
        statement="The printed P is positive definite whenever U and V are close enough, however large they are.",
        formula="min softplus(d) > |U - V|_2^2 / 2  =>  P > 0; for R = 1 and S = s I: P > 0 <=> s > |u| |v| - u.v",
        finding=(
            "U V^T + V U^T = ((U + V)(U + V)^T - (U - V)(U - V)^T) / 2, whose first term is positive semi-definite "
            "and whose second is at least -|U - V|_2^2 / 2. For R = 1, u v^T + v u^T has the eigenvalues u.v +- |u| "
            "|v| and 0."
        ),
        advice="start V at U and not at 0 if large factors are wanted",
        holds_for=partial(_closeness_suffices, sign=-1),
        arguments=(
            Sample("R = 1, S = s I: a grid of integers, exact", _equal_diagonals),
            Lemma("the identity in letters, D = R = 2", _difference_identity),
        ),
    )
    yield Claim(
        id="6-initialisation",
        source=ours("App. C.4, which says that d starts at 1"),
        statement="At the paper's initialisation, V = 0 and d = 1, P is the identity.",
        formula="softplus(1) = 1",
        finding=(
            "It is 1.313 times the identity: with V = 0, P = softplus(1) I = ln(1 + e) I. The paper does not say "
            "otherwise; the identity needs d = ln(e - 1) = 0.5413."
        ),
        advice="`d = torch.full((D,), 0.541325)` if the first step is to be the plain one",
        holds_for=_starts_at_the_identity,
        arguments=(Figures("d = 1, V = 0", 1.0),),
    )
    yield Claim(
        id="6-stays-definite",
        source=ours("App. C.4 and Table 2"),
        statement=(
            "Started there, training at the rate of Table 2 keeps the printed P of the MLP, R = 16, positive "
            "definite over the warm-up, whatever the gradients are."
        ),
        formula="d = 1, U ~ N(0, 0.02^2), V(0) = 0, |V(t) - V(t-1)| <= lr(t)  =>  P(t) > 0 for t <= 5 % of the steps",
        finding=(
            "It need not. A step of Adam moves each entry by about the learning rate, which rises to 0.002 over the "
            "warm-up. If all columns of V move against the sign of U's row sums, P has a negative eigenvalue before "
            "a quarter of the warm-up is over. Possible is not typical: gradients that push so throughout would be "
            "unusual."
        ),
        advice="log the smallest eigenvalue of P (6-exact-test), or use 6-safe-form",
        holds_for=partial(_survives_the_warm_up, rate=0.002),
        arguments=(
            *(Figures(f"{name}: D = {SIZES[name].dim}, adversarial signs", name) for name in ("86M", "162M")),
        ),
    )


def _softplus_is_enough(case: tuple[int, int, int], *, form: str) -> Working:
    d, U, V = case
    with mpmath.workdps(DIGITS):
        S, cross = mpmath.log(1 + mpmath.exp(d)), mpmath.mpf(2 * U * V)
        c = min(mpmath.mpf(1), mpmath.mpf(99) / 100 / (2 * abs(U * V))) if U * V else mpmath.mpf(1)
        P = S + cross if form == "printed" else S * (1 + c * cross)
    return working(
        f"d = {d}, U = {U}, V = {V}: softplus(d) = {mpmath.nstr(S, 6)}, U V + V U = {mpmath.nstr(cross, 6)}",
        f"P = {mpmath.nstr(P, 6)}, positive: {bool(P > 0)}",
        comes_out=P > 0,
    )


def _printed(S: Sequence[Any], u: Sequence[Any], v: Sequence[Any]) -> Matrix:
    """diag(S) + u v^T + v u^T."""
    return [[(S[i] if i == j else 0) + u[i] * v[j] + v[i] * u[j] for j in range(len(S))] for i in range(len(S))]


def _is_definite(P: Matrix) -> bool:
    """By Sylvester's leading minors, D = 2."""
    return bool(P[0][0] > 0 and P[0][0] * P[1][1] - P[0][1] * P[1][0] > 0)


def _rank_one_cases() -> Iterator[_Rank1]:
    entries = list(product(range(-2, 3), repeat=2))
    return (_Rank1(S, u, v) for S, u, v in product(((1, 1), (1, 4), (3, 2)), entries, entries))


def _small_test_decides(case: _Rank1, *, least: int) -> Working:
    a, b, c = (
        sum(Fraction(p * q, s) for p, q, s in zip(x, y, case.S, strict=True))
        for x, y in ((case.u, case.u), (case.v, case.v), (case.u, case.v))
    )
    slack = c - least
    small = slack > 0 and a * b < slack**2  # c - sqrt(a b) > least, without a root
    definite = _is_definite(_printed(*case))
    return working(
        f"S = diag{case.S}, u = {case.u}, v = {case.v}: P = {_printed(*case)}, positive definite: {definite}",
        f"a = {a}, b = {b}, c = {c}: c - sqrt(a b) > {least}: {small}",
        comes_out=small == definite,
    )


def _bound_cases() -> Iterator[_Rank1]:
    entries = list(product(range(-2, 3), repeat=2))
    diagonals = [(s, s + more) for s in range(1, 18, 2) for more in (0, 3)]
    return (_Rank1(S, u, v) for S, u, v in product(diagonals, entries, entries))


def _bound_suffices(case: _Rank1, *, constant: int) -> Working:
    S, u, v = case
    inside = min(S) ** 2 > constant**2 * inner(u, u) * inner(v, v)
    definite = _is_definite(_printed(*case))
    return working(
        f"S = diag{S}, u = {u}, v = {v}: min S > {constant} |u| |v| is {inside}, P = {_printed(*case)} positive "
        f"definite is {definite}",
        comes_out=definite or not inside,
    )


def _equal_diagonals() -> Iterator[_Rank1]:
    entries = list(product(range(-2, 3), repeat=2))
    return (_Rank1((s, s), u, v) for s, u, v in product(range(1, 10), entries, entries))


def _closeness_suffices(case: _Rank1, *, sign: int) -> Working:
    S, u, v = case
    definite = _is_definite(_printed(*case))
    gap = [a + sign * b for a, b in zip(u, v, strict=True)]
    slack = S[0] - sign * inner(u, v)  # s > |u| |v| - u.v without a root
    iff = slack > 0 and slack**2 > inner(u, u) * inner(v, v)
    close = 2 * S[0] > inner(gap, gap)
    return working(
        f"S = {S[0]} I, u = {u}, v = {v}: P > 0 is {definite}",
        f"s > |u - v|^2 / 2 is {close}, s > |u| |v| - u.v is {iff}",
        comes_out=(definite or not close) and definite == iff,
    )


def _difference_identity() -> Working:
    U, V = (sympy.Matrix(2, 2, sympy.symbols(f"{n}11 {n}12 {n}21 {n}22")) for n in "uv")
    identity = U * V.T + V * U.T - ((U + V) * (U + V).T - (U - V) * (U - V).T) / 2
    identity = identity.applyfunc(sympy.expand)
    return working(
        f"U V^T + V U^T - ((U + V)(U + V)^T - (U - V)(U - V)^T) / 2 = {identity.tolist()}",
        comes_out=identity == sympy.zeros(2, 2),
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
    """A matrix of whole numbers as one of mpmath."""
    return mpmath.matrix([[mpmath.mpf(int(v)) for v in row] for row in matrix.tolist()])


def _starts_at_the_identity(d: float) -> Working:
    P = math.log1p(math.exp(d))
    return working(f"d = {d:.7g}, V = 0: P = softplus(d) I = {P:.7g} I", comes_out=abs(P - 1) < 1e-12)


_RANK = 16
_BATCH = 128
_TOKENS_PER_PARAMETER = 20


def _survives_the_warm_up(name: str, *, rate: float) -> Working:
    """The warm-up of Table 2, 5 % of the steps, with V moving against the sign of the row sums of U."""
    size = SIZES[name]
    parameters = _parameters(name)
    steps = _TOKENS_PER_PARAMETER * parameters // (_BATCH * CONTEXT)
    warm_up = steps // 20
    U = np.random.default_rng(16).normal(0, 0.02, (size.dim, _RANK))
    against = -np.sign(U.sum(1))[:, None] * np.ones((1, _RANK))
    S = math.log1p(math.e)

    def smallest(t: int) -> float:
        """Of P = S I + B J B^T, by a matrix of size 2 R (6-exact-test)."""
        B = np.hstack([U, rate * t * (t + 1) / (2 * warm_up) * against])
        J = np.kron(np.array([[0, 1], [1, 0]]), np.eye(_RANK))
        return float(S + np.linalg.eigvals(J @ B.T @ B).real.min())

    # it falls with t, so that the first step at which it is not positive is found by halving
    first = bisect_left(range(1, warm_up + 1), 1, key=lambda t: int(smallest(t) <= 0)) + 1
    lost = first if first <= warm_up else None
    shown_steps = [t for t in (1, lost and lost - 1, lost, warm_up) if t]
    return working(
        f"{parameters:,} parameters, {_TOKENS_PER_PARAMETER} tokens each in batches of {_BATCH} x {CONTEXT}: "
        f"{steps:,} steps, {warm_up} of warm-up to {rate:g}",
        *(f"step {t}: smallest eigenvalue of P {smallest(t):.4f}" for t in shown_steps),
        f"lost at step {lost}" if lost else "not lost",
        comes_out=lost is None,
    )


def _parameters(name: str) -> int:
    """Of the Llama model of that size, by its formula (15-llama-counts)."""
    s, V = SIZES[name], llama(name).vocabulary
    return 2 * V * s.dim + s.layers * (4 * s.dim**2 + 3 * s.dim * s.hidden + 2 * s.dim) + s.dim


# --- section 6: forms that are always definite ------------------------------------------------------------


def _safe_forms() -> Iterator[Claim]:
    yield Claim(
        id="6-safe-form",
        source=ours("Eq. 12, 13"),
        statement=(
            "Scaling the cross term by its norms gives a P that is positive definite for all parameters, as many as "
            "the printed one has."
        ),
        formula=(
            "P = S^1/2 (I + c (U V^T + V U^T)) S^1/2, c = min(1, rho / (2 |U|_F |V|_F)), 0 < rho < 1: "
            "lambda_min(P) >= (1 - rho) min softplus(d)"
        ),
        finding=(
            "|U V^T + V U^T|_2 <= 2 |U|_2 |V|_2 <= 2 |U|_F |V|_F, so that c times it is at most rho and the bracket "
            "at least 1 - rho. x.Px >= (1 - rho) |S^1/2 x|^2 follows. V = -U with R = 1 attains it. Where the norms "
            "are small, c = 1 and P agrees with the printed one up to the factors S^1/2."
        ),
        advice='preconditioner "low-rank" here; the printed one is "low-rank-printed"',
        holds_for=partial(_safe_form_is_bounded, scaled=True),
        arguments=(
            Sample("random integers, D = 3 and R = 2, eigenvalues in 30 digits", lambda: _random_cases(40, 2)),
            Instance("V = -U attains the bound", (sympy.eye(3), *(sympy.Matrix([s, 2 * s, -s]) for s in (1, -1)))),
            properties(
                "gradient/attention/preconditioner-low-rank",
                "gradient/mlp/preconditioner-low-rank",
                "descent/attention/any-step-size-low-rank",
                "descent/mlp/safe-step-low-rank",
            ),
        ),
    )
    yield Claim(
        id="6-sum-of-squares",
        source=ours("Eq. 12, 13"),
        statement=(
            "S + U U^T + V V^T is positive definite for all parameters, but V does not move from V = 0, where the "
            "paper starts it."
        ),
        formula="x.Px >= x.Sx > 0, and dP/dV = 0 at V = 0",
        finding=(
            "x.Px = x.Sx + |U^T x|^2 + |V^T x|^2. V enters by its square, whose derivative V dV^T + dV V^T vanishes "
            "at zero, and with it that of any loss. The printed form has U dV^T + dV U^T there."
        ),
        advice="start both factors away from zero if you use it",
        holds_for=partial(_squares_do_not_move, form="squares"),
        arguments=(Symbols("D = 2, R = 1, in letters"),),
    )
    yield Claim(
        id="6-product-form",
        source=ours("Eq. 12, 13"),
        statement="(I + U V^T) S (I + V U^T) is positive definite.",
        formula="x.Px = |S^1/2 (I + V U^T) x|^2 > 0 for x != 0",
        condition="det(I + V^T U) != 0; it is positive semi-definite always",
        within=lambda case: 1 + inner(case.u, case.v) != 0,
        finding=(
            "P = M S M^T with M = I + U V^T, so x.Px = |S^1/2 M^T x|^2 >= 0, with equality for some x != 0 exactly "
            "where det M = det(I + V^T U) = 0. With S = I it is the printed form up to U V^T V U^T; at V = 0 it is "
            "S, and its derivative in V is not zero."
        ),
        advice="keep |V^T U| below one, or add a small multiple of the identity",
        holds_for=partial(_product_is_definite, transposed=True),
        arguments=(
            Search("u, v and S integers in the plane, R = 1", _PRODUCTS),
            Lemma("square and determinant in letters, D = 2, R = 1", _product_is_a_square),
            Instance("in effect one dimension: u = 1, v = -1", _Rank1((1, 1), (1, 0), (-1, 0))),
            Search("the same where det(I + V^T U) = 0", _SINGULAR_PRODUCTS, outside=True),
        ),
    )


_PRODUCTS = st.builds(_Rank1, st.tuples(_POSITIVE, _POSITIVE), _TWO, _TWO)
_SINGULAR_PRODUCTS = st.builds(
    lambda S, t: _Rank1(S, (1, t), (-1 - t, 1)), st.tuples(_POSITIVE, _POSITIVE), st.integers(-3, 3)
)


def _safe_form_is_bounded(case: tuple[Any, Any, Any], *, scaled: bool) -> Working:
    """lambda_min(P) / min S >= 1 - rho."""
    S, U, V = case
    with mpmath.workdps(DIGITS):
        rho = mpmath.mpf(99) / 100
        norms = [mpmath.sqrt(sum(int(a) ** 2 for a in X)) for X in (U, V)]
        c = min(mpmath.mpf(1), rho / (2 * norms[0] * norms[1])) if scaled and all(norms) else mpmath.mpf(1)
        roots = [mpmath.sqrt(int(S[i, i])) for i in range(S.rows)]
        cross = _mp(U * V.T + V * U.T)
        P = mpmath.matrix(S.rows, S.rows)
        for i, j in product(range(S.rows), repeat=2):
            P[i, j] = roots[i] * ((i == j) + c * cross[i, j]) * roots[j]
        ratio = min(mpmath.eigsy(P, eigvals_only=True)) / min(roots) ** 2
        held = ratio >= 1 - rho - mpmath.mpf("1e-20")
    return working(
        f"S = diag{_row(S.diagonal())}, U = {U.tolist()}, V = {V.tolist()}: c = {show(c)}",
        f"lambda_min(P) / min S = {mpmath.nstr(ratio, 12)}, at least 1 - rho = {mpmath.nstr(1 - rho, 4)}: "
        f"{bool(held)}",
        comes_out=held,
    )


def _rank_one_symbols() -> tuple[Any, Any, Any, Any]:
    """S, u, v and x, D = 2."""
    S = sympy.diag(*sympy.symbols("s1:3", positive=True))
    u, v, x = (sympy.Matrix(sympy.symbols(f"{name}1:3", real=True)) for name in "uvx")
    return S, u, v, x


def _derivatives_at_zero(P: Any, v: Any) -> list[Any]:
    """dP/dv_d at v = 0, for each d."""
    zero = dict.fromkeys(v, 0)
    return [P.diff(a).subs(zero) for a in v]


def _squares_do_not_move(_: Any, *, form: str) -> Working:
    S, u, v, x = _rank_one_symbols()
    P = S + (u * u.T + v * v.T if form == "squares" else u * v.T + v * u.T)
    excess = sympy.expand((x.T * P * x)[0] - (x.T * S * x)[0] - u.dot(x) ** 2 - v.dot(x) ** 2)
    derivatives = _derivatives_at_zero(P, v)
    still = all(d == sympy.zeros(2, 2) for d in derivatives)
    return working(
        f"x.Px - x.Sx - (u.x)^2 - (v.x)^2 = {excess}",
        f"dP/dv_1 at v = 0: {derivatives[0].tolist()}, dP/dv_2: {derivatives[1].tolist()}",
        f"both zero is {still}",
        comes_out=excess == 0 and still,
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


def _product_is_definite(case: _Rank1, *, transposed: bool) -> Working:
    S, u, v = (sympy.Matrix(part) for part in case)
    M = sympy.eye(2) + u * v.T
    P = M * sympy.diag(*S) * (M.T if transposed else M)
    P = (P + P.T) / 2
    definite = _is_definite(P.tolist())
    return working(
        f"S = diag{case.S}, u = {case.u}, v = {case.v}: det(I + v^T u) = {1 + inner(case.u, case.v)}",
        f"P = {P.tolist()}, positive definite: {definite}",
        comes_out=definite,
    )


# --- section 6: training ------------------------------------------------------------------------------------


def _training() -> Iterator[Claim]:
    yield Claim(
        id="6-scaled-diagonal",
        source=ours("App. C.4, where d = sqrt(D) p, and Table 2"),
        statement="A step of Adam on p moves d by sqrt(D) times the learning rate of that step.",
        formula=(
            "|d(1) - d(0)| = sqrt(D) lr: 0.052 at the full rate for D = 672, 1.6e-4 at the first of 329 warm-up steps"
        ),
        finding=(
            "Adam's first step is lr times the sign of the gradient, whatever its size: both moments are that of one "
            "gradient, corrected for their start at zero. Later steps are of that order. So d moves 26 times faster "
            "than U and V do."
        ),
        advice="give p a learning rate of its own, lr / sqrt(D), if d is to move as the other weights do",
        holds_for=partial(_adam_moves_the_diagonal, scale="sqrt(D)"),
        arguments=(
            *(Figures(f"torch's AdamW with the settings of Table 2, lr = {lr:g}", lr) for lr in (0.002, 0.002 / 329)),
            Lemma("the first step, in letters", _first_step_of_adam),
        ),
    )
    yield Claim(
        id="6-weight-decay",
        source=ours("App. C.4 and Table 2"),
        statement="Weight decay on p pulls the preconditioner towards the identity.",
        formula="lim softplus(sqrt(D) p(t)) = 1 for p(t+1) = (1 - lr wd) p(t), 0 < lr wd < 1",
        finding="It pulls it towards ln 2 times the identity: p goes to zero, and with it d, and softplus(0) = ln 2.",
        advice="take p out of the weight decay, or decay towards ln(e - 1) / sqrt(D)",
        holds_for=partial(_decays_to_one, limit=0),
        arguments=(Symbols("the limit, in letters"),),
    )


def _first_step_of_adam() -> Working:
    g, lr, b1, b2, D = sympy.symbols("g lr b1 b2 D", positive=True)
    first = (1 - b1) * g / (1 - b1)
    second = (1 - b2) * g**2 / (1 - b2)
    move = sympy.simplify(lr * first / sympy.sqrt(second))
    on_d = sympy.sqrt(D) * move
    return working(
        f"first moment, corrected: {sympy.simplify(first)}; second: {sympy.simplify(second)} for a gradient g > 0",
        f"p moves by {move}, d = sqrt(D) p by {on_d}",
        comes_out=on_d == sympy.sqrt(D) * lr,
    )


def _adam_moves_the_diagonal(lr: float, *, scale: str) -> Working:
    D = 672
    expected = lr * (math.sqrt(D) if scale == "sqrt(D)" else 1)
    moves = {}
    for size in (1e-3, 1.0, 1e3):
        p = torch.full((1,), 1 / math.sqrt(D), dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.AdamW([p], lr=lr, betas=(0.9, 0.95), eps=1e-9, weight_decay=0.0)
        before = float(math.sqrt(D) * p.detach())
        (size * math.sqrt(D) * p).sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        moves[size] = before - float(math.sqrt(D) * p.detach())
    held = all(abs(move - expected) < 1e-5 * expected for move in moves.values())
    return working(
        f"D = {D}, lr = {lr:.3g}: {scale} lr = {expected:.3g}",
        *(f"gradient {size:g} in d: d moves by {move:.3g}" for size, move in moves.items()),
        f"all equal to five digits is {held}",
        comes_out=held,
    )


def _decays_to_one(_: Any, *, limit: Any) -> Working:
    d = sympy.Symbol("d", positive=True)
    rate, decay = sympy.Rational(2, 1000), sympy.Rational(1, 10)
    t, keep = sympy.Symbol("t", positive=True), 1 - rate * decay
    end = sympy.limit(sympy.log(1 + sympy.exp(limit + (d - limit) * keep**t)), t, sympy.oo)
    one = sympy.simplify(end - 1) == 0
    return working(
        f"d(t) - {limit} shrinks by (1 - lr wd) a step, with lr = {rate} and wd = {decay} by {keep}",
        f"lim softplus(d(t)) = {end} = {sympy.N(end, 5)}; it is 1: {one}",
        comes_out=one,
    )

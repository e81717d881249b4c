"""Claims about preconditioners: Eq. 12 and 13, App. C.4 (docs/mathematics.md §5, §6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from random import Random
from typing import Any, NamedTuple

import mpmath
import sympy
from hypothesis import strategies as st

from cemverify.claims.arguments import Instance, Lemma, Sample, Search, Working, properties, working
from cemverify.claims.base import Claim, draft, ours
from cemverify.claims.exact import DIGITS, show

_SMALL = st.integers(-3, 3)
_POSITIVE = st.integers(1, 3)
_PRINTED = "P = diag(softplus(d)) + U V^T + V U^T"


def claims() -> Iterator[Claim]:
    """Every claim about preconditioners, each with its arguments."""
    yield from _per_head()
    yield from _definiteness()


# --- section 5 ----------------------------------------------------------------------------------------


class _TwoHeads(NamedTuple):
    """The negative gradients of two heads in the plane, and their P as entries (11, 12, 22)."""

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
        statement="Each head may have its own positive definite preconditioner; the step still descends.",
        formula="P_k > 0 for all k  =>  sum_k P_k g_k is a descent direction for sum_k g_k",
        condition="all heads share one preconditioner",
        within=lambda case: case.P[0] == case.P[1],
        finding=(
            "First-order descent for all gradients needs the matrix with blocks (P_k + P_l) / 2 to be positive "
            "semi-definite. For two heads its Schur complement is -(P_1 - P_2) P_1^-1 (P_1 - P_2) / 4, which is "
            "never positive, and zero only if P_1 = P_2. So unless all P_k are equal, the step climbs for some "
            "gradients."
        ),
        advice="`P @ sum_k g_k` with one P; with per-head P, log how often `g @ step < 0`",
        holds_for=partial(_is_descent, sign=1),
        arguments=(
            Search("two heads in the plane, integers, equal P", _two_heads(equal=True)),
            properties("descent/attention/any-step-size-low-rank"),
            Instance(
                "in effect one dimension: energy -x, step -1", _TwoHeads(((2, 0), (-1, 0)), ((1, 0, 1), (3, 0, 1)))
            ),
            Search("two heads in the plane, integers", _two_heads(equal=False), outside=True, examples=5000),
            Lemma("the Schur complement for D = 1 and D = 2, in letters", _schur_complement),
        ),
    )


def _times(P: tuple[int, int, int], v: Sequence[int]) -> tuple[int, int]:
    a, b, d = P
    return a * v[0] + b * v[1], b * v[0] + d * v[1]


def _is_descent(case: _TwoHeads, *, sign: int) -> Working:
    """One token per head in memory: beta_k = g_k for every x, so the energy is -(g_1 + g_2) . x."""
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


# --- section 6: is it definite? -------------------------------------------------------------------------


def _definiteness() -> Iterator[Claim]:
    yield Claim(
        id="6-softplus-diagonal",
        source=draft("Eq. 12, 13; App. C.4", _PRINTED, "formula"),
        statement="The softplus makes the preconditioner diag(softplus(d)) + U V^T + V U^T positive definite.",
        formula="diag(softplus(d)) + U V^T + V U^T > 0 for all d, U, V",
        finding=(
            "It does not. At rank one, U V^T + V U^T has the eigenvalues u.v +- |u||v|, and the lower one has no "
            "lower bound. P is positive definite where min softplus(d) > 2 |U|_2 |V|_2; the form of 6-safe-form "
            "always is."
        ),
        advice="`S.sqrt() * (I + c * (U @ V.T + V @ U.T)) * S.sqrt()` with `c = min(1, rho / (2 |U|_F |V|_F))`",
        holds_for=partial(_softplus_is_enough, form="printed"),
        arguments=(
            Instance("D = R = 1, d = 0, U = 1, V = -1", (0, 1, -1)),
            Search("d, U and V integers in one dimension", st.tuples(_SMALL, _SMALL, _SMALL)),
        ),
    )
    yield Claim(
        id="6-safe-form",
        source=ours("Eq. 12, 13"),
        rests=("finding 2", "cemverify.cem.preconditioners.LowRank", "descent/attention/any-step-size-low-rank"),
        statement=(
            "Scaling U V^T + V U^T by the norms of U and V makes P positive definite for all parameters, and adds "
            "none."
        ),
        formula=(
            "P = S^1/2 (I + c (U V^T + V U^T)) S^1/2, c = min(1, rho / (2 |U|_F |V|_F)), 0 < rho < 1: "
            "lambda_min(P) >= (1 - rho) min softplus(d)"
        ),
        finding=(
            "|U V^T + V U^T|_2 <= 2 |U|_2 |V|_2 <= 2 |U|_F |V|_F, so c times it is at most rho and the bracket at "
            "least 1 - rho. Hence x.Px >= (1 - rho) |S^1/2 x|^2. V = -U with R = 1 attains the bound. Where the "
            "norms are small, c = 1, and P agrees with the printed form up to the factors S^1/2."
        ),
        advice='here this is the preconditioner "low-rank"; the printed one is "low-rank-printed"',
        holds_for=partial(_safe_form_is_bounded, scaled=True),
        arguments=(
            Sample("random integers, D = 3 and R = 2, eigenvalues in 30 digits", _random_cases),
            Instance("V = -U attains the bound", (sympy.eye(3), *(sympy.Matrix([s, 2 * s, -s]) for s in (1, -1)))),
            properties(
                "gradient/attention/preconditioner-low-rank",
                "gradient/mlp/preconditioner-low-rank",
                "descent/attention/any-step-size-low-rank",
                "descent/mlp/safe-step-low-rank",
            ),
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


def _random_cases() -> Iterator[tuple[Any, Any, Any]]:
    """S, U and V with small integers, D = 3 and R = 2."""
    random = Random(6)  # noqa: S311  (no secret)
    for _ in range(40):
        S = sympy.diag(*(random.randint(1, 12) for _ in range(3)))
        U, V = (sympy.Matrix(3, 2, lambda *_: random.randint(-2, 2)) for _ in range(2))
        yield S, U, V


def _mp(matrix: Any) -> Any:
    """A matrix of whole numbers as one of mpmath."""
    return mpmath.matrix([[mpmath.mpf(int(v)) for v in row] for row in matrix.tolist()])


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

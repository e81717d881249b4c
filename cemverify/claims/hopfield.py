"""Claims about the Hopfield energy: CCCP, step sizes, the energy as printed (App. B, docs/mathematics.md §11)."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import mpmath
import sympy
from hypothesis import strategies as st

from cemverify.claims.arguments import Instance, Lemma, Search, Symbols, Working, working
from cemverify.claims.base import Claim, draft, ours, slip
from cemverify.claims.exact import DIGITS, PAIR, Vector, energy, show, simplified, weights


def claims() -> Iterator[Claim]:
    """Every claim about Hopfield networks, each with its arguments."""
    yield Claim(
        id="11-cccp",
        source=draft("App. B", "exactly the update rule underlying the attention mechanism"),
        statement=(
            "One CCCP step on the Hopfield energy is attention to the patterns, and a gradient step of size one."
        ),
        formula="argmin_y |y|^2 / 2 - p(x) . y  =  p(x)  =  x - grad E(x), p(x) = sum_j softmax_j(h_j . x / tau) h_j",
        finding=(
            "E = |x|^2 / 2 - tau log sum_j exp(h_j . x / tau) is convex plus concave. CCCP replaces the concave "
            "part, whose gradient is -p(x), by its tangent and minimises |y|^2 / 2 - p(x) . y: y = p(x). And grad E "
            "= x - p(x)."
        ),
        advice="`x = softmax(h @ x / tau) @ h` needs no residual: the quadratic part cancels x",
        holds_for=partial(_cccp_is_a_gradient_step, size=1),
        arguments=(Symbols("two patterns, D = 2, in letters"),),
    )
    yield Claim(
        id="11-any-step",
        source=ours("App. B"),
        rests=("cemverify.cem.energies.hopfield.Hopfield.curvature",),
        statement="Gradient steps lower the Hopfield energy, the CCCP step (eta = 1) among them.",
        formula="E(x - eta g) <= E(x) - (eta - eta^2 / 2) |g|^2",
        condition="the step size is in (0, 2)",
        within=lambda case: 0 < case[2] < 2,
        finding=(
            "The concave part rises by at most its tangent, and the quadratic part is exact. Together they change "
            "by at most -(eta - eta^2 / 2) |g|^2, which is negative for 0 < eta < 2. With a single pattern the "
            "bound is an equality, so beyond 2 the energy rises."
        ),
        advice="keep eta below 2; eta = 1 gives the largest guaranteed decrease",
        holds_for=partial(_step_lowers, sign=1),
        arguments=(
            Search("two patterns and x, integers in one dimension, eta in quarters", _cases(1, 7)),
            Lemma("the tangent of the concave part plus the quadratic part, in letters", _hopfield_decrease),
            Instance("the pattern 0, x = 1, eta slightly above 2", ((0, 0), 1, Fraction(201, 100))),
            Search("the same, eta in quarters from 9/4 to 3", _cases(9, 12), outside=True),
        ),
    )
    yield Claim(
        id="11-printed",
        source=slip("App. B", "E(x) = -(1/tau) log sum_j exp(h_j . x / tau)", "formula"),
        statement=(
            "x <- p(x) is the CCCP step of the printed energy, which lacks |x|^2 / 2, and so never raises that "
            "energy."
        ),
        formula="E(p(x)) <= E(x) for E(x) = -(1/tau) log sum_j exp(h_j . x / tau), p(x) = sum_j softmax_j h_j",
        finding=(
            "It may raise it. The printed energy has no convex part: its tangent is a linear function without a "
            "minimiser, so there is no CCCP step. x <- p(x) takes its quadratic from |x|^2 / 2."
        ),
        advice="add `0.5 * x.square().sum()` to the energy that CCCP is said to minimise",
        holds_for=partial(_attention_lowers, quadratic=False),
        arguments=(
            Instance("one pattern, 1, tau = 1, x = 2", ((1, 1), 2)),
            Search("two patterns and x, integers in one dimension, tau = 1", st.tuples(PAIR, st.integers(-4, 4))),
        ),
    )


def _cases(least: int, most: int) -> st.SearchStrategy[tuple[Vector, int, Fraction]]:
    return st.tuples(PAIR, st.integers(-4, 4), st.integers(least, most).map(lambda n: Fraction(n, 4)))


def _cccp_is_a_gradient_step(_: Any, *, size: Any) -> Working:
    tau = sympy.Symbol("tau", positive=True)
    x, y = sympy.symbols("x1:3", real=True), sympy.symbols("y1:3", real=True)
    patterns = [sympy.symbols(f"h{j}_1:3", real=True) for j in (1, 2)]
    concave = -tau * sympy.log(sum(sympy.exp((h[0] * x[0] + h[1] * x[1]) / tau) for h in patterns))
    slopes = [sympy.diff(concave, a) for a in x]
    majoriser = sum(b * b for b in y) / 2 + sum(s * b for s, b in zip(slopes, y, strict=True))
    cccp = sympy.solve([sympy.diff(majoriser, b) for b in y], y, dict=True)[0]
    E = sum(a * a for a in x) / 2 + concave
    raw = [sympy.exp((h[0] * x[0] + h[1] * x[1]) / tau) for h in patterns]
    attended = [sum(r * h[i] for r, h in zip(raw, patterns, strict=True)) / sum(raw) for i in (0, 1)]
    to_attention, attends = simplified(*(cccp[y[i]] - attended[i] for i in (0, 1)))
    to_gradient, steps = simplified(*(cccp[y[i]] - (x[i] - size * sympy.diff(E, x[i])) for i in (0, 1)))
    return working(
        "y solves grad_y (|y|^2 / 2 + grad(concave part at x) . y) = 0",
        f"y - p(x), simplified, both components: {to_attention}",
        f"y - (x - {size} grad E(x)), simplified, both components: {to_gradient}",
        comes_out=attends and steps,
    )


def _hopfield_decrease() -> Working:
    eta = sympy.Symbol("eta", positive=True)
    x, p = sympy.symbols("x1:3", real=True), sympy.symbols("p1:3", real=True)
    g = [a - b for a, b in zip(x, p, strict=True)]
    y = [a - eta * b for a, b in zip(x, g, strict=True)]
    quadratic = sum(b * b - a * a for a, b in zip(x, y, strict=True)) / 2
    tangent = -sum(c * (b - a) for a, b, c in zip(x, y, p, strict=True))
    bound = -(eta - eta**2 / 2) * sum(a * a for a in g)
    difference, same = simplified(quadratic + tangent - bound)
    positive = sympy.solveset(eta - eta**2 / 2 > 0, eta, sympy.Interval.open(0, sympy.oo))
    return working(
        "g = x - p(x), y = x - eta g; the concave part rises by at most its tangent, -p(x) . (y - x) (4-any-step)",
        "claimed: (|y|^2 - |x|^2) / 2 - p(x) . (y - x) = -(eta - eta^2 / 2) |g|^2",
        f"difference, simplified (D = 2): {difference}",
        f"eta - eta^2 / 2 > 0 for eta in {positive}",
        comes_out=same and positive == sympy.Interval.open(0, 2),
    )


def _step_lowers(case: tuple[Vector, int, Fraction], *, sign: int) -> Working:
    patterns, x, eta = case
    with mpmath.workdps(DIGITS):
        step = mpmath.mpmathify(eta)
        g = x - mpmath.fdot(weights([h * x for h in patterns]), patterns)
        y = x - sign * step * g
        before, after = (z * z / mpmath.mpf(2) + energy([h * z for h in patterns]) for z in (x, y))
        promised = before - max(mpmath.mpf(0), step - step**2 / 2) * g**2
        held = after <= promised + mpmath.mpf("1e-20")
    return working(
        f"patterns {show(tuple(patterns))}, tau = 1, x = {x}: g = {show(g)}, eta = {eta}",
        f"x -> {show(y)}, E {show(before)} -> {show(after)}; at most {show(promised)}: {bool(held)}",
        comes_out=held,
    )


def _attention_lowers(case: tuple[Vector, int], *, quadratic: bool) -> Working:
    patterns, x = case
    with mpmath.workdps(DIGITS):
        y = mpmath.fdot(weights([h * x for h in patterns]), patterns)
        before, after = (
            energy([h * z for h in patterns]) + (z * z / mpmath.mpf(2) if quadratic else 0) for z in (x, y)
        )
        held = after <= before + mpmath.mpf("1e-20")
    return working(
        f"patterns {show(tuple(patterns))}, tau = 1: x {x} -> p(x) = {show(y)}",
        f"E {show(before)} -> {show(after)}; not higher: {bool(held)}",
        comes_out=held,
    )

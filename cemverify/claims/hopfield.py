"""Claims about the Hopfield energy: CCCP, step sizes, the energy as printed (App. B, docs/mathematics.md §11)."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import sympy
from hypothesis import strategies as st

from cemverify.claims.base import Claim
from cemverify.claims.evidence import (
    Counterexample,
    Derivation,
    Search,
    Working,
    working,
)
from cemverify.claims.exact import (
    ENTRY,
    PAIR,
    Rational,
    largest_entry,
    simplified,
)


def claims() -> Iterator[Claim]:
    """The section's claims."""
    yield from _hopfield()


# §11: Hopfield


def _hopfield() -> Iterator[Claim]:
    yield Claim(
        id="11-cccp",
        source="App. B",
        statement=(
            "One CCCP step on the Hopfield energy is attention to the patterns, and a gradient step of size one."
        ),
        formula="argmin_y |y|^2 / 2 - p(x) . y  =  p(x)  =  x - grad E(x), p(x) = sum_j softmax_j(h_j . x / tau) h_j",
        proof=(
            "E = |x|^2 / 2 - tau log sum_j exp(h_j . x / tau) is convex plus concave. CCCP linearises the concave "
            "part, of gradient -p(x), and minimises |y|^2 / 2 - p(x) . y: y = p(x). And grad E = x - p(x)."
        ),
        evidence=(Derivation("two patterns, D = 2, in symbols", _cccp_is_a_gradient_step),),
    )
    yield Claim(
        id="11-any-step",
        source="App. B",
        statement="Gradient steps lower the Hopfield energy, the CCCP step (eta = 1) among them.",
        formula="E(x - eta g) <= E(x) - (eta - eta^2 / 2) |g|^2",
        condition="the step size is in (0, 2)",
        proof=(
            "The tangent of the concave part bounds it from above, and the quadratic part is exact: together -(eta - "
            "eta^2 / 2) |g|^2, negative for 0 < eta < 2. At eta = 1 the decrease is at least |g|^2 / 2. With a "
            "single pattern the concave part is linear and the bound an equality: beyond 2 the energy rises."
        ),
        evidence=(
            Derivation("the tangent of the concave part plus the quadratic part, in symbols", _hopfield_decrease),
            Counterexample("the pattern 0, D = 1, x = 1, eta slightly above 2", _beyond_two_ascends),
            Search(
                "a pattern and x, integers in one dimension, eta in quarters from 9/4 to 3",
                st.tuples(ENTRY, ENTRY, st.integers(9, 12).map(lambda n: Fraction(n, 4))),
                violates=lambda c: _one_pattern(c[0], c[1] - c[2] * (c[1] - c[0])) > _one_pattern(c[0], c[1]),
                size=lambda c: largest_entry(c[:2]),
                largest=1,
            ),
        ),
    )
    yield Claim(
        id="11-printed",
        source="App. B",
        statement="x <- p(x) is the CCCP step of the printed energy, which lacks |x|^2 / 2, and so never raises it.",
        formula="E(p(x)) <= E(x) for E(x) = -(1/tau) log sum_j exp(h_j . x / tau), p(x) = sum_j softmax_j h_j",
        proof=(
            "The printed energy has no convex part: linearised, it is a linear function, without a minimiser, and "
            "there is no CCCP step. x <- p(x) takes its quadratic from |x|^2 / 2."
        ),
        evidence=(
            Counterexample("one pattern, 1, tau = 1, x = 2", _printed_hopfield_rises),
            Search(
                "one pattern and x, integers in one dimension, tau = 1",
                PAIR,
                violates=lambda c: -c[0] * c[0] > -c[0] * c[1],
                size=largest_entry,
                largest=2,
            ),
        ),
    )


def _cccp_is_a_gradient_step() -> Working:
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
    to_gradient, steps = simplified(*(cccp[y[i]] - (x[i] - sympy.diff(E, x[i])) for i in (0, 1)))
    return working(
        "y solves grad_y (|y|^2 / 2 + grad(concave part at x) . y) = 0",
        f"y - p(x), simplified, both components: {to_attention}",
        f"y - (x - grad E(x)), simplified, both components: {to_gradient}",
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


def _one_pattern(h: Rational, x: Rational) -> Fraction:
    """E(x) = x^2 / 2 - h x: one pattern in one dimension, whatever tau."""
    return Fraction(x) * x / 2 - Fraction(h) * x


def _beyond_two_ascends() -> Working:
    h, x = Fraction(0), Fraction(1)
    before = _one_pattern(h, x)
    at_two, beyond = (_one_pattern(h, x - eta * (x - h)) for eta in (Fraction(2), Fraction(201, 100)))
    return working(
        f"one pattern, {h}: E(x) = x^2 / 2, g = x; x = {x}, E = {before}",
        f"eta = 2: x -> {x - 2 * (x - h)}, E = {at_two}: neither falls nor rises",
        f"eta = {Fraction(201, 100)}: x -> {x - Fraction(201, 100) * (x - h)}, E = {beyond}",
        f"energy after <= energy before: {beyond} <= {before} is {beyond <= before}",
        comes_out=beyond <= before,
    )


def _printed_hopfield_rises() -> Working:
    h, x = 1, 2
    before, after = -h * x, -h * h
    with_square = _one_pattern(h, x), _one_pattern(h, h)
    return working(
        f"one pattern, {h}, tau = 1: the printed energy is -h x, and p(x) = {h} for every x",
        f"x: {x} -> {h}, printed energy: {before} -> {after}",
        f"with x^2 / 2 added: {with_square[0]} -> {with_square[1]}",
        f"energy after <= energy before: {after} <= {before} is {after <= before}",
        comes_out=after <= before,
    )

"""Claims about the energy of App. B, the gates' signs moved inside phi (docs/mathematics.md §10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import partial
from itertools import product
from random import Random
from typing import Any, NamedTuple

import mpmath
import sympy
from hypothesis import strategies as st

from cemverify.claims.arguments import Instance, Lemma, Sample, Search, Symbols, Working, working
from cemverify.claims.base import Claim, draft, ours
from cemverify.claims.exact import (
    DIGITS,
    IDENTITY,
    RELU,
    SILU,
    Matrix,
    Number,
    Numbers,
    Unit,
    gated_downhill,
    gated_energy,
    inner,
    show,
    silu,
    slopes_at,
    symbolic_hessian,
    written,
)

_UNITS: Mapping[str, Unit] = {"identity": IDENTITY, "relu": RELU, "silu": SILU}
_SMALL = st.integers(-3, 3)


def claims() -> Iterator[Claim]:
    """Every claim about the convexified attention energy, each with its arguments."""
    yield Claim(
        id="10-convex",
        source=draft("App. B", "with ϕ a convex nonlinearity, to that the energy is convex in x"),
        statement="With the signs of the gates moved inside, the element-wise energy is convex in x.",
        formula="xi'(x) = -|W h| . phi(sign(W h) * V x) is convex for convex phi",
        finding=(
            "It is concave. phi of a linear function is convex where phi is, and xi' is a sum of such functions with "
            "factors -|W h| that are never positive. With D = V = W h = 1 and phi(z) = z^2/2 it is -x^2/2."
        ),
        advice="moving the signs buys descent at every step size (10-any-step-size), not a minimum",
        holds_for=partial(_bends, side=1),
        arguments=(
            Instance("D = 1, V = W h = 1, phi(z) = z^2/2, between -1 and 1", (1, 1, -1, 1)),
            Search("V, W h and two points, integers, phi(z) = z^2/2", st.tuples(_SMALL, _SMALL, _SMALL, _SMALL)),
        ),
    )
    yield Claim(
        id="10-gradient",
        source=draft("App. B", "The gradient of this energy form is"),
        statement="The gradient that the appendix prints for that energy is right, where a gate is zero too.",
        formula="-grad xi' = V^T ((W h) * sigma(sign(W h) * V x))",
        finding="The chain rule brings out sign(W h) once more, and |W h| sign(W h) = W h.",
        advice="`V.T @ (g * sigma(g.sign() * (V @ x)))`",
        holds_for=partial(_is_the_printed_gradient, gate="signed"),
        arguments=(Symbols("an arbitrary sigma and every pattern of signs, D = M = 2"),),
    )
    yield Claim(
        id="10-any-step-size",
        source=ours("App. B"),
        statement="That energy falls by at least eta g.Pg at any step size, for any positive semi-definite P.",
        formula="xi'(x - eta P g) <= xi'(x) - eta g.Pg for all eta > 0",
        condition=(
            "sigma is monotone, that is phi is convex; tight: if sigma falls anywhere, however slowly, some weights "
            "and some step raise the energy"
        ),
        within=lambda case: case.unit in ("identity", "relu"),
        finding=(
            "For convex phi the energy is concave, and a concave function lies below its tangent. Where sigma'(z) < "
            "0 take D = M = 2, W h = (1, 1), V = ((a, 1), (-a, 1)) and x = (e/a, z): the units are at z +- e, and a "
            "step with eta a^2 = k multiplies e by 1 + 2 k sigma'(z) to first order, below -1 for k > 1/|sigma'(z)|."
        ),
        advice="use ReLU, softplus or the identity if every step must descend; SiLU and GELU give no such promise",
        holds_for=partial(_falls, flipped=True),
        arguments=(
            Sample("identity and ReLU, random integers, D = M = 2, four P, eta from 1/100 to 1000, exact", _cases),
            Lemma("its Hessian for an arbitrary sigma, in letters", _flipped_hessian),
            Instance(
                "SiLU, D = M = 2, integers, eta = 3",
                _Case("silu", ((-1, -3), (3, 2)), (1, 1), (-2, 2), ((1, 0), (0, 1)), 3),
            ),
            Instance("SiLU just left of its minimum, where it falls slowly", _slow_fall()),
            Search(
                "SiLU, D = M = 2, W h = 1, eta = 3: weights and start, integers",
                st.builds(
                    lambda V, x: _Case("silu", V, (1, 1), x, ((1, 0), (0, 1)), 3),
                    st.tuples(st.tuples(_SMALL, _SMALL), st.tuples(_SMALL, _SMALL)),
                    st.tuples(_SMALL, _SMALL),
                ),
                outside=True,
                examples=5000,
            ),
        ),
    )
    yield Claim(
        id="10-cccp",
        source=draft("App. B", "Optimization via CCCP is possible only when using a convex form.", "sentence"),
        statement="The concave-convex procedure applies to the element-wise energy only in its convexified form.",
        formula="xi = u + v with u convex, v concave, a step of the procedure lowers xi  =>  xi is convex or concave",
        finding=(
            "Every function whose curvature is at least -c is the difference of two convex ones: "
            "xi = (xi + c |x|^2/2) - c |x|^2/2. The procedure then solves grad u(x+) = -grad v(x), and never raises "
            "xi: u lies above its tangent at x+, v below its tangent at x."
        ),
        advice="`x = argmin(xi(y) + c/2 |y|^2 - c x . y)` is a CCCP step for any activation with bounded slope",
        holds_for=partial(_needs_convexity, statement="only"),
        arguments=(
            Instance("identity, D = M = 2, V = I, W h = (1, -1), c = 2", (1, -1, 2)),
            Search("W h and c integers, V = I, x = (1, 3)", st.tuples(_SMALL, _SMALL, st.integers(1, 4))),
        ),
    )


class _Case(NamedTuple):
    """A step: V, the gates, a start, P and eta."""

    unit: str
    V: Matrix
    gate: Numbers
    x: Numbers
    P: Matrix
    eta: Number


def _flipped(V: Matrix, gate: Numbers) -> tuple[Matrix, Numbers]:
    """The V and gate of App. B: the gates' signs moved into the rows of V."""
    signs = [(g > 0) - (g < 0) for g in gate]
    return [[s * v for v in row] for s, row in zip(signs, V, strict=True)], [abs(g) for g in gate]


def _bends(case: tuple[int, int, int, int], *, side: int) -> Working:
    """side 1: the middle is not above the chord, as convex functions have it; -1: not below."""
    V, gate, *ends = case
    flipped = _flipped([[V]], [gate])
    low, high, middle = (
        gated_energy(IDENTITY, *flipped, [p]) for p in (*map(Fraction, ends), Fraction(sum(ends), 2))
    )
    held = side * (middle - (low + high) / 2) <= 0
    return working(
        f"V = {V}, W h = {gate}, phi(z) = z^2/2: xi'({ends[0]}) = {low}, xi'({ends[1]}) = {high}",
        f"halfway {middle}, {'at most' if side > 0 else 'at least'} their mean {(low + high) / 2}: {held}",
        comes_out=held,
    )


def _is_the_printed_gradient(_: Any, *, gate: str) -> Working:
    x, V, size = _flipped_symbols()
    sigma, t = sympy.Function("sigma"), sympy.Symbol("t", real=True)
    lines, right = [], []
    for signs in product((-1, 0, 1), repeat=2):
        z = [s * (V * x)[m] for m, s in enumerate(signs)]
        g = [s * a for s, a in zip(signs, size, strict=True)]
        energy = -sum(sympy.Abs(g[m]) * sympy.Integral(sigma(t), (t, 0, z[m])) for m in range(2))
        downhill = sympy.Matrix([-sympy.diff(energy, a) for a in x])
        factors = g if gate == "signed" else [sympy.Abs(value) for value in g]
        printed = V.T * sympy.Matrix([factors[m] * sigma(z[m]) for m in range(2)])
        difference = (downhill - printed).applyfunc(sympy.expand)
        lines.append(f"signs {signs}: -grad - printed = {difference.tolist()}")
        right.append(difference == sympy.zeros(2, 1))
    return working(*lines, comes_out=all(right))


def _flipped_symbols() -> tuple[Any, Any, Any]:
    """x, V and |W h|, D = M = 2."""
    x = sympy.Matrix(sympy.symbols("x1:3", real=True))
    V = sympy.Matrix(2, 2, sympy.symbols("v11 v12 v21 v22", real=True))
    return x, V, sympy.symbols("a1:3", positive=True)


def _flipped_hessian() -> Working:
    x, V, size = _flipped_symbols()
    right = []
    for signs in product((-1, 1), repeat=2):
        flipped = sympy.diag(*signs) * V
        hessian = symbolic_hessian(x, flipped, size)
        expected = -V.T * sympy.diag(*slopes_at(flipped * x, size)) * V
        right.append((hessian - expected).applyfunc(sympy.expand) == sympy.zeros(2, 2))
    return working(
        f"Hess xi' = -V^T diag(|W h| * sigma'(sign(W h) * V x)) V for {sum(right)} of {len(right)} patterns of signs",
        "so -u.(Hess xi') u is a sum of squares with factors |W h| sigma', none negative where sigma is monotone",
        comes_out=all(right),
    )


def _cases() -> Iterator[_Case]:
    """Random integers, with each of four P and three step sizes."""
    random = Random(10)  # noqa: S311  (no secret)
    preconditioners = (((1, 0), (0, 1)), ((2, 1), (1, 1)), ((1, 1), (1, 1)), ((0, 0), (0, 3)))
    for _ in range(40):
        V, gate, x = ([[random.randint(-3, 3) for _ in range(2)] for _ in range(2)] for _ in range(3))
        for unit, P, eta in product(
            ("identity", "relu"), preconditioners, (Fraction(1, 100), Fraction(1), Fraction(1000))
        ):
            yield _Case(unit, V, gate[0], [Fraction(a) for a in x[0]], P, eta)


def _slow_fall() -> _Case:
    """SiLU at -1.3, where its slope is -0.0019."""
    with mpmath.workdps(DIGITS):
        z, e, eta = mpmath.mpf(-13) / 10, mpmath.mpf(1) / 1000, mpmath.mpf(10) ** -12
        a = mpmath.sqrt(mpmath.mpf(11) / 10 / abs(mpmath.diff(silu, z)) / eta)
        return _Case("silu", ((a, 1), (-a, 1)), (1, 1), (e / a, z), ((1, 0), (0, 1)), eta)


def _falls(case: _Case, *, flipped: bool) -> Working:
    unit = _UNITS[case.unit]
    V, gate = _flipped(case.V, case.gate) if flipped else (case.V, case.gate)
    with mpmath.workdps(DIGITS):
        x = [mpmath.mpf(a) for a in case.x] if case.unit == "silu" else list(case.x)
        downhill = gated_downhill(unit, V, gate, x)
        move = [inner(row, downhill) for row in case.P]
        after = [a + case.eta * m for a, m in zip(x, move, strict=True)]
        before_energy, after_energy = (gated_energy(unit, V, gate, point) for point in (x, after))
        promised = before_energy - case.eta * inner(downhill, move)
        slack = mpmath.mpf("1e-25") if case.unit == "silu" else 0
        held = bool(after_energy <= promised + slack)
    return working(
        f"{case.unit}, V = {show(tuple(map(tuple, V)))}, W h = {show(tuple(gate))}, P = {case.P}, eta = "
        f"{show(case.eta)}",
        f"x {show(x)} -> {show(after)}, energy {show(before_energy, 9)} -> {show(after_energy, 9)}; at most "
        f"{show(promised, 9)}: {held}",
        comes_out=held,
    )


_CCCP_START = (1, 3)


def _needs_convexity(case: tuple[int, int, int], *, statement: str) -> Working:
    """identity, V = I: xi = -(g1 x1^2 + g2 x2^2) / 2, split by c |x|^2 / 2; the step solves (c - g) x+ = c x."""
    g1, g2, c = case
    x, plain = _CCCP_START, ((1, 0), (0, 1))
    convex_or_concave = g1 * g2 >= 0
    splits = c > max(g1, g2, 0)
    if not splits:
        return working(f"W h = {(g1, g2)}, c = {c}: xi + c |x|^2/2 is not convex", comes_out=True)
    after = [Fraction(c * a, c - g) for a, g in zip(x, (g1, g2), strict=True)]
    before_energy, after_energy = (
        gated_energy(IDENTITY, plain, (g1, g2), [Fraction(a) for a in point]) for point in (x, after)
    )
    applies = after_energy <= before_energy
    held = (not applies or convex_or_concave) if statement == "only" else applies
    return working(
        f"V = I, W h = {(g1, g2)}: curvatures {(-g1, -g2)}, convex or concave is {convex_or_concave}",
        f"u = xi + {c} |x|^2/2 is convex; one step from x = {x}: x+ = {written(*after)}",
        f"xi: {before_energy} -> {after_energy}; the procedure applies: {applies}; as stated: {held}",
        comes_out=held,
    )

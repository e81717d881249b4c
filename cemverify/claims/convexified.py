"""Claims about the energy of App. B, the gates' signs moved inside phi (docs/mathematics.md §10)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from random import Random
from typing import Any

import mpmath
import sympy
from hypothesis import strategies as st

from cemverify.claims.base import Claim
from cemverify.claims.evidence import Counterexample, Derivation, Search, Working, working
from cemverify.claims.exact import (
    DIGITS,
    IDENTITY,
    RELU,
    SILU,
    Matrix,
    Numbers,
    gated_downhill,
    gated_energy,
    gated_step,
    inner,
    silu,
    slopes_at,
    symbolic_hessian,
    written,
)


def claims() -> Iterator[Claim]:
    """The section's claims."""
    yield from _convexified()


# --- section 10 ------------------------------------------------------------------------------------------


def _convexified() -> Iterator[Claim]:
    yield Claim(
        id="10-convex",
        source="App. B",
        statement="With the signs of the gates moved inside, the element-wise energy is convex in x.",
        formula="xi'(x) = -|W h| . phi(sign(W h) * V x) is convex for convex phi",
        proof=(
            "phi of a linear function is convex where phi is, and xi' is a sum of such functions with factors "
            "-|W h| that are never positive: it is concave. With D = V = W h = 1 and phi(z) = z^2/2 it is -x^2/2."
        ),
        evidence=(
            Counterexample("D = 1, V = W h = 1, phi(z) = z^2/2, at -1, 0 and 1", _midpoint_is_above),
            Search(
                "V, W h and two points, integers, phi(z) = z^2/2",
                st.tuples(*(st.integers(-3, 3) for _ in range(4))),
                violates=lambda c: _midpoint_gap(*c) > 0,
                size=lambda c: max(map(abs, c)),
                largest=1,
            ),
        ),
    )
    yield Claim(
        id="10-gradient",
        source="App. B",
        statement="The gradient that the appendix prints for that energy is right, where a gate is zero too.",
        formula="-grad xi' = V^T ((W h) * sigma(sign(W h) * V x))",
        proof="The chain rule brings out sign(W h) once more, and |W h| sign(W h) = W h.",
        evidence=(Derivation("for an arbitrary sigma and every pattern of signs, D = M = 2", _flipped_chain_rule),),
    )
    yield Claim(
        id="10-any-step-size",
        source="App. B",
        statement="That energy falls by at least eta g.Pg at any step size, for any positive semi-definite P.",
        formula="xi'(x - eta P g) <= xi'(x) - eta g.Pg for all eta > 0",
        condition=(
            "sigma is monotone, that is phi is convex; tight: if sigma falls anywhere, however slowly, some weights "
            "and some step raise the energy"
        ),
        proof=(
            "For convex phi the energy is concave, and a concave function lies below its tangent: "
            "xi'(x - eta P g) <= xi'(x) + g.(-eta P g). Where sigma'(z) < 0 take D = M = 2, W h = (1, 1), "
            "V = ((a, 1), (-a, 1)) and x = (e/a, z): the units are at z +- e, and the energy "
            "-phi(z + e) - phi(z - e) grows with |e| while e is small. A step with eta a^2 = k multiplies e by "
            "1 + 2 k sigma'(z) to first order, below -1 for k > 1/|sigma'(z)|, and for large a it moves hardly "
            "anything else."
        ),
        evidence=(
            Derivation("its Hessian for an arbitrary sigma, symbolically", _flipped_hessian),
            Derivation("identity and ReLU, random integers, D = M = 2, exact", _falls_at_any_step),
            Counterexample("SiLU, D = M = 2, integers, eta = 3", _silu_overshoots),
            Counterexample("SiLU just left of its minimum, where it falls slowly", _silu_overshoots_slowly),
            Search(
                "SiLU, D = M = 2, W h = 1, eta = 3: second row of V and start, integers",
                st.tuples(*(st.integers(-3, 3) for _ in range(4))),
                violates=_overshoots,
                size=lambda c: max(map(abs, c)),
                largest=3,
            ),
        ),
    )
    yield Claim(
        id="10-cccp",
        source="App. B",
        statement="The concave-convex procedure applies to the element-wise energy only in its convexified form.",
        formula="xi = u + v with u convex, v concave  =>  xi is convex or concave",
        proof=(
            "Every function whose curvature is at least -c is the difference of two convex ones: "
            "xi = (xi + c |x|^2/2) - c |x|^2/2. The procedure then solves grad u(x+) = -grad v(x), and never raises "
            "xi: u lies above its tangent at x+, v below its tangent at x."
        ),
        evidence=(
            Counterexample("identity, D = M = 2, V = I, W h = (1, -1), c = 2", _split_by_a_square),
            Search(
                "W h and c integers, V = I, x = (1, 3)",
                st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(1, 4)),
                violates=lambda c: _is_split(*c) and _cccp_falls(*c),
                size=lambda c: max(map(abs, c)),
                largest=2,
            ),
        ),
    )


def _flipped(V: Matrix, gate: Numbers) -> tuple[Matrix, Numbers]:
    """The V and gate of App. B: the gates' signs moved into the rows of V."""
    signs = [(g > 0) - (g < 0) for g in gate]
    return [[s * v for v in row] for s, row in zip(signs, V, strict=True)], [abs(g) for g in gate]


def _midpoint_gap(V: int, gate: int, a: int, b: int) -> Fraction:
    """xi' halfway between a and b, less the mean of its values there: positive contradicts convexity."""
    flipped = _flipped([[V]], [gate])
    ends = [gated_energy(IDENTITY, *flipped, [point]) for point in (Fraction(a), Fraction(b))]
    gap: Fraction = gated_energy(IDENTITY, *flipped, [Fraction(a + b, 2)]) - sum(ends) / 2
    return gap


def _midpoint_is_above() -> Working:
    V, gate, points = 1, 1, (-1, 0, 1)
    values = [gated_energy(IDENTITY, *_flipped([[V]], [gate]), [Fraction(x)]) for x in points]
    mean = (values[0] + values[2]) / 2
    return working(
        f"V = {V}, W h = {gate}: xi'(x) = -x^2/2",
        f"at {points}: {written(*values)}",
        f"convex: middle <= mean of the ends: {values[1]} <= {mean} is {values[1] <= mean}",
        comes_out=values[1] <= mean,
    )


def _flipped_chain_rule() -> Working:
    x, V, size = _flipped_symbols()
    sigma, t = sympy.Function("sigma"), sympy.Symbol("t", real=True)
    lines, right = [], []
    for signs in product((-1, 0, 1), repeat=2):
        z = [s * (V * x)[m] for m, s in enumerate(signs)]
        gate = [s * a for s, a in zip(signs, size, strict=True)]
        energy = -sum(sympy.Abs(gate[m]) * sympy.Integral(sigma(t), (t, 0, z[m])) for m in range(2))
        downhill = sympy.Matrix([-sympy.diff(energy, a) for a in x])
        printed = V.T * sympy.Matrix([gate[m] * sigma(z[m]) for m in range(2)])
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


def _falls_at_any_step() -> Working:
    random = Random(10)  # noqa: S311  (no secret)
    preconditioners = (((1, 0), (0, 1)), ((2, 1), (1, 1)), ((1, 1), (1, 1)), ((0, 0), (0, 3)))
    steps = (Fraction(1, 100), Fraction(1), Fraction(1000))
    slack, strict, cases = [], 0, 0
    for _ in range(100):
        V, gate, x = ([[random.randint(-3, 3) for _ in range(2)] for _ in range(2)] for _ in range(3))
        flipped = _flipped(V, gate[0])
        for unit, P, eta in product((IDENTITY, RELU), preconditioners, steps):
            point = [Fraction(a) for a in x[0]]
            downhill = gated_downhill(unit, *flipped, point)
            move = [inner(row, downhill) for row in P]
            after = [a + eta * m for a, m in zip(point, move, strict=True)]
            gap = (
                gated_energy(unit, *flipped, point)
                - eta * inner(downhill, move)
                - gated_energy(unit, *flipped, after)
            )
            slack.append(gap)
            strict += inner(downhill, move) > 0
            cases += 1
    return working(
        f"V, W h and x from -3 to 3, P among {preconditioners}, eta among {written(*steps)}",
        f"{cases} cases, {strict} of them with g.Pg > 0",
        f"smallest xi'(x) - eta g.Pg - xi'(x - eta P g) = {min(slack)}, at least 0 is {min(slack) >= 0}",
        comes_out=min(slack) >= 0,
    )


_FIRST_ROW, _LONG_STEP = (-1, -3), 3


def _overshoots(case: tuple[int, int, int, int]) -> bool:
    V, gate, x = [_FIRST_ROW, case[:2]], (1, 1), [mpmath.mpf(v) for v in case[2:]]
    after = gated_step(SILU, V, gate, x, _LONG_STEP)
    return bool(gated_energy(SILU, V, gate, after) > gated_energy(SILU, V, gate, x) + mpmath.mpf(1) / 100)


def _silu_overshoots() -> Working:
    V, gate = (_FIRST_ROW, (3, 2)), (1, 1)
    with mpmath.workdps(DIGITS):
        x = [mpmath.mpf(-2), mpmath.mpf(2)]
        flipped = _flipped(V, gate)
        after = gated_step(SILU, *flipped, x, _LONG_STEP)
        before_energy, after_energy = (gated_energy(SILU, *flipped, point) for point in (x, after))
        units = [[inner(row, point) for row in V] for point in (x, after)]
        held = bool(after_energy <= before_energy)
    return working(
        f"V = {V}, W h = {gate}, x = {written(*x)}, eta = {_LONG_STEP}: no sign to move",
        f"V x = {written(*units[0])}, both where SiLU falls",
        f"the step goes to x = {written(*after)}, V x = {written(*units[1])}",
        f"energy = -phi - phi: {written(before_energy)} -> {written(after_energy)}",
        f"energy after <= energy before is {held}",
        comes_out=held,
    )


def _silu_overshoots_slowly() -> Working:
    with mpmath.workdps(DIGITS):
        z, e, eta = mpmath.mpf(-13) / 10, mpmath.mpf(1) / 1000, mpmath.mpf(10) ** -12
        slope = mpmath.diff(silu, z)
        k = mpmath.mpf(11) / 10 / abs(slope)
        a = mpmath.sqrt(k / eta)
        V, gate, x = [[a, 1], [-a, 1]], (1, 1), [e / a, z]
        after = gated_step(SILU, V, gate, x, eta)
        before_units, after_units = ([inner(row, point) - z for row in V] for point in (x, after))
        rise = gated_energy(SILU, V, gate, after) - gated_energy(SILU, V, gate, x)
    return working(
        f"z = {written(z)}, sigma'(z) = {written(slope)}, e = {written(e)}, "
        f"k = eta a^2 = {written(k)}, eta = {written(eta)}",
        f"V x - z: {written(*before_units)} -> {written(*after_units)}; "
        f"1 + 2 k sigma'(z) = {written(1 + 2 * k * slope)}",
        f"the energy changes by {written(rise)}",
        f"energy after <= energy before is {bool(rise <= 0)}",
        comes_out=bool(rise <= 0),
    )


_CCCP_START = (1, 3)


def _is_split(g1: int, g2: int, c: int) -> bool:
    """Whether xi = -(g1 x1^2 + g2 x2^2)/2 is neither convex nor concave, and xi + c |x|^2/2 strictly convex."""
    return g1 * g2 < 0 and c > max(g1, g2)


def _cccp_energies(g1: int, g2: int, c: int, x: Sequence[int]) -> tuple[Fraction, Fraction]:
    """xi before and after one step of the procedure: (c - g) x+ = c x, coordinate by coordinate."""
    after = [Fraction(c * a, c - g) for a, g in zip(x, (g1, g2), strict=True)]
    before_energy, after_energy = (
        gated_energy(IDENTITY, ((1, 0), (0, 1)), (g1, g2), [Fraction(a) for a in point]) for point in (x, after)
    )
    return before_energy, after_energy


def _cccp_falls(g1: int, g2: int, c: int) -> bool:
    before_energy, after_energy = _cccp_energies(g1, g2, c, _CCCP_START)
    return after_energy < before_energy


def _split_by_a_square() -> Working:
    g1, g2, c, x = 1, -1, 2, _CCCP_START
    curvature, u, v = (-g1, -g2), (c - g1, c - g2), (-c, -c)
    before_energy, after_energy = _cccp_energies(g1, g2, c, x)
    same_sign = min(curvature) >= 0 or max(curvature) <= 0
    is_split = min(u) >= 0 and max(v) <= 0 and after_energy <= before_energy
    return working(
        f"V = I, W h = {(g1, g2)}: xi has curvatures {curvature}, convex or concave is {same_sign}",
        f"u = xi + {c} |x|^2/2 has curvatures {u}, v = -{c} |x|^2/2 has {v}; they add up to xi",
        f"one step from x = {x}: grad u(x+) = {c} x, xi: {before_energy} -> {after_energy}",
        f"split and descent imply convex or concave: {is_split} implies {same_sign} is {not is_split or same_sign}",
        comes_out=not is_split or same_sign,
    )

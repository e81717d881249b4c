"""Claims about the element-wise energy: Eq. 3, 7 and 11, App. B (docs/mathematics.md §2, §9, §10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import mpmath
import sympy
from hypothesis import strategies as st

from cemverify.cem.activations import ACTIVATIONS
from cemverify.claims.arguments import Instance, Lemma, Search, Symbols, Working, properties, working
from cemverify.claims.base import Claim, arxiv, draft, ours
from cemverify.claims.exact import DIGITS, GAIN, Number, show, silu

_Numbers = Sequence[Number]
_Matrix = Sequence[_Numbers]
_SMALL = st.integers(-3, 3)
_PAIR = st.tuples(_SMALL, _SMALL)
_SQUARE = st.tuples(_PAIR, _PAIR)


def claims() -> Iterator[Claim]:
    """Every claim about the element-wise energy, each with its arguments."""
    yield from _tying()
    yield from _safe_steps()
    yield from _signs_moved()


@dataclass(frozen=True)
class _Unit:
    """An activation and its primitive, for numbers of any kind."""

    sigma: Callable[[Number], Number]
    phi: Callable[[Number], Number]


_UNITS = {
    "identity": _Unit(lambda z: z, lambda z: z * z / Fraction(2)),
    "relu": _Unit(lambda z: max(z, 0), lambda z: max(z, 0) ** 2 / Fraction(2)),
    "silu": _Unit(
        silu, lambda z: z * mpmath.log(1 + mpmath.exp(z)) + mpmath.polylog(2, -mpmath.exp(z)) + mpmath.pi**2 / 12
    ),
}


class _Step(NamedTuple):
    """A step of size eta from x."""

    unit: str
    V: _Matrix
    gate: _Numbers
    x: _Numbers
    P: _Matrix
    eta: Any


def _inner(a: _Numbers, b: _Numbers) -> Number:
    """a . b in the arithmetic of its entries."""
    return sum(p * q for p, q in zip(a, b, strict=True))


def _energy(unit: _Unit, V: _Matrix, gate: _Numbers, x: _Numbers) -> Number:
    """-gate . phi(V x)."""
    return -_inner(gate, [unit.phi(_inner(row, x)) for row in V])


def _taken(step: _Step, *, least: Number = 1, slack: Any = 0) -> Working:
    """Takes the step: the energy must fall by `least` times eta g.Pg."""
    unit = _UNITS[step.unit]
    hidden = [g * unit.sigma(_inner(row, step.x)) for g, row in zip(step.gate, step.V, strict=True)]
    downhill = [_inner(column, hidden) for column in zip(*step.V, strict=True)]  # minus the gradient
    move = [_inner(row, downhill) for row in step.P]
    y = [a + step.eta * m for a, m in zip(step.x, move, strict=True)]
    before, after = (_energy(unit, step.V, step.gate, point) for point in (step.x, y))
    promised = before - least * abs(step.eta) * _inner(downhill, move)
    held = bool(after <= promised + slack)
    return working(
        f"{step.unit}, V = {show(tuple(map(tuple, step.V)))}, W h = {show(tuple(step.gate))}, "
        f"P = {show(tuple(map(tuple, step.P)))}, eta = {show(step.eta)}",
        f"x {show(tuple(step.x))} -> {show(y)}, energy {show(before, 9)} -> {show(after, 9)}; at most "
        f"{show(promised, 9)}: {held}",
        comes_out=held,
    )


# --- section 2 ----------------------------------------------------------------------------------------


def _tying() -> Iterator[Claim]:
    yield Claim(
        id="2-gated-mlp",
        source=arxiv(
            "abstract; Eq. 7, 10, 11",
            "Extending prior energy-based interpretations of attention, CEM shows that weight-tied MHA can be "
            "derived as a gradient update on an interaction energy, and that a gated MLP with shared up/down "
            "projections can be viewed through an element-wise energy.",
        ),
        statement=(
            "One gradient step of size one on the element-wise energy is a gated MLP with a residual, whose down "
            "projection is the transpose of the projection V that the activation acts on."
        ),
        formula="-grad xi = V^T ((W h) * sigma(V x)) for xi = -(W h) . phi(V x), phi' = sigma",
        finding=(
            "By the chain rule, the derivative of phi((V x)_m) in x is sigma((V x)_m) times row m of V, and W h "
            "does not depend on x. Summed over m with the factors (W h)_m, that is V^T applied to (W h) * sigma(V "
            "x)."
        ),
        advice="`x + V.T @ ((W @ h) * silu(V @ x))`",
        holds_for=partial(_is_the_chain_rule, activated="V x"),
        arguments=(
            Symbols("an arbitrary sigma, D = M = 2, every weight a letter"),
            properties(
                *(f"tying/mlp/gated-mlp-{name}" for name in ("silu", "gelu", "gelu-tanh", "relu")),
                *(f"gradient/mlp/{name}" for name in ACTIVATIONS),
            ),
        ),
    )


def _is_the_chain_rule(_: Any, *, activated: str) -> Working:
    x, h = sympy.Matrix(sympy.symbols("x1:3", real=True)), sympy.Matrix(sympy.symbols("h1:3", real=True))
    V = sympy.Matrix(2, 2, sympy.symbols("v11 v12 v21 v22", real=True))
    W = sympy.Matrix(2, 2, sympy.symbols("w11 w12 w21 w22", real=True))
    sigma, t = sympy.Function("sigma"), sympy.Symbol("t", real=True)
    z, gate = V * x, W * h
    energy = -sum(gate[m] * sympy.Integral(sigma(t), (t, 0, z[m])) for m in range(2))
    downhill = sympy.Matrix([-sympy.diff(energy, a) for a in x])
    inside, outside = (z, gate) if activated == "V x" else (gate, z)
    mlp = V.T * sympy.Matrix([outside[m] * sigma(inside[m]) for m in range(2)])
    difference = (downhill - mlp).applyfunc(sympy.expand)
    return working(
        "phi(z) = int_0^z sigma(t) dt, so that phi' = sigma and phi(0) = 0",
        f"-d xi / d x1 = {downhill[0]}",
        f"V^T (up h * sigma(gate x)), first entry = {mlp[0]}",
        f"difference of the two = {difference.tolist()}",
        comes_out=difference == sympy.zeros(2, 1),
    )


# --- section 9 -------------------------------------------------------------------------------------------


def _shares(least: int, most: int) -> st.SearchStrategy[tuple[str, int, int, int, Fraction]]:
    """An activation, V = 1, W h, x, P, and a step of some tenths of the safe step."""
    return st.tuples(
        *(st.sampled_from(("identity", "silu")), _SMALL.filter(bool), _SMALL, GAIN),
        st.integers(least, most).map(lambda n: Fraction(n, 10)),
    )


def _safe_steps() -> Iterator[Claim]:
    yield Claim(
        id="9-safe-step",
        source=ours("Eq. 3 with the energy of Eq. 7"),
        rests=(
            "descent/mlp/safe-step-identity",
            "descent/mlp/along-steps",
            "cemverify.cem.energies.curvature.Curvature.safe_step",
        ),
        statement="A preconditioned gradient step lowers the element-wise energy.",
        formula="xi(x - eta P g) <= xi(x) - eta (1 - eta L lambda_max(P) / 2) g.Pg, L = |V|_2^2 max|W h| max|sigma'|",
        condition=(
            "eta < 2 / (L lambda_max(P)); with sigma the identity, V = 1 and W h = -1, every step above the bound "
            "raises the energy"
        ),
        within=lambda case: case[-1] < 1,
        finding=(
            "The Hessian is -V^T diag((W h) * sigma'(V x)) V, of norm at most L. A function of curvature at most L "
            "satisfies xi(x - eta P g) <= xi(x) - eta g.Pg + eta^2 L |P g|^2 / 2, and |P g|^2 <= lambda_max(P) g.Pg."
        ),
        advice="`eta = min(1, 2 / (L * P_max))` if a step must never climb; `Elementwise.curvature` gives L",
        holds_for=partial(_safe_step_lowers, sign=1),
        arguments=(
            Search("W h, x and P integers, identity and SiLU, tenths of the bound", _shares(1, 9)),
            Lemma("the Hessian for an arbitrary sigma, D = M = 2, in letters", _hessian),
            properties(
                *(f"descent/mlp/safe-step-{name}" for name in ("identity", "diagonal", "low-rank")),
                "descent/mlp/along-steps",
            ),
            Instance("identity, W h = -1: a hundredth above the bound", ("identity", -1, 1, 1, Fraction(101, 100))),
            Search("the same, from the bound to four times it", _shares(11, 40), outside=True),
        ),
    )


def _safe_step_lowers(case: tuple[str, int, int, int, Fraction], *, sign: int) -> Working:
    name, gate, x, P, share = case
    with mpmath.workdps(DIGITS):
        peak = mpmath.findroot(lambda z: z * mpmath.tanh(z / 2) - 2, 2.4)  # where SiLU is steepest
        steepest = mpmath.diff(silu, peak) if name == "silu" else mpmath.mpf(1)
        safe = 2 / (abs(gate) * P * steepest)
        step = _Step(name, ((1,),), (gate,), (mpmath.mpf(x),), ((P,),), sign * share * safe)
        taken = _taken(step, least=max(0, 1 - share), slack=mpmath.mpf("1e-20"))
    return Working((f"the safe step is {show(safe)}; eta is {show(share)} of it", *taken.lines), taken.comes_out)


def _hessian() -> Working:
    x, V, _ = _symbols()
    g, rho = sympy.symbols("g1:3", real=True), sympy.Function("rho")
    s, t = sympy.symbols("s t", real=True)
    z = V * x
    xi = -sum(g[m] * sympy.Integral(sympy.Integral(rho(t), (t, 0, s)), (s, 0, z[m])) for m in range(2))
    slopes = sympy.diag(*(g[m] * rho(z[m]) for m in range(2)))
    off = (sympy.hessian(xi, list(x)) + V.T * slopes * V).applyfunc(sympy.expand)
    return working(
        "sigma(z) = int_0^z rho(t) dt and phi(z) = int_0^z sigma(s) ds, rho arbitrary, g = W h",
        f"Hess xi + V^T diag(g * rho(V x)) V = {off.tolist()}",
        comes_out=off == sympy.zeros(2, 2),
    )


def _symbols() -> tuple[Any, Any, Any]:
    """x, V and |W h|, D = M = 2."""
    x = sympy.Matrix(sympy.symbols("x1:3", real=True))
    V = sympy.Matrix(2, 2, sympy.symbols("v11 v12 v21 v22", real=True))
    return x, V, sympy.symbols("a1:3", positive=True)


# --- section 10: the gates' signs moved inside phi ---------------------------------------------------------


def _signs_moved() -> Iterator[Claim]:
    yield Claim(
        id="10-convex",
        source=draft("App. B", "with ϕ a convex nonlinearity, to that the energy is convex in x"),
        statement="With the signs of the gates moved inside phi, the element-wise energy is convex in x.",
        formula="xi'(x) = -|W h| . phi(sign(W h) * V x) is convex for convex phi",
        finding=(
            "It is concave. A convex phi of a linear function is convex, and xi' is a sum of these with factors -|W "
            "h|, which are never positive. With D = V = W h = 1 and phi(z) = z^2/2 it is -x^2/2."
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
        statement=(
            "The gradient that the appendix prints for the energy of 10-convex is right, even where a gate is zero."
        ),
        formula="-grad xi' = V^T ((W h) * sigma(sign(W h) * V x))",
        finding="The chain rule brings out sign(W h) once more, and |W h| sign(W h) = W h.",
        advice="`V.T @ (g * sigma(g.sign() * (V @ x)))`",
        holds_for=partial(_is_the_printed_gradient, gate="signed"),
        arguments=(Symbols("an arbitrary sigma and every pattern of signs, D = M = 2"),),
    )
    yield Claim(
        id="10-any-step-size",
        source=ours("App. B"),
        rests=("cemverify.cem.energies.convexified.Convexified.curvature",),
        statement=(
            "The energy of 10-convex falls by at least eta g.Pg at any step size, for any positive semi-definite P."
        ),
        formula="xi'(x - eta P g) <= xi'(x) - eta g.Pg for all eta > 0",
        condition="sigma is monotone, that is, phi is convex",
        within=lambda case: case.unit in ("identity", "relu"),
        finding=(
            "The gates are |W h|, so the Hessian has the factors -|W h| sigma'. None is positive where sigma is "
            "monotone, so the energy is concave and lies below its tangent."
        ),
        advice="use ReLU, softplus or the identity if every step must descend; SiLU and GELU do not guarantee it",
        holds_for=partial(_falls, flipped=True),
        arguments=(
            Search(
                "identity and ReLU, integers, D = M = 2, four P, eta from 1/100 to 1000, exact",
                st.builds(
                    _Step,
                    *(st.sampled_from(("identity", "relu")), _SQUARE, _PAIR, _PAIR),
                    st.sampled_from((((1, 0), (0, 1)), ((2, 1), (1, 1)), ((1, 1), (1, 1)), ((0, 0), (0, 3)))),
                    st.sampled_from((Fraction(1, 100), Fraction(1), Fraction(1000))),
                ),
            ),
            Lemma("the Hessian for an arbitrary sigma, any V and any gates, in letters", _hessian),
            Instance("SiLU, D = M = 2, integers, eta = 3", _with_silu(((-1, -3), (3, 2)), (-2, 2))),
            Search(
                "SiLU, D = M = 2, W h = 1, eta = 3: weights and start, integers",
                st.builds(_with_silu, _SQUARE, _PAIR),
                outside=True,
                examples=5000,
            ),
        ),
    )
    yield Claim(
        id="10-cccp",
        source=draft("App. B", "Optimization via CCCP is possible only when using a convex form.", "sentence"),
        statement=(
            "The concave-convex procedure (CCCP) applies to the element-wise energy only in its convexified form."
        ),
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


def _flipped(V: _Matrix, gate: _Numbers) -> tuple[_Matrix, _Numbers]:
    """V and the gate of App. B: the signs of the gates are moved into the rows of V."""
    signs = [(g > 0) - (g < 0) for g in gate]
    return [[s * v for v in row] for s, row in zip(signs, V, strict=True)], [abs(g) for g in gate]


def _bends(case: tuple[int, int, int, int], *, side: int) -> Working:
    """side 1: the midpoint is not above the chord, as for convex functions; -1: not below."""
    V, gate, *ends = case
    flipped = _flipped([[V]], [gate])
    low, high, middle = (
        _energy(_UNITS["identity"], *flipped, [p]) for p in (*map(Fraction, ends), Fraction(sum(ends), 2))
    )
    held = side * (middle - (low + high) / 2) <= 0
    return working(
        f"V = {V}, W h = {gate}, phi(z) = z^2/2: xi'({ends[0]}) = {low}, xi'({ends[1]}) = {high}",
        f"halfway {middle}, {'at most' if side > 0 else 'at least'} their mean {(low + high) / 2}: {held}",
        comes_out=held,
    )


def _is_the_printed_gradient(_: Any, *, gate: str) -> Working:
    x, V, size = _symbols()
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


def _with_silu(V: _Matrix, x: _Numbers) -> _Step:
    return _Step("silu", V, (1, 1), x, ((1, 0), (0, 1)), 3)


def _falls(case: _Step, *, flipped: bool) -> Working:
    V, gate = _flipped(case.V, case.gate) if flipped else (case.V, case.gate)
    with mpmath.workdps(DIGITS):
        number, slack = (mpmath.mpf, mpmath.mpf("1e-25")) if case.unit == "silu" else (Fraction, 0)
        return _taken(case._replace(V=V, gate=gate, x=[number(a) for a in case.x]), slack=slack)


def _needs_convexity(case: tuple[int, int, int], *, statement: str) -> Working:
    """identity, V = I: xi = -(g1 x1^2 + g2 x2^2) / 2, split by c |x|^2 / 2; the step solves (c - g) x+ = c x."""
    g1, g2, c = case
    x, plain = (1, 3), ((1, 0), (0, 1))
    convex_or_concave = g1 * g2 >= 0
    splits = c > max(g1, g2, 0)
    if not splits:
        return working(f"W h = {(g1, g2)}, c = {c}: xi + c |x|^2/2 is not convex", comes_out=True)
    after = [Fraction(c * a, c - g) for a, g in zip(x, (g1, g2), strict=True)]
    before_energy, after_energy = (
        _energy(_UNITS["identity"], plain, (g1, g2), [Fraction(a) for a in point]) for point in (x, after)
    )
    applies = after_energy <= before_energy
    held = (not applies or convex_or_concave) if statement == "only" else applies
    return working(
        f"V = I, W h = {(g1, g2)}: curvatures {(-g1, -g2)}, convex or concave is {convex_or_concave}",
        f"u = xi + {c} |x|^2/2 is convex; one step from x = {x}: x+ = {show(after)}",
        f"xi: {before_energy} -> {after_energy}; the procedure applies: {applies}; as stated: {held}",
        comes_out=held,
    )

"""Claims about the primitives of the activations: closed forms, convexity, slopes (Eq. 7, docs/mathematics.md §3)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import mpmath
import sympy
import torch
from hypothesis import strategies as st

from cemverify.cem.activations import ACTIVATIONS
from cemverify.claims.arguments import Figures, Instance, Lemma, Search, Symbols, Working, properties, working
from cemverify.claims.base import Claim, ours
from cemverify.claims.exact import DIGITS, Number, silu, silu_textbook

_MONOTONE = ("identity", "relu", "relu2", "tanh", "sigmoid", "softplus")


def claims() -> Iterator[Claim]:
    """Every claim about primitives of activations, each with its arguments."""
    yield from _primitives()
    yield from _slopes()


# --- section 3: primitives -----------------------------------------------------------------------------


def _primitives() -> Iterator[Claim]:
    yield Claim(
        id="3-silu-primitive",
        source=ours("Eq. 7"),
        statement="SiLU has a primitive in closed form that vanishes at zero.",
        formula="phi(x) = x softplus(x) + Li2(-e^x) + pi^2/12, phi'(x) = x / (1 + e^-x), phi(0) = 0",
        finding=(
            "(x softplus(x))' = softplus(x) + x / (1 + e^-x), and Li2(-e^x)' = -log(1 + e^x) = -softplus(x). At zero "
            "Li2(-1) = -pi^2/12."
        ),
        advice="only the energy needs phi; the layer needs SiLU alone",
        holds_for=partial(_are_primitives, off=0),
        arguments=(
            Symbols("differentiated symbolically", ("silu",)),
            Lemma("against quadrature of SiLU in 30 digits", _silu_primitive_by_quadrature),
            properties("gradient/mlp/stated-energy-silu"),
        ),
    )
    yield Claim(
        id="3-other-primitives",
        source=ours("Eq. 7"),
        statement="Identity, ReLU, its square, tanh, sigmoid, softplus and GELU have primitives in closed form too.",
        formula=(
            "x^2/2; relu(x)^2/2; relu(x)^3/3; log cosh x; softplus(x) - ln 2; -Li2(-e^x) - pi^2/12; "
            "((x^2 - 1) Phi(x) + x pdf(x) + 1/2) / 2"
        ),
        finding="Differentiate, and insert zero. For GELU use pdf'(x) = -x pdf(x) and Phi' = pdf.",
        advice="`cemverify.cem.activations.ACTIVATIONS[name].primitive`",
        holds_for=partial(_are_primitives, off=0),
        arguments=(
            Symbols("each differentiated symbolically", (*_MONOTONE, "gelu")),
            properties("gradient/mlp/stated-energy-gelu"),
        ),
    )
    yield Claim(
        id="3-left-limit",
        source=ours("Eq. 7"),
        statement="Far to the left the primitives of SiLU and both GELUs approach finite positive values.",
        formula="phi(-inf) = pi^2/12 for SiLU, 1/4 for GELU, 0.249586 for the tanh GELU",
        finding=(
            "All three are negative and integrable there, so that phi(-inf) = -int_-inf^0 sigma > 0. So phi falls "
            "from there to its minimum, zero, at zero."
        ),
        advice="an energy of units far on the left is not zero: do not take |xi| for a measure of activity",
        holds_for=partial(_approach, factor=1),
        arguments=(Figures("by quadrature in 30 digits, and by the reference"),),
    )
    yield Claim(
        id="3-near-zero",
        source=ours("Eq. 7"),
        statement=(
            "The closed form of the SiLU primitive may be evaluated as it stands in float64: for |x| <= 1 it keeps "
            "a relative error below one in a thousand."
        ),
        formula="|fl(x softplus(x) + Li2(-e^x) + pi^2/12) - phi(x)| <= phi(x) / 1000",
        finding=(
            "It loses every digit. phi(x) is x^2/4 to leading order, but Li2(-e^x) and pi^2/12 are near -0.82 and "
            "0.82. Their rounding leaves an absolute error of about 1e-16, and below |x| = 1e-8 that is more than "
            "phi itself."
        ),
        advice="near zero sum the series of 3-reflection; `ACTIVATIONS['silu'].primitive` does",
        holds_for=partial(_is_accurate, by="textbook"),
        arguments=(
            Instance("x = 1e-8, each function correctly rounded", 8),
            Search("x = 10^-k, k from 0 to 30", st.integers(0, 30), examples=100),
        ),
    )
    yield Claim(
        id="3-reflection",
        source=ours("Eq. 7"),
        statement=(
            "For SiLU, both GELUs and softplus the positive side of the primitive follows from the negative one, and "
            "series and closed forms on that side keep full accuracy."
        ),
        formula="sigma(x) - sigma(-x) = x  =>  phi(x) = x^2/2 - phi(-x)",
        finding=(
            "Both sides vanish at zero and have the same derivative, sigma(x) = x + sigma(-x). The identity holds "
            "because x s(x) + x s(-x) = x for any s with s(x) + s(-x) = 1, and for softplus because its derivative "
            "is such an s. On the negative side phi is summed from terms that do not cancel."
        ),
        advice="`where(x > 0, x**2 / 2 - p, p)` with `p = phi(-|x|)`",
        holds_for=_reflect,
        arguments=(
            Symbols("the identity, for four activations", ("silu", "gelu", "softplus", "gelu-tanh")),
            Lemma("the reference's primitives in float64 against exact values", _reference_is_accurate),
        ),
    )


def _gelu(z: Number) -> Number:
    return z * mpmath.ncdf(z)


def _gelu_tanh(z: Number) -> Number:
    return z * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (z + 44715 * z**3 / mpmath.mpf(10**6)))) / 2


_X = sympy.Symbol("x", real=True)
_LOGISTIC = 1 / (1 + sympy.exp(-_X))
_PDF = sympy.exp(-(_X**2) / 2) / sympy.sqrt(2 * sympy.pi)


def _closed_forms() -> dict[str, tuple[Any, Any]]:
    """Name: sigma(x), phi(x), symbolic."""
    x, logistic, pdf = _X, _LOGISTIC, _PDF
    Phi = (1 + sympy.erf(x / sympy.sqrt(2))) / 2

    def right(value: Any) -> Any:
        return sympy.Piecewise((0, x < 0), (value, True))

    softplus, Li2 = sympy.log(1 + sympy.exp(x)), sympy.polylog(2, -sympy.exp(x))
    return {
        "identity": (x, x**2 / 2),
        "relu": (right(x), right(x**2 / 2)),
        "relu2": (right(x**2), right(x**3 / 3)),
        "tanh": (sympy.tanh(x), sympy.log(sympy.cosh(x))),
        "sigmoid": (logistic, softplus - sympy.log(2)),
        "softplus": (softplus, -Li2 - sympy.pi**2 / 12),
        "silu": (x * logistic, x * softplus + Li2 + sympy.pi**2 / 12),
        "gelu": (x * Phi, ((x**2 - 1) * Phi + x * pdf + sympy.Rational(1, 2)) / 2),
    }


def _are_primitives(names: Sequence[str], *, off: Any) -> Working:
    lines, right, forms = [], [], _closed_forms()
    for name in names:
        sigma, phi = forms[name]
        excess = sympy.simplify(sympy.expand_func(sympy.diff(phi, _X)) - sigma + off)
        at_zero = sympy.simplify(phi.subs(_X, 0))
        lines.append(f"{name}: phi = {phi}; phi' - sigma = {excess}, phi(0) = {at_zero}")
        right.append(excess == 0 and at_zero == 0)
    return working(*lines, comes_out=all(right))


def _silu_primitive_by_quadrature() -> Working:
    lines, right = [], []
    with mpmath.workdps(DIGITS + 5):
        for x in map(Fraction, ("-5", "-1", "-1/2", "0", "1/3", "1", "4")):
            point = mpmath.mpf(x.numerator) / x.denominator
            integral, closed = mpmath.quad(silu, [0, point]), silu_textbook(point)
            right.append(abs(integral - closed) < mpmath.mpf(10) ** -DIGITS)
            lines.append(f"x = {x}: integral {mpmath.nstr(integral, 15)}, formula {mpmath.nstr(closed, 15)}")
    return working(*lines, f"all equal to {DIGITS} digits is {all(right)}", comes_out=all(right))


def _approach(_: Any, *, factor: float) -> Working:
    lines, right = [], []
    with mpmath.workdps(DIGITS):
        for name, sigma, closed in (
            ("silu", silu, mpmath.pi**2 / 12),
            ("gelu", _gelu, mpmath.mpf(1) / 4),
            ("gelu-tanh", _gelu_tanh, mpmath.mpf("0.249585767768427")),
        ):
            limit = -mpmath.quad(sigma, [-mpmath.inf, -10, -2, 0])
            far = float(ACTIVATIONS[name].primitive(torch.tensor(-1e4, dtype=torch.float64)))
            lines.append(f"{name}: -int_-inf^0 sigma = {mpmath.nstr(limit, 15)}, the reference at -10000: {far:.15g}")
            right.append(abs(limit - far) < 1e-15 and abs(limit - factor * closed) < 1e-14)
    return working(*lines, f"all as stated is {all(right)}", comes_out=all(right))


def _is_accurate(k: int, *, by: str) -> Working:
    """At x = 10^-k, in float64; textbook: with every function in the closed form correctly rounded."""
    x = 10.0**-k
    with mpmath.workdps(100):
        exact = silu_textbook(mpmath.mpf(x))
        if by == "textbook":
            dilogarithm = float(mpmath.polylog(2, -mpmath.exp(x)).real)
            softplus = float(mpmath.log(1 + mpmath.exp(x)))
            actual = x * softplus + dilogarithm + math.pi**2 / 12
        else:
            actual = float(ACTIVATIONS["silu"].primitive(torch.tensor(x, dtype=torch.float64)))
        error = abs(actual - exact) / exact
        held = error <= mpmath.mpf(1) / 1000
    return working(
        f"x = {x:g}: phi = {mpmath.nstr(exact, 7)}, in float64 {actual:.7g}; float64 has a spacing of "
        f"{math.ulp(math.pi**2 / 12):.3g} at pi^2/12",
        f"relative error {mpmath.nstr(error, 3)}, at most 1/1000: {bool(held)}",
        comes_out=held,
    )


def _reflect(names: Sequence[str]) -> Working:
    x, forms = _X, _closed_forms()
    c = sympy.sqrt(2 / sympy.pi)
    sigmas = {name: forms[name][0] for name in names if name in forms}
    sigmas["gelu-tanh"] = x * (1 + sympy.tanh(c * (x + sympy.Rational(44715, 10**6) * x**3))) / 2
    excess = {
        name: sympy.simplify(sympy.logcombine(sympy.expand(sigma - sigma.subs(x, -x)), force=True) - x)
        for name, sigma in sigmas.items()
    }
    lines = (f"{name}: sigma(x) - sigma(-x) - x = {value}" for name, value in excess.items())
    return working(*lines, comes_out=all(value == 0 for value in excess.values()))


def _reference_is_accurate() -> Working:
    points = [s * a for s in (-1, 1) for a in (1e-8, 1e-3, 0.1, 0.5, 1.0, 1.5, 3.0, 30.0)]
    units = 16
    lines, right = [], []
    with mpmath.workdps(80):
        for name in ("silu", "softplus", "gelu", "sigmoid", "tanh"):
            exact = sympy.lambdify(_X, _closed_forms()[name][1], modules="mpmath")
            actual = ACTIVATIONS[name].primitive(torch.tensor(points, dtype=torch.float64)).tolist()
            true = [mpmath.re(exact(mpmath.mpf(p))) for p in points]
            worst = max(abs((g - t) / t) for g, t in zip(actual, true, strict=True))
            right.append(worst <= units * 2.0**-53)
            lines.append(f"{name}: relative error at most {units} units of 2^-53 is {right[-1]}")
    span = f"{len(points)} points, |x| from {min(map(abs, points)):g} to {max(points):g}"
    return working(span, *lines, comes_out=all(right))


# --- section 3: slopes -----------------------------------------------------------------------------------


def _slopes() -> Iterator[Claim]:
    yield Claim(
        id="3-convex",
        source=ours("App. B"),
        statement=(
            "The primitives of the activations are convex, as the appendix assumes of its phi, which it leaves open."
        ),
        formula="a < b  =>  sigma(a) <= sigma(b)",
        condition="identity, ReLU, ReLU squared, tanh, sigmoid and softplus; not SiLU and not GELU",
        within=lambda case: case[0] in _MONOTONE,
        finding=(
            "A differentiable function is convex exactly when its derivative never falls. The derivative of phi is "
            "the activation, and SiLU and GELU come down from zero at -inf to a negative minimum before they rise."
        ),
        advice="Llama's SiLU is outside the appendix's assumption: what follows from convexity is lost",
        holds_for=_rises,
        arguments=(
            Search("two integers, each activation that is monotone", _neighbours(_MONOTONE)),
            Lemma("the sign of each slope, decided symbolically", _monotone_slopes),
            Instance("SiLU at -3 and -2", ("silu", -3, 1)),
            Instance("GELU at -2 and -1", ("gelu", -2, 1)),
            Search("two integers, SiLU and GELU", _neighbours(("silu", "gelu")), outside=True),
        ),
    )
    yield Claim(
        id="3-largest-slopes",
        source=ours("the step size of Eq. 3"),
        statement="The largest |sigma'| of each activation, which the safe step needs.",
        formula=(
            "SiLU 1.0998 (at the root of x tanh(x/2) = 2), GELU 1.1289 (at sqrt 2), tanh GELU 1.1290, sigmoid 1/4, "
            "tanh, softplus, ReLU, identity 1, ReLU squared unbounded"
        ),
        finding=(
            "For GELU sigma'' = (2 - x^2) pdf(x), zero at +-sqrt 2 only. For SiLU, with s the sigmoid, "
            "sigma'' = s(x) s(-x) (2 - x tanh(x/2)), and x tanh(x/2) increases with |x|, so that it is zero at two "
            "points +-a only. By reflection sigma'(x) + sigma'(-x) = 1, so the smallest slope is one minus the "
            "largest. For the tanh GELU the largest is located numerically."
        ),
        advice="`ACTIVATIONS[name].slope_bound`",
        holds_for=partial(_have_largest_slopes, factor=1),
        arguments=(Figures("the second derivatives factor as stated, and what the slopes are there"),),
    )


_SIGMAS: Mapping[str, Any] = {
    "identity": lambda z: z,
    "relu": lambda z: max(z, 0),
    "relu2": lambda z: max(z, 0) ** 2,
    "tanh": mpmath.tanh,
    "sigmoid": lambda z: 1 / (1 + mpmath.exp(-z)),
    "softplus": lambda z: mpmath.log(1 + mpmath.exp(z)),
    "silu": silu,
    "gelu": _gelu,
}


def _neighbours(names: Sequence[str]) -> st.SearchStrategy[tuple[str, int, int]]:
    """An activation, a point, and how far right of it the other one is."""
    return st.tuples(st.sampled_from(names), st.integers(-9, 9), st.integers(1, 9))


def _rises(case: tuple[str, int, int]) -> Working:
    name, a, gap = case
    with mpmath.workdps(DIGITS):
        left, right = _SIGMAS[name](mpmath.mpf(a)), _SIGMAS[name](mpmath.mpf(a + gap))
        held = left <= right
    return working(
        f"{name}: sigma({a}) = {mpmath.nstr(left, 7)}, sigma({a + gap}) = {mpmath.nstr(right, 7)}; does not fall: "
        f"{bool(held)}",
        comes_out=held,
    )


def _monotone_slopes() -> Working:
    y, forms = sympy.Symbol("y", positive=True), _closed_forms()
    lines, right = [], []
    for name in ("identity", "tanh", "sigmoid", "softplus"):
        slope = sympy.diff(forms[name][0].rewrite(sympy.exp), _X).subs(_X, sympy.log(y))
        slope = sympy.factor(sympy.simplify(slope))
        lines.append(f"{name}: with y = e^x, sigma' = {slope}, never negative is {slope.is_nonnegative}")
        right.append(slope.is_nonnegative is True)
    for name in ("relu", "relu2"):
        sides = [sympy.simplify(sympy.diff(forms[name][0], _X).subs(_X, side)) for side in (-y, y)]
        lines.append(f"{name}: sigma'(-y) = {sides[0]}, sigma'(y) = {sides[1]} for y > 0")
        right.append(all(side.is_nonnegative is True for side in sides))
    return working(*lines, comes_out=all(right))


def _have_largest_slopes(_: Any, *, factor: float) -> Working:
    x, s = _X, _LOGISTIC
    sigmas = {name: sigma for name, (sigma, _) in _closed_forms().items()}
    tanh_half = (1 - sympy.exp(-x)) / (1 + sympy.exp(-x))
    excesses = [
        sympy.simplify(sympy.diff(sigmas[name], x, order) - expected)
        for name, order, expected in (
            ("gelu", 2, (2 - x**2) * _PDF),
            ("silu", 2, s * (1 - s) * (2 - x * tanh_half)),
            ("sigmoid", 1, sympy.Rational(1, 4) - (s - sympy.Rational(1, 2)) ** 2),
            ("tanh", 1, 1 - sympy.tanh(x) ** 2),
            ("softplus", 1, s),
        )
    ]
    with mpmath.workdps(DIGITS):
        a = mpmath.findroot(lambda z: z * mpmath.tanh(z / 2) - 2, 2.4)
        b = mpmath.findroot(lambda z: mpmath.diff(_gelu_tanh, z, 2), 1.4)
        peaks = {
            "silu": (a, mpmath.diff(silu, a)),
            "gelu": (mpmath.sqrt(2), mpmath.diff(_gelu, mpmath.sqrt(2))),
            "gelu-tanh": (b, mpmath.diff(_gelu_tanh, b)),
        }
        highest = max(mpmath.diff(_gelu_tanh, mpmath.mpf(i) / 20) for i in range(-160, 161))
        lowest = {name: 1 - peak for name, (_, peak) in peaks.items()}
        agree = all(
            abs(ACTIVATIONS[name].max_slope * factor - peak) < 1e-15
            and abs(ACTIVATIONS[name].min_slope - lowest[name]) < 1e-15
            for name, (_, peak) in peaks.items()
        )
    return working(
        "sigma'' = (2 - x^2) pdf for GELU, s(1-s)(2 - x tanh(x/2)) for SiLU; sigma' = 1/4 - (s - 1/2)^2 for sigmoid,",
        f"1 - tanh^2 for tanh, s for softplus: the differences are {', '.join(map(str, excesses))}",
        *(
            f"{name}: sigma' is at most {mpmath.nstr(peak, 13)}, at x = {mpmath.nstr(at, 13)}, and at least "
            f"{mpmath.nstr(lowest[name], 13)}"
            for name, (at, peak) in peaks.items()
        ),
        f"tanh GELU on a grid over [-8, 8]: largest slope {mpmath.nstr(highest, 13)}",
        f"the reference's constants agree to 1e-15 is {agree}",
        comes_out=all(value == 0 for value in excesses) and agree and bool(highest <= peaks["gelu-tanh"][1]),
    )

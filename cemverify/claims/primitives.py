"""Claims about the primitives of the activations: closed forms, convexity, slopes (Eq. 7, docs/mathematics.md §3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import mpmath
import sympy
import torch
from hypothesis import strategies as st

from cemverify.cem.activations import ACTIVATIONS
from cemverify.claims.base import Claim
from cemverify.claims.evidence import Counterexample, Derivation, Properties, Search, Working, working
from cemverify.claims.exact import DIGITS, Number, silu, silu_textbook, written


def claims() -> Iterator[Claim]:
    """The section's claims."""
    yield from _primitives()
    yield from _slopes()


# --- section 3: primitives -----------------------------------------------------------------------------


def _primitives() -> Iterator[Claim]:
    yield Claim(
        id="3-silu-primitive",
        source="Eq. 7",
        statement="SiLU has a primitive in closed form that vanishes at zero.",
        formula="phi(x) = x softplus(x) + Li2(-e^x) + pi^2/12, phi'(x) = x / (1 + e^-x), phi(0) = 0",
        proof=(
            "(x softplus(x))' = softplus(x) + x / (1 + e^-x), and Li2(-e^x)' = -log(1 + e^x) = -softplus(x). At zero "
            "Li2(-1) = -pi^2/12."
        ),
        evidence=(
            Derivation("differentiated symbolically", _silu_primitive_symbolically),
            Derivation("against quadrature of SiLU in 30 digits", _silu_primitive_by_quadrature),
            Properties(("gradient/mlp/stated-energy-silu",), examples=20),
        ),
    )
    yield Claim(
        id="3-other-primitives",
        source="ours, for Eq. 7",
        statement="Identity, ReLU, its square, tanh, sigmoid, softplus and GELU have primitives in closed form too.",
        formula=(
            "x^2/2; relu(x)^2/2; relu(x)^3/3; log cosh x; softplus(x) - ln 2; -Li2(-e^x) - pi^2/12; "
            "((x^2 - 1) Phi(x) + x pdf(x) + 1/2) / 2"
        ),
        proof="Differentiate, and insert zero. For GELU use pdf'(x) = -x pdf(x) and Phi' = pdf.",
        evidence=(
            Derivation("each differentiated symbolically", _other_primitives),
            Properties(("gradient/mlp/stated-energy-gelu",), examples=20),
        ),
    )
    yield Claim(
        id="3-left-limit",
        source="ours",
        statement="Far to the left the primitives of SiLU and both GELUs approach finite positive values.",
        formula="phi(-inf) = pi^2/12 for SiLU, 1/4 for GELU, 0.2496 for the tanh GELU",
        proof=(
            "All three are negative and integrable there, so that phi(-inf) = -int_-inf^0 sigma > 0. The "
            "integral of x / (1 + e^-x) is the one of Fermi and Dirac, that of x Phi(x) follows by parts. So phi "
            "falls from there to its minimum, zero, at zero."
        ),
        evidence=(Derivation("by quadrature in 30 digits, and by the reference", _left_limits),),
    )
    yield Claim(
        id="3-near-zero",
        source="ours, for Eq. 7",
        statement=(
            "The closed form of the SiLU primitive may be evaluated as it stands in float64: for |x| <= 1 it keeps "
            "a relative error below one in a thousand."
        ),
        formula="|fl(x softplus(x) + Li2(-e^x) + pi^2/12) - phi(x)| <= phi(x) / 1000",
        proof=(
            "phi(x) is x^2/4 to leading order, but Li2(-e^x) and pi^2/12 are near -0.82 and 0.82. Their rounding "
            "leaves an absolute error of about 1e-16, and below |x| = 1e-8 that is more than phi itself."
        ),
        evidence=(
            Counterexample("x = 1e-8, each function correctly rounded", _textbook_cancels),
            Search(
                "x = 10^-k, k from 1 to 12",
                st.integers(1, 12),
                violates=lambda k: _textbook_error(10.0**-k) > mpmath.mpf(1) / 1000,
                size=lambda k: k,
                largest=8,
            ),
        ),
    )
    yield Claim(
        id="3-reflection",
        source="ours",
        statement=(
            "Where sigma(x) - sigma(-x) = x, the positive side of the primitive follows from the negative one, and "
            "series and closed forms on that side keep full accuracy."
        ),
        formula="sigma(x) - sigma(-x) = x  =>  phi(x) = x^2/2 - phi(-x)",
        proof=(
            "Both sides vanish at zero and have the same derivative, sigma(x) = x + sigma(-x). The identity holds "
            "because x s(x) + x s(-x) = x for any s with s(x) + s(-x) = 1, and for softplus because its derivative "
            "is such an s. On the negative side phi is summed from terms that do not cancel: a power series "
            "near zero, the closed form beyond."
        ),
        evidence=(
            Derivation("the identity, symbolically, for four activations", _reflection),
            Derivation("the reference's primitives in float64 against exact values", _reference_is_accurate),
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


def _primitive_working(names: Sequence[str]) -> Working:
    lines, right, forms = [], [], _closed_forms()
    for name in names:
        sigma, phi = forms[name]
        excess = sympy.simplify(sympy.expand_func(sympy.diff(phi, _X)) - sigma)
        at_zero = sympy.simplify(phi.subs(_X, 0))
        lines.append(f"{name}: phi = {phi}; phi' - sigma = {excess}, phi(0) = {at_zero}")
        right.append(excess == 0 and at_zero == 0)
    return working(*lines, comes_out=all(right))


def _silu_primitive_symbolically() -> Working:
    return _primitive_working(("silu",))


def _other_primitives() -> Working:
    return _primitive_working([name for name in _closed_forms() if name != "silu"])


def _silu_primitive_by_quadrature() -> Working:
    lines, right = [], []
    with mpmath.workdps(DIGITS + 5):
        for x in map(Fraction, ("-5", "-1", "-1/2", "0", "1/3", "1", "4")):
            point = mpmath.mpf(x.numerator) / x.denominator
            integral, closed = mpmath.quad(silu, [0, point]), silu_textbook(point)
            right.append(abs(integral - closed) < mpmath.mpf(10) ** -DIGITS)
            lines.append(f"x = {x}: integral {mpmath.nstr(integral, 15)}, formula {mpmath.nstr(closed, 15)}")
    return working(*lines, f"all equal to {DIGITS} digits is {all(right)}", comes_out=all(right))


def _left_limits() -> Working:
    lines, right = [], []
    with mpmath.workdps(DIGITS):
        for name, sigma, closed in (
            ("silu", silu, mpmath.pi**2 / 12),
            ("gelu", _gelu, mpmath.mpf(1) / 4),
            ("gelu-tanh", _gelu_tanh, None),
        ):
            limit = -mpmath.quad(sigma, [-mpmath.inf, -10, -2, 0])
            far = float(ACTIVATIONS[name].primitive(torch.tensor(-1e4, dtype=torch.float64)))
            lines.append(f"{name}: -int_-inf^0 sigma = {mpmath.nstr(limit, 15)}, the reference at -10000: {far:.15g}")
            right.append(abs(limit - far) < 1e-15 and (closed is None or abs(limit - closed) < 1e-20))
    return working(*lines, f"all agree is {all(right)}", comes_out=all(right))


def _textbook_error(x: float) -> Number:
    """Relative error at x of the closed form in float64 with every function in it correctly rounded."""
    with mpmath.workdps(60):
        dilogarithm = float(mpmath.polylog(2, -mpmath.exp(x)))
        softplus = float(mpmath.log(1 + mpmath.exp(x)))
        exact = silu_textbook(mpmath.mpf(x))
        return abs(x * softplus + dilogarithm + math.pi**2 / 12 - exact) / exact


def _textbook_cancels() -> Working:
    errors = {x: _textbook_error(x) for x in (1e-1, 1e-2, 1e-3, 1e-6, 1e-8)}
    last = errors[1e-8]
    with mpmath.workdps(60):
        exact = silu_textbook(mpmath.mpf(1e-8))
    return working(
        f"phi(1e-8) = {written(exact)}; float64 has a spacing of {math.ulp(math.pi**2 / 12):.3g} at pi^2/12",
        *(f"x = {x:g}: relative error {mpmath.nstr(error, 3)}" for x, error in errors.items()),
        f"{mpmath.nstr(last, 3)} <= 1/1000 is {bool(last <= mpmath.mpf(1) / 1000)}",
        comes_out=bool(last <= mpmath.mpf(1) / 1000),
    )


def _reflection() -> Working:
    x, forms = _X, _closed_forms()
    c = sympy.sqrt(2 / sympy.pi)
    sigmas = {name: forms[name][0] for name in ("silu", "gelu", "softplus")}
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
            got = ACTIVATIONS[name].primitive(torch.tensor(points, dtype=torch.float64)).tolist()
            true = [mpmath.re(exact(mpmath.mpf(p))) for p in points]
            worst = max(abs((g - t) / t) for g, t in zip(got, true, strict=True))
            right.append(worst <= units * 2.0**-53)
            lines.append(f"{name}: relative error at most {units} units of 2^-53 is {right[-1]}")
    span = f"{len(points)} points, |x| from {min(map(abs, points)):g} to {max(points):g}"
    return working(span, *lines, comes_out=all(right))


# --- section 3: slopes -----------------------------------------------------------------------------------


def _slopes() -> Iterator[Claim]:
    for name, title, sigma, left in (("silu", "SiLU", silu, -3), ("gelu", "GELU", _gelu, -2)):
        yield Claim(
            id=f"3-{name}-convex",
            source="App. B, used with the activation of Eq. 7",
            statement=f"The primitive of {title} is convex.",
            formula="a < b  =>  sigma(a) <= sigma(b)",
            proof=(
                "A differentiable function is convex exactly when its derivative never falls. The derivative of phi "
                f"is {title}, which comes down from zero at -inf to a negative minimum before it rises."
            ),
            evidence=(
                Counterexample(f"sigma at {left} and {left + 1}", _falls(sigma, left)),
                Search(
                    f"{title} at two integers",
                    st.tuples(st.integers(-9, 9), st.integers(-9, 9)),
                    violates=_falls_between(sigma),
                    size=lambda c: max(map(abs, c)),
                    largest=-left,
                ),
            ),
        )
    yield Claim(
        id="3-monotone",
        source="App. B",
        statement="The primitives of identity, ReLU, ReLU squared, tanh, sigmoid and softplus are convex.",
        formula="sigma' >= 0",
        proof=(
            "Written in y = e^x > 0 the slopes of tanh, sigmoid and softplus are quotients of positive polynomials. "
            "That of the identity is 1, those of ReLU and its square are zero on the left and 1 and 2 x on the right."
        ),
        evidence=(Derivation("the sign of each slope, decided symbolically", _monotone_slopes),),
    )
    yield Claim(
        id="3-largest-slopes",
        source="ours, for the step size of Eq. 3",
        statement="The largest |sigma'| of each activation, which the safe step needs.",
        formula=(
            "SiLU 1.0998 (at the root of x tanh(x/2) = 2), GELU 1.1289 (at sqrt 2), tanh GELU 1.1290, sigmoid 1/4, "
            "tanh, softplus, ReLU, identity 1, ReLU squared unbounded"
        ),
        proof=(
            "For GELU sigma'' = (2 - x^2) pdf(x), zero at +-sqrt 2 only. For SiLU, with s the sigmoid, "
            "sigma'' = s(x) s(-x) (2 - x tanh(x/2)), and x tanh(x/2) increases with |x|, so that it is zero at two "
            "points +-a only. By reflection sigma'(x) + sigma'(-x) = 1, so the smallest slope is one minus the "
            "largest. For the tanh GELU the largest is located numerically."
        ),
        evidence=(
            Derivation("the second derivatives factor as stated, and what the slopes are there", _largest_slopes),
        ),
    )


def _falls_between(sigma: Callable[[Number], Number]) -> Callable[[tuple[int, int]], bool]:
    return lambda c: c[0] < c[1] and bool(sigma(c[0]) > sigma(c[1]) + mpmath.mpf(1) / 1000)


def _falls(sigma: Callable[[Number], Number], left: int) -> Callable[[], Working]:
    def worked() -> Working:
        with mpmath.workdps(DIGITS):
            values = {a: sigma(mpmath.mpf(a)) for a in (left, left + 1)}
            rises = bool(values[left] <= values[left + 1])
            slope = mpmath.diff(sigma, left + mpmath.mpf(1) / 2)
        return working(
            *(f"sigma({a}) = {written(value)}" for a, value in values.items()),
            f"between them sigma'({left} + 1/2) = {written(slope)}",
            f"sigma({left}) <= sigma({left + 1}) is {rises}",
            comes_out=rises,
        )

    return worked


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


def _largest_slopes() -> Working:
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
            abs(ACTIVATIONS[name].max_slope - peak) < 1e-15
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

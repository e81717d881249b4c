"""Claims about the primitives of the activations: closed forms and slopes (Eq. 7, docs/mathematics.md §3)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import mpmath
import sympy

from cemverify.cem.activations import ACTIVATIONS
from cemverify.claims.arguments import Figures, Symbols, Working, properties, working
from cemverify.claims.base import Claim, ours
from cemverify.claims.exact import DIGITS, Number, silu


def claims() -> Iterator[Claim]:
    """Every claim about primitives of activations, each with its arguments."""
    yield Claim(
        id="3-silu-primitive",
        source=ours("Eq. 7"),
        rests=("cemverify.cem.activations.ACTIVATIONS", "gradient/mlp/stated-energy-silu"),
        statement=(
            "SiLU has a closed-form primitive that vanishes at zero, and so have identity, ReLU, squared ReLU, "
            "tanh, sigmoid, softplus and GELU."
        ),
        formula=(
            "x softplus(x) + Li2(-e^x) + pi^2/12; x^2/2; relu(x)^2/2; relu(x)^3/3; log cosh x; softplus(x) - ln 2; "
            "-Li2(-e^x) - pi^2/12; ((x^2 - 1) Phi(x) + x pdf(x) + 1/2) / 2"
        ),
        finding=(
            "Differentiate, and evaluate at zero. For SiLU use Li2(-e^x)' = -softplus(x) and Li2(-1) = -pi^2/12, "
            "for GELU pdf'(x) = -x pdf(x) and Phi' = pdf."
        ),
        advice="only the energy needs them: `cemverify.cem.activations.ACTIVATIONS[name].primitive`",
        holds_for=partial(_are_primitives, off=0),
        arguments=(
            Symbols("each differentiated symbolically"),
            properties("gradient/mlp/stated-energy-silu", "gradient/mlp/stated-energy-gelu"),
        ),
    )
    yield Claim(
        id="3-largest-slopes",
        source=ours("the step size of Eq. 3"),
        rests=("cemverify.cem.activations.Activation.slope_bound", "descent/mlp/safe-step-identity"),
        statement="These are the largest |sigma'| of each activation, which the safe step needs.",
        formula=(
            "SiLU 1.0998 (at the root of x tanh(x/2) = 2), GELU 1.1289 (at sqrt 2), tanh GELU 1.1290, sigmoid 1/4, "
            "tanh, softplus, ReLU, identity 1, ReLU squared unbounded"
        ),
        finding=(
            "For GELU, sigma'' = (2 - x^2) pdf(x), zero at +-sqrt 2 only. For SiLU, with s the sigmoid, sigma'' = "
            "s(x) s(-x) (2 - x tanh(x/2)); x tanh(x/2) increases with |x|, so sigma'' is zero at two points +-a "
            "only. By reflection sigma'(x) + sigma'(-x) = 1, so the smallest slope is one minus the largest. For "
            "the tanh GELU, the largest is located numerically."
        ),
        advice="`ACTIVATIONS[name].slope_bound`",
        holds_for=partial(_have_largest_slopes, factor=1),
        arguments=(Figures("the second derivatives factor as stated, and what the slopes are there"),),
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


def _are_primitives(_: Any, *, off: Any) -> Working:
    lines, right = [], []
    for name, (sigma, phi) in _closed_forms().items():
        excess = sympy.simplify(sympy.expand_func(sympy.diff(phi, _X)) - sigma + off)
        at_zero = sympy.simplify(phi.subs(_X, 0))
        lines.append(f"{name}: phi = {phi}; phi' - sigma = {excess}, phi(0) = {at_zero}")
        right.append(excess == 0 and at_zero == 0)
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

"""Claims about the element-wise energy, its activations and steps: Eq. 7 and 11, App. B.

Sections 2, 3, 9, 10 and 16 of docs/mathematics.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product
from random import Random
from typing import Any

import mpmath
import numpy as np
import sympy
import torch
from hypothesis import strategies as st

from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.energies import Elementwise
from cemverify.conformance.claims.base import Claim
from cemverify.conformance.claims.evidence import Counterexample, Derivation, Properties, Search, Working, working

_Number = Any  # a Fraction, an int, an mpmath or a sympy number: the formulas below are exact for each
_DIGITS = 30


def claims() -> Iterator[Claim]:
    """The sections' claims."""
    yield from _tying()
    yield from _primitives()
    yield from _slopes()
    yield from _safe_steps()
    yield from _convexified()
    yield from _roundoff()


# --- the element-wise energy, for any kind of number --------------------------------------------------


@dataclass(frozen=True)
class _Unit:
    """An activation and its primitive."""

    sigma: Callable[[_Number], _Number]
    phi: Callable[[_Number], _Number]


def _silu(z: _Number) -> _Number:
    return z / (1 + mpmath.exp(-z))


def _silu_textbook(z: _Number) -> _Number:
    return z * mpmath.log(1 + mpmath.exp(z)) + mpmath.polylog(2, -mpmath.exp(z)) + mpmath.pi**2 / 12


def _gelu(z: _Number) -> _Number:
    return z * mpmath.ncdf(z)


def _gelu_tanh(z: _Number) -> _Number:
    return z * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (z + 44715 * z**3 / mpmath.mpf(10**6)))) / 2


_IDENTITY = _Unit(lambda z: z, lambda z: z * z / Fraction(2))
_RELU = _Unit(lambda z: max(z, 0), lambda z: max(z, 0) ** 2 / Fraction(2))
_RELU2 = _Unit(lambda z: max(z, 0) ** 2, lambda z: max(z, 0) ** 3 / Fraction(3))
_SILU = _Unit(_silu, _silu_textbook)

_Matrix = Sequence[Sequence[_Number]]
_Vector = Sequence[_Number]


def _dot(a: _Vector, b: _Vector) -> _Number:
    return sum(p * q for p, q in zip(a, b, strict=True))


def _energy(unit: _Unit, V: _Matrix, gate: _Vector, x: _Vector) -> _Number:
    """-gate . phi(V x)."""
    return -_dot(gate, [unit.phi(_dot(row, x)) for row in V])


def _downhill(unit: _Unit, V: _Matrix, gate: _Vector, x: _Vector) -> list[_Number]:
    """V^T (gate * sigma(V x)), minus the gradient of that energy."""
    hidden = [g * unit.sigma(_dot(row, x)) for g, row in zip(gate, V, strict=True)]
    return [_dot(column, hidden) for column in zip(*V, strict=True)]


def _step(unit: _Unit, V: _Matrix, gate: _Vector, x: _Vector, eta: _Number) -> list[_Number]:
    return [a + eta * f for a, f in zip(x, _downhill(unit, V, gate, x), strict=True)]


def _flipped(V: _Matrix, gate: _Vector) -> tuple[_Matrix, _Vector]:
    """The V and gate of App. B: the gates' signs moved into the rows of V."""
    signs = [(g > 0) - (g < 0) for g in gate]
    return [[s * v for v in row] for s, row in zip(signs, V, strict=True)], [abs(g) for g in gate]


def _show(*values: _Number) -> str:
    """Numbers as a reader writes them: fractions whole, others with seven digits."""
    texts = [mpmath.nstr(v, 7) if isinstance(v, mpmath.mpf) else str(v) for v in values]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


# --- section 2 ----------------------------------------------------------------------------------------


def _tying() -> Iterator[Claim]:
    yield Claim(
        id="2-gated-mlp",
        source="Eq. 7, 11",
        statement=(
            "One gradient step of size one on the element-wise energy is a gated MLP with a residual: V is its "
            "gate projection (activated), W its up projection (linear), and its down projection is V transposed."
        ),
        formula="-grad xi = V^T ((W h) * sigma(V x)) for xi = -(W h) . phi(V x), phi' = sigma",
        proof=(
            "The chain rule: the derivative of phi((V x)_m) in x is sigma((V x)_m) times row m of V, and W h does "
            "not depend on x. Summed over m with the factors (W h)_m that is V^T applied to (W h) * sigma(V x)."
        ),
        evidence=(
            Properties(
                (
                    *(f"tying/mlp/gated-mlp-{name}" for name in ("silu", "gelu", "gelu-tanh", "relu")),
                    *(f"gradient/mlp/{name}" for name in ACTIVATIONS),
                ),
                examples=20,
            ),
            Derivation("the gradient for an arbitrary sigma, D = M = 2, symbolically", _chain_rule),
        ),
    )
    yield Claim(
        id="2-names",
        source="Eq. 11, its names read as Llama's",
        statement=(
            "The superscripts g and u of the paper are those of Llama: a Llama MLP with gate projection W^g, up "
            "projection W^u and down projection W^d takes the gradient step."
        ),
        formula="V^T ((W h) * sigma(V x)) = V^T ((V h) * sigma(W x)), with W^u = V, W^g = W, W^d = V^T",
        proof=(
            "Llama activates its gate projection, and Eq. 7 activates V, which Eq. 11 calls W^u. So W^u has to be "
            "loaded as the gate projection and W^g as the up projection. The other way round, the two factors "
            "change places and the activation acts on the wrong one."
        ),
        evidence=(
            Counterexample("D = M = 1, V = 1, W = -1, h = x = 1, for ReLU and for SiLU", _names_swap_the_factors),
            Search(
                "V, W, h integers in one dimension, ReLU, x = h",
                st.tuples(*(st.integers(-3, 3) for _ in range(3))),
                violates=lambda c: _gradient_step(_RELU, *c) != _read_by_name(_RELU, *c),
                size=lambda c: max(map(abs, c)),
                largest=1,
            ),
        ),
    )
    yield Claim(
        id="2-tied-to-up",
        source="Eq. 11, its names read as Llama's",
        statement="Tying down to the transpose of the linear (up) projection also gives the gradient of some energy.",
        formula="F(x) = U^T ((U h) * sigma(G x)) has a symmetric Jacobian",
        proof=(
            "The Jacobian of F is U^T diag((U h) * sigma'(G x)) G. With one hidden unit it is a multiple of the "
            "outer product of U's row with G's, symmetric only where the two are parallel. A field whose Jacobian "
            "is not symmetric is the gradient of nothing. The tie is between down and the *activated* projection."
        ),
        evidence=(
            Counterexample("D = 2, M = 1, ReLU, U = (1, 0), G = (0, 1)", _tied_to_up_is_no_gradient),
            Search(
                "U, G, h, x integers, D = 2, M = 1, ReLU",
                st.tuples(*(st.tuples(st.integers(-2, 2), st.integers(-2, 2)) for _ in range(4))),
                violates=lambda c: (J := _tied_to_up_jacobian(*c))[0][1] != J[1][0],
                size=lambda c: max(abs(v) for vector in c for v in vector),
                largest=1,
            ),
        ),
    )


def _chain_rule() -> Working:
    x, h = sympy.Matrix(sympy.symbols("x1:3", real=True)), sympy.Matrix(sympy.symbols("h1:3", real=True))
    V = sympy.Matrix(2, 2, sympy.symbols("v11 v12 v21 v22", real=True))
    W = sympy.Matrix(2, 2, sympy.symbols("w11 w12 w21 w22", real=True))
    sigma, t = sympy.Function("sigma"), sympy.Symbol("t", real=True)
    z, gate = V * x, W * h
    energy = -sum(gate[m] * sympy.Integral(sigma(t), (t, 0, z[m])) for m in range(2))
    downhill = sympy.Matrix([-sympy.diff(energy, a) for a in x])
    mlp = V.T * sympy.Matrix([gate[m] * sigma(z[m]) for m in range(2)])
    difference = (downhill - mlp).applyfunc(sympy.expand)
    return working(
        "phi(z) = int_0^z sigma(t) dt, so that phi' = sigma and phi(0) = 0",
        f"-d xi / d x1 = {downhill[0]}",
        f"down(sigma(gate x) * up h), first entry = {mlp[0]}",
        f"difference of the two = {difference.tolist()}",
        comes_out=difference == sympy.zeros(2, 1),
    )


def _gradient_step(unit: _Unit, V: _Number, W: _Number, h: _Number) -> _Number:
    return V * (W * h) * unit.sigma(V * h)


def _read_by_name(unit: _Unit, V: _Number, W: _Number, h: _Number) -> _Number:
    return V * (V * h) * unit.sigma(W * h)


def _names_swap_the_factors() -> Working:
    V, W, h = 1, -1, 1
    right, wrong = _gradient_step(_RELU, V, W, h), _read_by_name(_RELU, V, W, h)
    with mpmath.workdps(_DIGITS):
        silu_right, silu_wrong = _gradient_step(_SILU, V, W, h), _read_by_name(_SILU, V, W, h)
    return working(
        f"V = W^u = {V}, W = W^g = {W}, h = x = {h}",
        f"gradient step, ReLU: V (W h) relu(V x) = {V} ({W * h}) {max(V * h, 0)} = {right}",
        f"by name, ReLU:       V (V h) relu(W x) = {V} ({V * h}) {max(W * h, 0)} = {wrong}",
        f"with SiLU they are {_show(silu_right)} and {_show(silu_wrong)}",
        f"{right} = {wrong} is {right == wrong}",
        comes_out=right == wrong,
    )


def _tied_to_up_jacobian(U: _Vector, G: _Vector, h: _Vector, x: _Vector) -> list[list[int]]:
    """Of U^T ((U h) relu(G x)) with one hidden unit."""
    slope = int(_dot(G, x) > 0)
    return [[u * _dot(U, h) * slope * g for g in G] for u in U]


def _tied_to_up_is_no_gradient() -> Working:
    U, G, h, x = (1, 0), (0, 1), (1, 0), (0, 1)
    J = _tied_to_up_jacobian(U, G, h, x)
    return working(
        f"U = {U}, G = {G}, h = {h}, x = {x}",
        f"U h = {_dot(U, h)}, G x = {_dot(G, x)}, there F(x) = U^T {_dot(U, h)} x2",
        f"Jacobian of F = {J}",
        f"dF1/dx2 = dF2/dx1: {J[0][1]} = {J[1][0]} is {J[0][1] == J[1][0]}",
        comes_out=J[0][1] == J[1][0],
    )


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
    with mpmath.workdps(_DIGITS + 5):
        for x in map(Fraction, ("-5", "-1", "-1/2", "0", "1/3", "1", "4")):
            point = mpmath.mpf(x.numerator) / x.denominator
            integral, closed = mpmath.quad(_silu, [0, point]), _silu_textbook(point)
            right.append(abs(integral - closed) < mpmath.mpf(10) ** -_DIGITS)
            lines.append(f"x = {x}: integral {mpmath.nstr(integral, 15)}, formula {mpmath.nstr(closed, 15)}")
    return working(*lines, f"all equal to {_DIGITS} digits is {all(right)}", comes_out=all(right))


def _left_limits() -> Working:
    lines, right = [], []
    with mpmath.workdps(_DIGITS):
        for name, sigma, closed in (
            ("silu", _silu, mpmath.pi**2 / 12),
            ("gelu", _gelu, mpmath.mpf(1) / 4),
            ("gelu-tanh", _gelu_tanh, None),
        ):
            limit = -mpmath.quad(sigma, [-mpmath.inf, -10, -2, 0])
            far = float(ACTIVATIONS[name].primitive(torch.tensor(-1e4, dtype=torch.float64)))
            lines.append(f"{name}: -int_-inf^0 sigma = {mpmath.nstr(limit, 15)}, the reference at -10000: {far:.15g}")
            right.append(abs(limit - far) < 1e-15 and (closed is None or abs(limit - closed) < 1e-20))
    return working(*lines, f"all agree is {all(right)}", comes_out=all(right))


def _textbook_error(x: float) -> _Number:
    """Relative error at x of the closed form in float64 with every function in it correctly rounded."""
    with mpmath.workdps(60):
        dilogarithm = float(mpmath.polylog(2, -mpmath.exp(x)))
        softplus = float(mpmath.log(1 + mpmath.exp(x)))
        exact = _silu_textbook(mpmath.mpf(x))
        return abs(x * softplus + dilogarithm + math.pi**2 / 12 - exact) / exact


def _textbook_cancels() -> Working:
    errors = {x: _textbook_error(x) for x in (1e-1, 1e-2, 1e-3, 1e-6, 1e-8)}
    last = errors[1e-8]
    with mpmath.workdps(60):
        exact = _silu_textbook(mpmath.mpf(1e-8))
    return working(
        f"phi(1e-8) = {_show(exact)}; float64 has a spacing of {math.ulp(math.pi**2 / 12):.3g} at pi^2/12",
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
    for name, title, sigma, left in (("silu", "SiLU", _silu, -3), ("gelu", "GELU", _gelu, -2)):
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


def _falls_between(sigma: Callable[[_Number], _Number]) -> Callable[[tuple[int, int]], bool]:
    return lambda c: c[0] < c[1] and bool(sigma(c[0]) > sigma(c[1]) + mpmath.mpf(1) / 1000)


def _falls(sigma: Callable[[_Number], _Number], left: int) -> Callable[[], Working]:
    def worked() -> Working:
        with mpmath.workdps(_DIGITS):
            values = {a: sigma(mpmath.mpf(a)) for a in (left, left + 1)}
            rises = bool(values[left] <= values[left + 1])
            slope = mpmath.diff(sigma, left + mpmath.mpf(1) / 2)
        return working(
            *(f"sigma({a}) = {_show(value)}" for a, value in values.items()),
            f"between them sigma'({left} + 1/2) = {_show(slope)}",
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
    with mpmath.workdps(_DIGITS):
        a = mpmath.findroot(lambda z: z * mpmath.tanh(z / 2) - 2, 2.4)
        b = mpmath.findroot(lambda z: mpmath.diff(_gelu_tanh, z, 2), 1.4)
        peaks = {
            "silu": (a, mpmath.diff(_silu, a)),
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


# --- section 9 -------------------------------------------------------------------------------------------


def _safe_steps() -> Iterator[Claim]:
    yield Claim(
        id="9-safe-step",
        source="ours, for Eq. 3 with the energy of Eq. 7",
        statement="A preconditioned gradient step lowers the element-wise energy.",
        formula="xi(x - eta P g) <= xi(x) - eta (1 - eta L lambda_max(P) / 2) g.Pg, L = |V|_2^2 max|W h| max|sigma'|",
        condition=(
            "eta < 2 / (L lambda_max(P)); tight: with the identity and V = 1, W h = -1 every step above the bound "
            "raises the energy, and for SiLU there are weights whose energy rises at 1.001 times it"
        ),
        proof=(
            "The Hessian is -V^T diag((W h) * sigma'(V x)) V, of norm at most L. A function of curvature at most L "
            "satisfies xi(x - eta P g) <= xi(x) - eta g.Pg + eta^2 L |P g|^2 / 2, and |P g|^2 <= lambda_max(P) g.Pg. "
            "With D = 1, sigma the identity, V = 1 and W h = -1 the energy is x^2/2 and a step multiplies it by "
            "(1 - eta)^2, which exceeds one as soon as eta exceeds 2."
        ),
        evidence=(
            Properties(
                (
                    *(f"descent/mlp/safe-step-{name}" for name in ("identity", "diagonal", "low-rank")),
                    "descent/mlp/along-steps",
                ),
                examples=20,
            ),
            Derivation("the Hessian for an arbitrary sigma, D = M = 2, symbolically", _hessian),
            Derivation("where the quadratic energy stops falling, with P = diag(1, 4)", _boundary),
            Counterexample("identity, D = 1, V = 1, W h = -1: a tenth above the bound", _just_above),
            Counterexample("SiLU, D = 2, M = 3: a thousandth above the bound", _just_above_silu),
            Search(
                "identity, D = 1: W h, P and tenths of the bound, integers",
                st.tuples(st.integers(-3, 3), st.integers(1, 3), st.integers(1, 40)),
                violates=lambda c: _rises_at(*c),
                size=lambda c: c[2],
                largest=11,
            ),
        ),
    )
    yield Claim(
        id="9-necessary",
        source="ours",
        statement="Above the safe step the element-wise energy always rises.",
        formula="eta > 2 / (L lambda_max(P))  =>  xi(x - eta P g) > xi(x)",
        proof=(
            "The bound is for the worst weights. Where the energy bends down, as with a positive gate and a monotone "
            "activation, every step lowers it."
        ),
        evidence=(
            Counterexample("identity, D = 1, V = W h = x = 1, eta = 3", _falls_above_the_bound),
            Search(
                "W h, x and eta integers, identity, D = 1, V = 1",
                st.tuples(*(st.integers(-3, 3) for _ in range(2)), st.integers(1, 5)),
                violates=lambda c: c[2] * abs(c[0]) > 2 and c[1] != 0 and _rise(_IDENTITY, 1, *c) <= 0,
                size=lambda c: max(map(abs, c)),
                largest=3,
            ),
        ),
    )
    yield Claim(
        id="9-unit-step",
        source="ours, for Eq. 3 with eta = 1",
        statement="A step of size one, as in a gated MLP with its residual, never raises the element-wise energy.",
        formula="xi(x - g) <= xi(x)",
        proof=(
            "One exceeds the safe step 2 / L when |V|_2^2 max|W h| max|sigma'| exceeds 2, and nothing keeps the "
            "weights below that. In the example with the identity, x moves from 1 to -2 in the energy 3 x^2 / 2."
        ),
        evidence=(
            Counterexample("identity, D = 1, W = -3, V = x = h = 1", lambda: _unit_step(_IDENTITY, -3)),
            Counterexample("SiLU, D = 1, W = -4, V = x = h = 1", lambda: _unit_step(_SILU, -4)),
            Search(
                "V, W h and x integers, identity, D = 1",
                st.tuples(*(st.integers(-4, 4) for _ in range(3))),
                violates=lambda c: _rise(_IDENTITY, c[0], c[1], c[2], 1) > 0,
                size=lambda c: max(map(abs, c)),
                largest=3,
            ),
            Search(
                "V, W h and x integers, SiLU, D = 1",
                st.tuples(*(st.integers(-4, 4) for _ in range(3))),
                violates=lambda c: _rise(_SILU, c[0], c[1], mpmath.mpf(c[2]), 1) > mpmath.mpf(1) / 1000,
                size=lambda c: max(map(abs, c)),
                largest=4,
            ),
        ),
    )
    yield Claim(
        id="9-initialisation",
        source="ours, at sizes of Table 1 and below",
        statement=(
            "With normal weights of standard deviation 0.02, SiLU, hidden width 8 D / 3 and a memory normalised to "
            "unit root mean square, a step of size one is within the safe one."
        ),
        formula="1 < 2 / (|V|_2^2 max|W h| max|sigma'|)",
        condition="the model is narrow: D = 256 and below, not D = 512 and above, and so none of Table 1",
        proof=(
            "|V|_2 is near 0.02 (sqrt(D) + sqrt(M)) and the gates W h have standard deviation 0.02 sqrt(D), so that "
            "the safe step shrinks like D^(-3/2). A step beyond it need not raise the energy; that it does not is "
            "no longer guaranteed."
        ),
        evidence=(
            Derivation("64 random tokens each, D = 64 to 256", lambda: _initial_steps((64, 128, 256))),
            Counterexample("the same, D = 512 to 864", lambda: _initial_steps((512, 672, 768, 864))),
            Search(
                "the same, multiples of 64",
                st.sampled_from(range(64, 896, 64)),
                violates=lambda D: _initial_step(D) < Fraction(99, 100),
                size=float,
                largest=672,
            ),
        ),
    )
    yield Claim(
        id="9-every-activation",
        source="ours",
        statement="Whatever the activation, given the weights there is a step size that is safe from every start.",
        formula="for all V, W, h: exists eta > 0: for all x: xi(x - eta g) <= xi(x)",
        proof=(
            "The slope of ReLU squared, 2 x, has no bound. With V = (1, -1) and W h = (-1, -1) the energy is |x|^3/3 "
            "and a step goes to x (1 - eta |x|): from x = 3 / eta that is -2 x, and the energy grows eightfold, "
            "whatever eta is. Every other activation here has a bounded slope and so a safe step."
        ),
        evidence=(
            Counterexample("ReLU squared, D = 1, M = 2, x = 3 / eta for every eta", _squares_have_no_bound),
            Search(
                "ReLU squared, D = 1, V = (1, -1), W h = (-1, -1): x and 1 / eta integers",
                st.tuples(st.integers(-9, 9), st.integers(1, 3)),
                violates=lambda c: _cubic_rise(c[0], Fraction(1, c[1])) > 0,
                size=lambda c: max(map(abs, c)),
                largest=3,
            ),
        ),
    )
    yield Claim(
        id="9-smaller-constants",
        source="ours",
        statement=(
            "Only units that bend the energy upwards limit the step: those with a negative gate by their largest "
            "slope, those with a positive gate by their most negative one. Weighting each row of V by its own "
            "gate gives smaller constants than L, equally safe."
        ),
        formula=(
            "Hess xi <= c_max V^T diag(|g|, g < 0) V + |c_min| V^T diag(|g|, g > 0) V <= c V^T diag(|g|) V, "
            "c_max = sup sigma', c_min = min(0, inf sigma'), c = max(c_max, |c_min|), g = W h"
        ),
        proof=(
            "u.(Hess xi) u = -sum_m g_m sigma'_m (V u)_m^2. Where g_m < 0 a term is at most |g_m| c_max (V u)_m^2, "
            "where g_m > 0 at most g_m |c_min| (V u)_m^2. Both factors are at most c."
        ),
        evidence=(
            Derivation("both differences positive semi-definite, every case exact", _loewner),
            Derivation("an example in numbers", _smaller_constants),
        ),
    )


def _rise(unit: _Unit, V: _Number, gate: _Number, x: _Number, eta: _Number) -> _Number:
    """How much a step raises the energy, D = M = 1, with x = h."""
    after = _step(unit, [[V]], [gate], [x], eta)
    return _energy(unit, [[V]], [gate], after) - _energy(unit, [[V]], [gate], [x])


def _rises_at(gate: int, P: int, tenths: int) -> bool:
    """Whether a step of that many tenths of the safe one raises the energy: identity, D = V = x = 1."""
    if gate == 0:
        return False
    eta = Fraction(tenths, 10) * Fraction(2, abs(gate) * P)
    return bool(_rise(_IDENTITY, 1, gate, 1, eta * P) > 0)


def _hessian() -> Working:
    x = sympy.Matrix(sympy.symbols("x1:3", real=True))
    g = sympy.Matrix(sympy.symbols("g1:3", real=True))
    V = sympy.Matrix(2, 2, sympy.symbols("v11 v12 v21 v22", real=True))
    difference = (_symbolic_hessian(x, V, g) + V.T * sympy.diag(*_slopes_at(V * x, g)) * V).applyfunc(sympy.expand)
    return working(
        "sigma(z) = int_0^z rho(t) dt and phi(z) = int_0^z sigma(s) ds, rho arbitrary, g = W h",
        f"Hess xi + V^T diag(g * rho(V x)) V = {difference.tolist()}",
        comes_out=difference == sympy.zeros(2, 2),
    )


def _slopes_at(z: Any, gate: Any) -> list[Any]:
    rho = sympy.Function("rho")
    return [gate[m] * rho(z[m]) for m in range(2)]


def _symbolic_hessian(x: Any, V: Any, gate: Any) -> Any:
    """Of -gate . phi(V x), phi'' = rho arbitrary."""
    rho, s, t = sympy.Function("rho"), sympy.Symbol("s", real=True), sympy.Symbol("t", real=True)
    z = V * x
    energy = -sum(gate[m] * sympy.Integral(sympy.Integral(rho(t), (t, 0, s)), (s, 0, z[m])) for m in range(len(gate)))
    return sympy.hessian(energy, list(x))


def _boundary() -> Working:
    eta = sympy.Symbol("eta", positive=True)
    P, gate = (1, 4), -1
    L = abs(gate)
    factors = [(1 + eta * p * gate) ** 2 for p in P]
    ends = [next(iter(sympy.solveset(f - 1, eta, sympy.Interval.open(0, sympy.oo)))) for f in factors]
    bound = sympy.Rational(2, L * max(P))
    return working(
        f"identity, V = I, W h = {gate} for both units: xi = |x|^2/2, L = {L}, P = diag{P}",
        f"bound 2 / (L lambda_max(P)) = {bound}",
        f"a step multiplies x1^2/2 and x2^2/2 by {' and '.join(map(str, factors))}",
        f"these are one at eta = {' and '.join(map(str, ends))}",
        f"the smallest of these is the bound: {min(ends)} = {bound} is {min(ends) == bound}",
        comes_out=min(ends) == bound,
    )


def _just_above() -> Working:
    gate, x = -1, Fraction(1)
    bound = Fraction(2, abs(gate))
    eta = bound * Fraction(11, 10)
    after = _step(_IDENTITY, [[1]], [gate], [x], eta)
    energies = [_energy(_IDENTITY, [[1]], [gate], point) for point in ([x], after)]
    return working(
        f"V = 1, W h = {gate}, so xi = x^2/2 and L = {abs(gate)}; bound 2 / L = {bound}, eta = {eta}",
        f"x: {x} -> {after[0]}, energy: {energies[0]} -> {energies[1]}",
        f"energy after <= energy before: {energies[1]} <= {energies[0]} is {energies[1] <= energies[0]}",
        comes_out=energies[1] <= energies[0],
    )


def _just_above_silu() -> Working:
    with mpmath.workdps(_DIGITS):
        a = mpmath.findroot(lambda z: z * mpmath.tanh(z / 2) - 2, 2.4)  # SiLU is steepest there
        b = mpmath.findroot(lambda b: b * _silu(2 * a * b) - _silu(a), 0.7)  # then x = (0, 2 a) is critical
        half, root = mpmath.mpf(1) / 2, mpmath.sqrt(mpmath.mpf(1) / 2)
        V, gate = [[root, half], [-root, half], [mpmath.mpf(0), b]], [-1, -1, 1]
        largest = max(2 * root**2, 2 * half**2 + b**2)  # V^T V is diagonal
        L = largest * mpmath.diff(_silu, a)
        bound, factor = 2 / L, mpmath.mpf(1001) / 1000
        x = [mpmath.mpf(1) / 100, 2 * a]
        after = _step(_SILU, V, gate, x, factor * bound)
        rise = _energy(_SILU, V, gate, after) - _energy(_SILU, V, gate, x)
        fall = _energy(_SILU, V, gate, _step(_SILU, V, gate, x, bound / factor)) - _energy(_SILU, V, gate, x)
    return working(
        f"V = ({', '.join(_show(*row) for row in V)}), W h = {tuple(gate)}",
        f"V^T V = diag{_show(2 * root**2, 2 * half**2 + b**2)}, so |V|_2 = {_show(mpmath.sqrt(largest))}",
        f"x = {_show(*x)}, L = max sigma' = {_show(L)}, bound 2 / L = {_show(bound)}",
        f"eta = {_show(factor)} times the bound: x -> {_show(*after)}, the energy changes by {_show(rise)}",
        f"eta = bound / {_show(factor)}: it changes by {_show(fall)}",
        f"energy after <= energy before, above the bound, is {bool(rise <= 0)}",
        comes_out=bool(rise <= 0),
    )


def _falls_above_the_bound() -> Working:
    gate, x, eta = 1, Fraction(1), 3
    after = _step(_IDENTITY, [[1]], [gate], [x], eta)
    energies = [_energy(_IDENTITY, [[1]], [gate], point) for point in ([x], after)]
    return working(
        f"V = 1, W h = {gate}, so xi = -x^2/2, L = {abs(gate)}; bound 2 / L = {Fraction(2, abs(gate))}, eta = {eta}",
        f"x: {x} -> {after[0]}, energy: {energies[0]} -> {energies[1]}",
        f"energy after > energy before: {energies[1]} > {energies[0]} is {energies[1] > energies[0]}",
        comes_out=energies[1] > energies[0],
    )


def _unit_step(unit: _Unit, W: int) -> Working:
    with mpmath.workdps(_DIGITS):
        x = Fraction(1) if unit is _IDENTITY else mpmath.mpf(1)
        after = _step(unit, [[1]], [W], [x], 1)
        before_energy, after_energy = (_energy(unit, [[1]], [W], point) for point in ([x], after))
        held = bool(after_energy <= before_energy)
    return working(
        f"V = h = x = 1, W = {W}, eta = 1: xi = {-W} phi(x), step = {W} sigma(x)",
        f"x: {_show(x)} -> {_show(after[0])}, energy: {_show(before_energy)} -> {_show(after_energy)}",
        f"energy after <= energy before: {_show(after_energy)} <= {_show(before_energy)} is {held}",
        comes_out=held,
    )


def _initial_step(D: int) -> float:
    """The smallest safe step of 64 normalised tokens at that width, weights N(0, 0.02^2)."""
    random = np.random.default_rng(D)
    V, W = (torch.from_numpy(random.normal(0, 0.02, (8 * D // 3, D))) for _ in range(2))
    h = torch.from_numpy(random.normal(0, 1, (1, 64, D)))
    energy = Elementwise(V, W, ACTIVATIONS["silu"])
    memory = energy.remember(h / h.square().mean(-1, keepdim=True).sqrt())
    return float(energy.curvature(memory).safe_step().amin())


def _initial_steps(widths: Sequence[int]) -> Working:
    steps = {D: _initial_step(D) for D in widths}
    held = min(steps.values()) > 1
    return working(
        *(f"D = {D}, M = {8 * D // 3}: safe step {step:.2g}" for D, step in steps.items()),
        f"1 < smallest of these = {min(steps.values()):.2g} is {held}",
        comes_out=held,
    )


_BOTH_WAYS: tuple[_Matrix, _Vector] = ([[1], [-1]], [-1, -1])


def _cubic_rise(x: _Number, eta: _Number) -> _Number:
    after = _step(_RELU2, *_BOTH_WAYS, [x], eta)
    return _energy(_RELU2, *_BOTH_WAYS, after) - _energy(_RELU2, *_BOTH_WAYS, [x])


def _squares_have_no_bound() -> Working:
    eta, start = sympy.Symbol("eta", positive=True), 3
    x = start / eta
    unit = _Unit(lambda z: sympy.Max(z, 0) ** 2, lambda z: sympy.Max(z, 0) ** 3 / 3)
    after = _step(unit, *_BOTH_WAYS, [x], eta)[0]
    before_energy, after_energy = (sympy.simplify(_energy(unit, *_BOTH_WAYS, [point])) for point in (x, after))
    held = sympy.simplify(after_energy - before_energy).is_nonpositive
    examples = [Fraction(1, n) for n in (1, 10, 1000)]
    return working(
        "V = (1, -1), W h = (-1, -1): xi = |x|^3/3, step = -x |x|",
        f"from x = {x}: x -> {sympy.simplify(after)}, energy: {before_energy} -> {after_energy}",
        *(f"eta = {e}, x = {start / e}: the energy rises by {_cubic_rise(start / e, e)}" for e in examples),
        f"energy after <= energy before, for some eta > 0, is {held is not False}",
        comes_out=held is not False,
    )


def _loewner() -> Working:
    largest, smallest = Fraction(11, 10), Fraction(-1, 10)
    slopes, gates, entries = (smallest, Fraction(0), largest), (-2, 1, 3), (-1, 0, 2)
    rows = list(product(entries, repeat=2))
    cases = failures = 0
    for V in product(rows, repeat=2):
        for gate, slope in product(product(gates, repeat=2), product(slopes, repeat=2)):
            curvature = [-g * s for g, s in zip(gate, slope, strict=True)]
            one_sided = [largest * -g if g < 0 else -smallest * g for g in gate]
            plain = [largest * abs(g) for g in gate]
            cases += 1
            for upper, lower in ((one_sided, curvature), (plain, one_sided)):
                gap = _gram(V, [u - lo for u, lo in zip(upper, lower, strict=True)])
                failures += not _is_semidefinite(gap)
    return working(
        f"D = M = 2, c_max = {largest}, c_min = {smallest}, gates from {gates}, V's entries from {entries}",
        f"trace and determinant of both differences are non-negative in {cases - failures} of {cases} cases",
        comes_out=failures == 0,
    )


def _gram(V: _Matrix, weights: _Vector) -> tuple[_Number, _Number, _Number]:
    """V^T diag(weights) V for two columns: its entries 11, 12 and 22."""
    a = sum(w * row[0] * row[0] for w, row in zip(weights, V, strict=True))
    b = sum(w * row[0] * row[1] for w, row in zip(weights, V, strict=True))
    c = sum(w * row[1] * row[1] for w, row in zip(weights, V, strict=True))
    return a, b, c


def _is_semidefinite(matrix: tuple[_Number, _Number, _Number]) -> bool:
    a, b, c = matrix
    return bool(a + c >= 0 and a * c - b * b >= 0)


def _top(matrix: tuple[_Number, _Number, _Number]) -> _Number:
    """Its largest eigenvalue."""
    a, b, c = (sympy.Rational(str(v)) for v in matrix)
    return (a + c + sympy.sqrt((a - c) ** 2 + 4 * b**2)) / 2


def _smaller_constants() -> Working:
    V, gate = ((2, 0), (0, 1)), (-1, 10)
    largest, smallest = Fraction(11, 10), Fraction(1, 10)
    L = _top(_gram(V, (1, 1))) * max(map(abs, gate)) * sympy.Rational(str(largest))
    weighted = _top(_gram(V, [largest * abs(g) for g in gate]))
    one_sided = _top(_gram(V, [largest * -g if g < 0 else smallest * g for g in gate]))
    return working(
        f"V = {V}, W h = {gate}, slopes between {-smallest} and {largest}",
        f"L = {L}, weighted by the gates {weighted}, one-sided {one_sided}",
        f"{one_sided} < {weighted} < {L} is {bool(one_sided < weighted < L)}",
        comes_out=bool(one_sided < weighted < L),
    )


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


def _midpoint_gap(V: int, gate: int, a: int, b: int) -> Fraction:
    """xi' halfway between a and b, less the mean of its values there: positive contradicts convexity."""
    flipped = _flipped([[V]], [gate])
    ends = [_energy(_IDENTITY, *flipped, [point]) for point in (Fraction(a), Fraction(b))]
    gap: Fraction = _energy(_IDENTITY, *flipped, [Fraction(a + b, 2)]) - sum(ends) / 2
    return gap


def _midpoint_is_above() -> Working:
    V, gate, points = 1, 1, (-1, 0, 1)
    values = [_energy(_IDENTITY, *_flipped([[V]], [gate]), [Fraction(x)]) for x in points]
    mean = (values[0] + values[2]) / 2
    return working(
        f"V = {V}, W h = {gate}: xi'(x) = -x^2/2",
        f"at {points}: {_show(*values)}",
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
        hessian = _symbolic_hessian(x, flipped, size)
        expected = -V.T * sympy.diag(*_slopes_at(flipped * x, size)) * V
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
        for unit, P, eta in product((_IDENTITY, _RELU), preconditioners, steps):
            point = [Fraction(a) for a in x[0]]
            downhill = _downhill(unit, *flipped, point)
            move = [_dot(row, downhill) for row in P]
            after = [a + eta * m for a, m in zip(point, move, strict=True)]
            gap = _energy(unit, *flipped, point) - eta * _dot(downhill, move) - _energy(unit, *flipped, after)
            slack.append(gap)
            strict += _dot(downhill, move) > 0
            cases += 1
    return working(
        f"V, W h and x from -3 to 3, P among {preconditioners}, eta among {_show(*steps)}",
        f"{cases} cases, {strict} of them with g.Pg > 0",
        f"smallest xi'(x) - eta g.Pg - xi'(x - eta P g) = {min(slack)}, at least 0 is {min(slack) >= 0}",
        comes_out=min(slack) >= 0,
    )


_FIRST_ROW, _LONG_STEP = (-1, -3), 3


def _overshoots(case: tuple[int, int, int, int]) -> bool:
    V, gate, x = [_FIRST_ROW, case[:2]], (1, 1), [mpmath.mpf(v) for v in case[2:]]
    after = _step(_SILU, V, gate, x, _LONG_STEP)
    return bool(_energy(_SILU, V, gate, after) > _energy(_SILU, V, gate, x) + mpmath.mpf(1) / 100)


def _silu_overshoots() -> Working:
    V, gate = (_FIRST_ROW, (3, 2)), (1, 1)
    with mpmath.workdps(_DIGITS):
        x = [mpmath.mpf(-2), mpmath.mpf(2)]
        flipped = _flipped(V, gate)
        after = _step(_SILU, *flipped, x, _LONG_STEP)
        before_energy, after_energy = (_energy(_SILU, *flipped, point) for point in (x, after))
        units = [[_dot(row, point) for row in V] for point in (x, after)]
        held = bool(after_energy <= before_energy)
    return working(
        f"V = {V}, W h = {gate}, x = {_show(*x)}, eta = {_LONG_STEP}: no sign to move",
        f"V x = {_show(*units[0])}, both where SiLU falls",
        f"the step goes to x = {_show(*after)}, V x = {_show(*units[1])}",
        f"energy = -phi - phi: {_show(before_energy)} -> {_show(after_energy)}",
        f"energy after <= energy before is {held}",
        comes_out=held,
    )


def _silu_overshoots_slowly() -> Working:
    with mpmath.workdps(_DIGITS):
        z, e, eta = mpmath.mpf(-13) / 10, mpmath.mpf(1) / 1000, mpmath.mpf(10) ** -12
        slope = mpmath.diff(_silu, z)
        k = mpmath.mpf(11) / 10 / abs(slope)
        a = mpmath.sqrt(k / eta)
        V, gate, x = [[a, 1], [-a, 1]], (1, 1), [e / a, z]
        after = _step(_SILU, V, gate, x, eta)
        before_units, after_units = ([_dot(row, point) - z for row in V] for point in (x, after))
        rise = _energy(_SILU, V, gate, after) - _energy(_SILU, V, gate, x)
    return working(
        f"z = {_show(z)}, sigma'(z) = {_show(slope)}, e = {_show(e)}, k = eta a^2 = {_show(k)}, eta = {_show(eta)}",
        f"V x - z: {_show(*before_units)} -> {_show(*after_units)}; 1 + 2 k sigma'(z) = {_show(1 + 2 * k * slope)}",
        f"the energy changes by {_show(rise)}",
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
        _energy(_IDENTITY, ((1, 0), (0, 1)), (g1, g2), [Fraction(a) for a in point]) for point in (x, after)
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


# --- section 16 ------------------------------------------------------------------------------------------


def _roundoff() -> Iterator[Claim]:
    example = (
        "In two dimensions h = (1, 1), (1, -1) and x = (S, y) have the logits S + y and S - y and the update "
        "(1, tanh y). When the logits alone are rounded to float32 and all else is exact, its error"
    )
    yield Claim(
        id="16-square-root",
        source="ours: a usual tolerance",
        statement=(
            "The relative error of an attention update in floating point is at most a small multiple of the unit "
            "roundoff times the square root of the dimension."
        ),
        formula="|error| <= c u sqrt(n) |F|, here with c = 16",
        condition=(
            "the logits are of order one; at fixed n the error grows in proportion to the largest logit S, and the "
            "example exceeds the tolerance at S = 128"
        ),
        proof=(
            "A logit of size S is rounded by up to u S, which multiplies a softmax weight by up to e^(u S), whatever "
            f"the dimension. {example} is proportional to u S. Products of many terms do add errors that grow with "
            "n, as sqrt(n) or less where they average out."
        ),
        evidence=(
            Properties(("precision/attention/float32", "precision/attention/bfloat16"), examples=20),
            Derivation("D = R = J = 2, W_Q = W_K = I, tau = 1, S up to 8", _small_logits),
            Counterexample("the same, S = 2^7", _large_logits),
            Search(
                "the same, S = 2^k and y = a/7",
                st.tuples(st.integers(0, 14), st.integers(1, 6)),
                violates=lambda c: _roundoff_of_logits(2 ** c[0], c[1]) > _TOLERANCE * mpmath.sqrt(2),
                size=lambda c: c[0],
                largest=7,
            ),
        ),
    )
    yield Claim(
        id="16-logits",
        source="ours",
        statement="The relative error of an attention update is at most a few u (1 + S), S the largest |logit|.",
        formula="|error| <= c u (1 + S) |F|; c = 4 in float32 and 1 in bfloat16",
        condition=(
            "what F sums does not cancel: |F| is of the order of sum_k sum_j a_kij |beta_kj|, as with dense "
            "normal weights"
        ),
        proof=(
            "To first order each logit is off by a few u S and each softmax weight by that relative to itself; the "
            "two matrix products add a few u. So |error| is at most a few u (1 + S) times the sum of the absolute "
            f"values, which |F| can fall short of without limit. {example} is bounded by u (1 + S) from S = 1 to "
            "S = 2^20. A second head with beta = (-1, 0) for both tokens leaves (0, tanh y) of the update, and the "
            "relative error grows like 1 / y."
        ),
        evidence=(
            Properties(("precision/attention/float32", "precision/attention/bfloat16"), examples=20),
            Derivation("the two-token example for S up to 2^20", _proportional_to_logits),
            Counterexample("the same with a second head that cancels, S = 1, y near 2^-12", _heads_cancel),
            Search(
                "the same, S = 1, y = (a/7) 2^-k",
                st.tuples(st.integers(0, 20), st.integers(1, 6)),
                violates=lambda c: _roundoff_of_logits(1, c[1], halvings=c[0], cancels=True) > 8,
                size=lambda c: c[0],
                largest=10,
            ),
        ),
    )
    yield Claim(
        id="16-mlp",
        source="ours",
        statement="The relative error of an MLP update is a few u: no softmax multiplies the roundoff.",
        formula="|error| <= c u |F|; c = 16 in float32 and 3 in bfloat16",
        condition="no sum cancels, as with dense normal weights",
        proof=(
            "SiLU's relative condition number, |x sigma'(x) / sigma(x)|, grows with -x only where its value is "
            "negligible in the sum. What remains are two matrix products and one product of the hidden units, whose "
            "errors average out for dense normal weights. Where a sum cancels, rounding its terms may leave nothing "
            "of it."
        ),
        evidence=(
            Properties(("precision/mlp/float32", "precision/mlp/bfloat16"), examples=20),
            Counterexample("D = 2, M = 1: a gate W h that cancels to 2^-24", _gate_cancels),
            Search(
                "W = (1 + 2^-a, -1 - 2^-b), h = (1 + 2^-a, 1)",
                st.tuples(st.integers(1, 20), st.integers(1, 20)),
                violates=lambda c: _gate_in_float32(*c)[0] != 0 and _gate_error(*c) > 2**20,
                size=max,
                largest=12,
            ),
        ),
    )


_TOLERANCE = 16


def _roundoff_of_logits(S: int, sevenths: int, halvings: int = 0, *, cancels: bool = False) -> _Number:
    """Relative error of (1, tanh y), in units of u, when the logits S + y and S - y are rounded to float32.

    y is (sevenths / 7) 2^-halvings in float32. If a second head cancels, that of (0, tanh y).
    """
    y = np.float32(sevenths) / np.float32(7) * np.float32(2.0**-halvings)
    first, second = np.float32(S) + y, np.float32(S) - y
    difference = (Fraction(float(first)) - Fraction(float(second))) / 2  # y up to the rounding of the two
    with mpmath.workdps(_DIGITS):
        exact = mpmath.tanh(mpmath.mpf(float(y)))
        got = mpmath.tanh(mpmath.mpf(difference.numerator) / difference.denominator)
        return abs(got - exact) / mpmath.sqrt(exact**2 + (not cancels)) * 2**24


def _law_of_sevenths(exponents: Sequence[int]) -> dict[int, _Number]:
    """S: the largest such error over y = 1/7 ... 6/7."""
    return {2**k: max(_roundoff_of_logits(2**k, a) for a in range(1, 7)) for k in exponents}


def _small_logits() -> Working:
    errors = _law_of_sevenths(range(4))
    allowed = _TOLERANCE * mpmath.sqrt(2)
    held = all(error <= allowed for error in errors.values())
    return working(
        *(f"S = {S}: error {mpmath.nstr(error, 3)} u, over y = 1/7 ... 6/7" for S, error in errors.items()),
        f"all at most {_TOLERANCE} sqrt(2) u = {mpmath.nstr(allowed, 3)} u is {held}",
        comes_out=held,
    )


def _large_logits() -> Working:
    sevenths, exponents = 2, (1, 4, 7, 10, 13)
    errors = {2**k: _roundoff_of_logits(2**k, sevenths) for k in exponents}
    allowed = _TOLERANCE * mpmath.sqrt(2)
    held = bool(errors[2**7] <= allowed)
    growth = [b / a for a, b in pairwise(list(errors.values())[1:])]
    return working(
        f"y = {sevenths}/7 in float32; the logits are S + y and S - y, rounded",
        *(f"S = {S}: relative error {mpmath.nstr(error, 4)} u" for S, error in errors.items()),
        f"eight times the logit, {' and '.join(mpmath.nstr(g, 3) for g in growth)} times the error",
        f"at S = {2**7}: {mpmath.nstr(errors[2**7], 4)} u <= {_TOLERANCE} sqrt(2) u = {mpmath.nstr(allowed, 4)} u "
        f"is {held}",
        comes_out=held,
    )


def _proportional_to_logits() -> Working:
    errors = _law_of_sevenths(range(21))
    ratios = {S: error / (1 + S) for S, error in errors.items()}
    held = all(ratio <= 4 for ratio in ratios.values())
    shown = [S for S in ratios if S in (1, 2**5, 2**10, 2**15, 2**20)]
    return working(
        *(f"S = {S}: error {mpmath.nstr(errors[S], 3)} u = {mpmath.nstr(ratios[S], 2)} u (1 + S)" for S in shown),
        f"largest ratio {mpmath.nstr(max(ratios.values()), 2)}, at most 4 is {held}",
        comes_out=held,
    )


def _heads_cancel() -> Working:
    S, sevenths, halvings, c = 1, 2, 10, 4
    alone, cancelled = (_roundoff_of_logits(S, sevenths, halvings, cancels=flag) for flag in (False, True))
    held = bool(cancelled <= c * (1 + S))
    return working(
        f"S = {S}, y = ({sevenths}/7) 2^-{halvings} in float32; the logits are S + y and S - y, rounded",
        f"one head, F = (1, tanh y): relative error {mpmath.nstr(alone, 3)} u",
        f"with the second head, F = (0, tanh y): {mpmath.nstr(cancelled, 4)} u",
        f"{mpmath.nstr(cancelled, 4)} u <= {c} u (1 + S) = {c * (1 + S)} u is {held}",
        comes_out=held,
    )


def _gate_in_float32(a: int, b: int) -> tuple[Fraction, Fraction]:
    """W h for W = (1 + 2^-a, -1 - 2^-b), h = (1 + 2^-a, 1): exactly, and with each operation rounded."""
    W, h = (1 + Fraction(1, 2**a), -1 - Fraction(1, 2**b)), (1 + Fraction(1, 2**a), Fraction(1))
    first, second = (np.float32(float(w)) * np.float32(float(v)) for w, v in zip(W, h, strict=True))
    exact: Fraction = _dot(W, h)
    return exact, Fraction(float(first + second))


def _gate_error(a: int, b: int) -> Fraction:
    """Its relative error in units of u."""
    exact, got = _gate_in_float32(a, b)
    return abs(got - exact) / abs(exact) * 2**24


def _gate_cancels() -> Working:
    a, b, c = 12, 11, 16
    exact, got = _gate_in_float32(a, b)
    error = _gate_error(a, b)
    return working(
        f"W = (1 + 2^-{a}, -1 - 2^-{b}), h = (1 + 2^-{a}, 1), all of them float32 numbers",
        f"W h = {exact}; in float32, each operation rounded, W h = {got}",
        f"the update is V^T (W h) sigma(V x), so its relative error is {error} u at least",
        f"{error} u <= {c} u is {error <= c}",
        comes_out=error <= c,
    )

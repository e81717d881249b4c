"""Claims about the element-wise energy and its steps: Eq. 3, 7 and 11 (docs/mathematics.md §2, §9)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product

import mpmath
import numpy as np
import sympy
import torch
from hypothesis import strategies as st

from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.energies import Elementwise
from cemverify.claims.base import Claim
from cemverify.claims.evidence import Counterexample, Derivation, Properties, Search, Working, working
from cemverify.claims.exact import (
    DIGITS,
    IDENTITY,
    RELU,
    SILU,
    Matrix,
    Number,
    Numbers,
    Unit,
    gated_energy,
    gated_step,
    inner,
    silu,
    slopes_at,
    symbolic_hessian,
    written,
)

_RELU2 = Unit(lambda z: max(z, 0) ** 2, lambda z: max(z, 0) ** 3 / Fraction(3))


def claims() -> Iterator[Claim]:
    """The sections' claims."""
    yield from _tying()
    yield from _safe_steps()


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
                violates=lambda c: _gradient_step(RELU, *c) != _read_by_name(RELU, *c),
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


def _gradient_step(unit: Unit, V: Number, W: Number, h: Number) -> Number:
    return V * (W * h) * unit.sigma(V * h)


def _read_by_name(unit: Unit, V: Number, W: Number, h: Number) -> Number:
    return V * (V * h) * unit.sigma(W * h)


def _names_swap_the_factors() -> Working:
    V, W, h = 1, -1, 1
    right, wrong = _gradient_step(RELU, V, W, h), _read_by_name(RELU, V, W, h)
    with mpmath.workdps(DIGITS):
        silu_right, silu_wrong = _gradient_step(SILU, V, W, h), _read_by_name(SILU, V, W, h)
    return working(
        f"V = W^u = {V}, W = W^g = {W}, h = x = {h}",
        f"gradient step, ReLU: V (W h) relu(V x) = {V} ({W * h}) {max(V * h, 0)} = {right}",
        f"by name, ReLU:       V (V h) relu(W x) = {V} ({V * h}) {max(W * h, 0)} = {wrong}",
        f"with SiLU they are {written(silu_right)} and {written(silu_wrong)}",
        f"{right} = {wrong} is {right == wrong}",
        comes_out=right == wrong,
    )


def _tied_to_up_jacobian(U: Numbers, G: Numbers, h: Numbers, x: Numbers) -> list[list[int]]:
    """Of U^T ((U h) relu(G x)) with one hidden unit."""
    slope = int(inner(G, x) > 0)
    return [[u * inner(U, h) * slope * g for g in G] for u in U]


def _tied_to_up_is_no_gradient() -> Working:
    U, G, h, x = (1, 0), (0, 1), (1, 0), (0, 1)
    J = _tied_to_up_jacobian(U, G, h, x)
    return working(
        f"U = {U}, G = {G}, h = {h}, x = {x}",
        f"U h = {inner(U, h)}, G x = {inner(G, x)}, there F(x) = U^T {inner(U, h)} x2",
        f"Jacobian of F = {J}",
        f"dF1/dx2 = dF2/dx1: {J[0][1]} = {J[1][0]} is {J[0][1] == J[1][0]}",
        comes_out=J[0][1] == J[1][0],
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
                violates=lambda c: c[2] * abs(c[0]) > 2 and c[1] != 0 and _rise(IDENTITY, 1, *c) <= 0,
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
            Counterexample("identity, D = 1, W = -3, V = x = h = 1", lambda: _unit_step(IDENTITY, -3)),
            Counterexample("SiLU, D = 1, W = -4, V = x = h = 1", lambda: _unit_step(SILU, -4)),
            Search(
                "V, W h and x integers, identity, D = 1",
                st.tuples(*(st.integers(-4, 4) for _ in range(3))),
                violates=lambda c: _rise(IDENTITY, c[0], c[1], c[2], 1) > 0,
                size=lambda c: max(map(abs, c)),
                largest=3,
            ),
            Search(
                "V, W h and x integers, SiLU, D = 1",
                st.tuples(*(st.integers(-4, 4) for _ in range(3))),
                violates=lambda c: _rise(SILU, c[0], c[1], mpmath.mpf(c[2]), 1) > mpmath.mpf(1) / 1000,
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


def _rise(unit: Unit, V: Number, gate: Number, x: Number, eta: Number) -> Number:
    """How much a step raises the energy, D = M = 1, with x = h."""
    after = gated_step(unit, [[V]], [gate], [x], eta)
    return gated_energy(unit, [[V]], [gate], after) - gated_energy(unit, [[V]], [gate], [x])


def _rises_at(gate: int, P: int, tenths: int) -> bool:
    """Whether a step of that many tenths of the safe one raises the energy: identity, D = V = x = 1."""
    if gate == 0:
        return False
    eta = Fraction(tenths, 10) * Fraction(2, abs(gate) * P)
    return bool(_rise(IDENTITY, 1, gate, 1, eta * P) > 0)


def _hessian() -> Working:
    x = sympy.Matrix(sympy.symbols("x1:3", real=True))
    g = sympy.Matrix(sympy.symbols("g1:3", real=True))
    V = sympy.Matrix(2, 2, sympy.symbols("v11 v12 v21 v22", real=True))
    difference = (symbolic_hessian(x, V, g) + V.T * sympy.diag(*slopes_at(V * x, g)) * V).applyfunc(sympy.expand)
    return working(
        "sigma(z) = int_0^z rho(t) dt and phi(z) = int_0^z sigma(s) ds, rho arbitrary, g = W h",
        f"Hess xi + V^T diag(g * rho(V x)) V = {difference.tolist()}",
        comes_out=difference == sympy.zeros(2, 2),
    )


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
    after = gated_step(IDENTITY, [[1]], [gate], [x], eta)
    energies = [gated_energy(IDENTITY, [[1]], [gate], point) for point in ([x], after)]
    return working(
        f"V = 1, W h = {gate}, so xi = x^2/2 and L = {abs(gate)}; bound 2 / L = {bound}, eta = {eta}",
        f"x: {x} -> {after[0]}, energy: {energies[0]} -> {energies[1]}",
        f"energy after <= energy before: {energies[1]} <= {energies[0]} is {energies[1] <= energies[0]}",
        comes_out=energies[1] <= energies[0],
    )


def _just_above_silu() -> Working:
    with mpmath.workdps(DIGITS):
        a = mpmath.findroot(lambda z: z * mpmath.tanh(z / 2) - 2, 2.4)  # SiLU is steepest there
        b = mpmath.findroot(lambda b: b * silu(2 * a * b) - silu(a), 0.7)  # then x = (0, 2 a) is critical
        half, root = mpmath.mpf(1) / 2, mpmath.sqrt(mpmath.mpf(1) / 2)
        V, gate = [[root, half], [-root, half], [mpmath.mpf(0), b]], [-1, -1, 1]
        largest = max(2 * root**2, 2 * half**2 + b**2)  # V^T V is diagonal
        L = largest * mpmath.diff(silu, a)
        bound, factor = 2 / L, mpmath.mpf(1001) / 1000
        x = [mpmath.mpf(1) / 100, 2 * a]
        after = gated_step(SILU, V, gate, x, factor * bound)
        rise = gated_energy(SILU, V, gate, after) - gated_energy(SILU, V, gate, x)
        fall = gated_energy(SILU, V, gate, gated_step(SILU, V, gate, x, bound / factor)) - gated_energy(
            SILU, V, gate, x
        )
    return working(
        f"V = ({', '.join(written(*row) for row in V)}), W h = {tuple(gate)}",
        f"V^T V = diag{written(2 * root**2, 2 * half**2 + b**2)}, so |V|_2 = {written(mpmath.sqrt(largest))}",
        f"x = {written(*x)}, L = max sigma' = {written(L)}, bound 2 / L = {written(bound)}",
        f"eta = {written(factor)} times the bound: x -> {written(*after)}, the energy changes by {written(rise)}",
        f"eta = bound / {written(factor)}: it changes by {written(fall)}",
        f"energy after <= energy before, above the bound, is {bool(rise <= 0)}",
        comes_out=bool(rise <= 0),
    )


def _falls_above_the_bound() -> Working:
    gate, x, eta = 1, Fraction(1), 3
    after = gated_step(IDENTITY, [[1]], [gate], [x], eta)
    energies = [gated_energy(IDENTITY, [[1]], [gate], point) for point in ([x], after)]
    return working(
        f"V = 1, W h = {gate}, so xi = -x^2/2, L = {abs(gate)}; bound 2 / L = {Fraction(2, abs(gate))}, eta = {eta}",
        f"x: {x} -> {after[0]}, energy: {energies[0]} -> {energies[1]}",
        f"energy after > energy before: {energies[1]} > {energies[0]} is {energies[1] > energies[0]}",
        comes_out=energies[1] > energies[0],
    )


def _unit_step(unit: Unit, W: int) -> Working:
    with mpmath.workdps(DIGITS):
        x = Fraction(1) if unit is IDENTITY else mpmath.mpf(1)
        after = gated_step(unit, [[1]], [W], [x], 1)
        before_energy, after_energy = (gated_energy(unit, [[1]], [W], point) for point in ([x], after))
        held = bool(after_energy <= before_energy)
    return working(
        f"V = h = x = 1, W = {W}, eta = 1: xi = {-W} phi(x), step = {W} sigma(x)",
        f"x: {written(x)} -> {written(after[0])}, energy: {written(before_energy)} -> {written(after_energy)}",
        f"energy after <= energy before: {written(after_energy)} <= {written(before_energy)} is {held}",
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


_BOTH_WAYS: tuple[Matrix, Numbers] = ([[1], [-1]], [-1, -1])


def _cubic_rise(x: Number, eta: Number) -> Number:
    after = gated_step(_RELU2, *_BOTH_WAYS, [x], eta)
    return gated_energy(_RELU2, *_BOTH_WAYS, after) - gated_energy(_RELU2, *_BOTH_WAYS, [x])


def _squares_have_no_bound() -> Working:
    eta, start = sympy.Symbol("eta", positive=True), 3
    x = start / eta
    unit = Unit(lambda z: sympy.Max(z, 0) ** 2, lambda z: sympy.Max(z, 0) ** 3 / 3)
    after = gated_step(unit, *_BOTH_WAYS, [x], eta)[0]
    before_energy, after_energy = (sympy.simplify(gated_energy(unit, *_BOTH_WAYS, [point])) for point in (x, after))
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


def _gram(V: Matrix, weights: Numbers) -> tuple[Number, Number, Number]:
    """V^T diag(weights) V for two columns: its entries 11, 12 and 22."""
    a = sum(w * row[0] * row[0] for w, row in zip(weights, V, strict=True))
    b = sum(w * row[0] * row[1] for w, row in zip(weights, V, strict=True))
    c = sum(w * row[1] * row[1] for w, row in zip(weights, V, strict=True))
    return a, b, c


def _is_semidefinite(matrix: tuple[Number, Number, Number]) -> bool:
    a, b, c = matrix
    return bool(a + c >= 0 and a * c - b * b >= 0)


def _top(matrix: tuple[Number, Number, Number]) -> Number:
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

"""Claims about the element-wise energy and its steps: Eq. 3, 7 and 11 (docs/mathematics.md §2, §9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import mpmath
import numpy as np
import sympy
import torch
from hypothesis import strategies as st

from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.energies import Elementwise
from cemverify.claims.arguments import Figures, Instance, Lemma, Sample, Search, Symbols, Working, properties, working
from cemverify.claims.base import Claim, arxiv, ours
from cemverify.claims.exact import (
    DIGITS,
    GAIN,
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
    show,
    silu,
    slopes_at,
    symbolic_hessian,
    written,
)

_UNITS: Mapping[str, Unit] = {"identity": IDENTITY, "relu": RELU, "silu": SILU}
_SMALL = st.integers(-3, 3)
_PAIR = st.tuples(_SMALL, _SMALL)


def claims() -> Iterator[Claim]:
    """Every claim about the element-wise energy, each with its arguments."""
    yield from _tying()
    yield from _safe_steps()


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
            "The chain rule: the derivative of phi((V x)_m) in x is sigma((V x)_m) times row m of V, and W h does "
            "not depend on x. Summed over m with the factors (W h)_m that is V^T applied to (W h) * sigma(V x)."
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
    yield Claim(
        id="2-names",
        source=ours('the names in Eq. 6 and 11, and "shared up/down projections" in the abstract of v1'),
        statement=(
            "The names W^g, W^u and W^d may be read as those of Llama's code: its MLP with gate projection W^g, up "
            "projection W^u and down projection W^d = (W^u)^T takes the gradient step."
        ),
        formula="V^T ((W h) * sigma(V x)) = V^T ((V h) * sigma(W x)), with W^u = V, W^g = W, W^d = V^T",
        finding=(
            "Eq. 6 of the draft defines its own names and is right by them. Llama activates its gate projection, "
            "and Eq. 6 activates W^u. Read by Llama's names, the two factors change places and the activation acts "
            "on the wrong one. In Llama's words the tie is between gate and down."
        ),
        advice="load W^u as `gate_proj`, W^g as `up_proj`, and tie `down_proj = gate_proj.T`",
        holds_for=partial(_llama_takes_the_step, loaded="by name"),
        arguments=(
            Instance("D = M = 1, V = 1, W = -1, h = x = 1, ReLU", ("relu", 1, -1, 1)),
            Search(
                "V, W and h integers in one dimension, x = h",
                st.tuples(st.sampled_from(("relu", "silu")), _SMALL, _SMALL, _SMALL),
            ),
        ),
    )
    yield Claim(
        id="2-tied-to-up",
        source=ours("Eq. 11"),
        statement="Tying down to the transpose of the linear projection, Llama's up, also gives a gradient.",
        formula="F(x) = U^T ((U h) * sigma(G x)) has a symmetric Jacobian",
        finding=(
            "It does not. The Jacobian of F is U^T diag((U h) * sigma'(G x)) G. With one hidden unit it is a "
            "multiple of the outer product of U's row with G's, symmetric only where the two are parallel. The tie "
            "is between down and the *activated* projection."
        ),
        advice="tie the projection that the activation acts on",
        holds_for=partial(_tie_is_conservative, down="up"),
        arguments=(
            Instance("D = 2, M = 1, ReLU, U = (1, 0), G = (0, 1)", ((1, 0), (0, 1), (1, 0), (0, 1))),
            Search("U, G, h and x integers, D = 2, M = 1, ReLU", st.tuples(_PAIR, _PAIR, _PAIR, _PAIR)),
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


def _llama_takes_the_step(case: tuple[str, int, int, int], *, loaded: str) -> Working:
    name, V, W, h = case
    sigma = _UNITS[name].sigma
    gate, up = (W, V) if loaded == "by name" else (V, W)
    with mpmath.workdps(DIGITS):
        step = V * (W * h) * sigma(mpmath.mpf(V * h))
        llama = V * (up * h) * sigma(mpmath.mpf(gate * h))
        same = abs(step - llama) < mpmath.mpf("1e-20")
    return working(
        f"{name}, W^u = V = {V}, W^g = W = {W}, h = x = {h}",
        f"gradient step V (W h) sigma(V x) = {show(step)}",
        f"Llama's down (up h) sigma(gate x) with gate = {gate}, up = {up}: {show(llama)}; the same: {bool(same)}",
        comes_out=same,
    )


def _tie_is_conservative(case: Sequence[Numbers], *, down: str) -> Working:
    U, G, h, x = case
    slope = int(inner(G, x) > 0)
    J = [[d * inner(U, h) * slope * g for g in G] for d in (U if down == "up" else G)]
    return working(
        f"one hidden unit, ReLU: U = {U}, G = {G}, h = {h}, x = {x}; down = {'U' if down == 'up' else 'G'}^T",
        f"Jacobian of down ((U h) * relu(G x)) = {J}, symmetric: {J[0][1] == J[1][0]}",
        comes_out=J[0][1] == J[1][0],
    )


# --- section 9 -------------------------------------------------------------------------------------------


class _Stepped(NamedTuple):
    """A step of `factor` times the safe one, with P = diag(P): units, gates and a start."""

    unit: str
    V: Matrix
    gate: Numbers
    x: Numbers
    P: Numbers
    factor: Any


def _one_dimensional(factors: st.SearchStrategy[Any]) -> st.SearchStrategy[_Stepped]:
    return st.builds(
        lambda unit, gate, x, P, factor: _Stepped(unit, ((1,),), (gate,), (x,), (P,), factor),
        *(st.sampled_from(("identity", "silu")), _SMALL.filter(bool), _SMALL, GAIN, factors),
    )


def _safe_steps() -> Iterator[Claim]:
    yield Claim(
        id="9-safe-step",
        source=ours("Eq. 3 with the energy of Eq. 7"),
        statement="A preconditioned gradient step lowers the element-wise energy.",
        formula="xi(x - eta P g) <= xi(x) - eta (1 - eta L lambda_max(P) / 2) g.Pg, L = |V|_2^2 max|W h| max|sigma'|",
        condition=(
            "eta < 2 / (L lambda_max(P)); tight: with the identity and V = 1, W h = -1 every step above the bound "
            "raises the energy, and for SiLU there are weights whose energy rises at 1.001 times it"
        ),
        within=lambda case: case.factor < 1,
        finding=(
            "The Hessian is -V^T diag((W h) * sigma'(V x)) V, of norm at most L. A function of curvature at most L "
            "satisfies xi(x - eta P g) <= xi(x) - eta g.Pg + eta^2 L |P g|^2 / 2, and |P g|^2 <= lambda_max(P) g.Pg."
        ),
        advice="`eta = min(1, 2 / (L * P_max))` if a step must never climb; `Elementwise.curvature` gives L",
        holds_for=partial(_step_lowers, sign=1),
        arguments=(
            Search("W h, x and P integers, identity and SiLU, tenths of the bound", _one_dimensional(_TENTHS)),
            Lemma("the Hessian for an arbitrary sigma, D = M = 2, in letters", _hessian),
            properties(
                *(f"descent/mlp/safe-step-{name}" for name in ("identity", "diagonal", "low-rank")),
                "descent/mlp/along-steps",
            ),
            Instance(
                "identity, D = 1, V = 1, W h = -1: a hundredth above the bound",
                _Stepped("identity", ((1,),), (-1,), (1,), (1,), Fraction(101, 100)),
            ),
            Instance("SiLU, D = 2, M = 3: a thousandth above the bound", _tight_for_silu()),
            Search(
                "the same, from the bound to four times it",
                _one_dimensional(st.integers(11, 40).map(lambda n: Fraction(n, 10))),
                outside=True,
            ),
        ),
    )
    yield Claim(
        id="9-necessary",
        source=ours("Eq. 3 with the energy of Eq. 7"),
        statement="Above the safe step the element-wise energy always rises.",
        formula="eta > 2 / (L lambda_max(P))  =>  xi(x - eta P g) > xi(x)",
        finding=(
            "It need not. The bound is for the worst weights. Where the energy bends down, as with a positive gate "
            "and a monotone activation, every step lowers it."
        ),
        advice="a step beyond the safe one is not wrong; it is only not guaranteed",
        holds_for=partial(_bound_decides, side="above"),
        arguments=(
            Instance("identity, D = 1, V = W h = x = 1, eta = 3", (1, 1, 3)),
            Search("W h, x and eta integers, identity, D = 1, V = 1", st.tuples(_SMALL, _SMALL, st.integers(1, 5))),
        ),
    )
    yield Claim(
        id="9-unit-step",
        source=ours("App. B"),
        statement="A step of size one, as in a gated MLP with its residual, never raises the element-wise energy.",
        formula="xi(x - g) <= xi(x)",
        finding=(
            "It may. One exceeds the safe step 2 / L when |V|_2^2 max|W h| max|sigma'| exceeds 2, and nothing keeps "
            "the weights below that."
        ),
        advice="do not assert descent of an MLP at eta = 1; assert it at the safe step, or log how often it fails",
        holds_for=partial(_unit_step_lowers, size="one"),
        arguments=(
            Instance("identity, D = 1, W = -3, V = x = h = 1: x goes from 1 to -2", ("identity", 1, -3, 1)),
            Instance("SiLU, D = 1, W = -4, V = x = h = 1", ("silu", 1, -4, 1)),
            Search(
                "V, W h and x integers, D = 1",
                st.tuples(st.sampled_from(("identity", "silu")), _SMALL, _SMALL, _SMALL),
            ),
        ),
    )
    yield Claim(
        id="9-initialisation",
        source=ours("App. C.4, Table 1"),
        statement=(
            "With normal weights of standard deviation 0.02, SiLU, hidden width 8 D / 3 and a memory of unit root "
            "mean square, a step of size one is guaranteed to lower the element-wise energy."
        ),
        formula="1 < 2 / L, with L = |V|_2^2 max|W h| max|sigma'| or the one-sided constant",
        condition=(
            "the guarantee rests on the one-sided constant of 9-smaller-constants; the crude L gives it at D = 256 "
            "and below, and at no width of Table 1"
        ),
        within=lambda case: case[1] == "one-sided" or case[0] <= 256,
        finding=(
            "At D = 672, 768 and 864 the one-sided constant leaves a safe step above one for every token tried. L "
            "loses a factor of about four: |V|_2 is near 0.02 (sqrt(D) + sqrt(M)) and the largest gate is far "
            "above the typical one."
        ),
        advice="at the start eta = 1 is safe; watch it as the weights grow",
        holds_for=partial(_unit_step_is_safe, std=0.02),
        arguments=(
            *(Figures(f"D = {D}, one-sided constant", (D, "one-sided")) for D in (672, 768, 864)),
            *(Figures(f"D = {D}, crude constant", (D, "crude")) for D in (64, 128, 256)),
            *(Instance(f"D = {D}, crude constant", (D, "crude")) for D in (512, 672)),
        ),
    )
    yield Claim(
        id="9-every-activation",
        source=ours("Eq. 7"),
        statement="Whatever the activation, given the weights there is a step size that is safe from every start.",
        formula="for all V, W, h: exists eta > 0: for all x: xi(x - eta g) <= xi(x)",
        finding=(
            "Not for ReLU squared, whose slope 2 x has no bound. With V = (1, -1) and W h = (-1, -1) the energy is "
            "|x|^3 / 3, and from x = 3 / eta a step overshoots and raises it, whatever eta is. Every other "
            "activation here has a bounded slope and so a safe step."
        ),
        advice="with ReLU squared put RMSNorm inside, or clip the step",
        holds_for=partial(_some_step_is_safe, power=2),
        arguments=(Symbols("D = 1, M = 2, V = (1, -1), W h = (-1, -1), x = 3 / eta for every eta"),),
    )
    yield Claim(
        id="9-smaller-constants",
        source=ours("Eq. 7"),
        statement=(
            "Only units that bend the energy upwards limit the step: those with a negative gate by their largest "
            "slope, those with a positive gate by their most negative one."
        ),
        formula=(
            "Hess xi <= c_max V^T diag(|g|, g < 0) V + |c_min| V^T diag(|g|, g > 0) V <= c V^T diag(|g|) V, "
            "c_max = sup sigma', c_min = min(0, inf sigma'), c = max(c_max, |c_min|), g = W h"
        ),
        finding=(
            "u.(Hess xi) u = -sum_m g_m sigma'_m (V u)_m^2. Where g_m < 0 a term is at most |g_m| c_max (V u)_m^2, "
            "where g_m > 0 at most g_m |c_min| (V u)_m^2. Weighting each row of V by its own gate gives smaller "
            "constants than L, equally safe: in the example 4.4, or 11 with both signs alike, instead of 44."
        ),
        advice="`eigvalsh(V.T @ diag(where(g < 0, c_max, -c_min) * g.abs()) @ V)[-1]` bounds the curvature",
        holds_for=partial(_is_one_sided, swapped=False),
        arguments=(
            Sample("D = M = 2, slopes of -0.1, 0 and 1.1, gates and weights among three each, exact", _curvatures),
            Lemma("an example in numbers: strictly smaller constants", _smaller_constants),
        ),
    )


def _step_lowers(case: _Stepped, *, sign: int) -> Working:
    unit, (V, gate, x, P) = _UNITS[case.unit], case[1:5]
    with mpmath.workdps(DIGITS):
        steepest = mpmath.mpf(1) if case.unit == "identity" else _steepest()[1]
        L = _spectral_square(V) * max(map(abs, gate)) * steepest
        bound = 2 / (L * max(P))
        eta = _real(case.factor) * bound
        start = [mpmath.mpf(a) for a in x]
        hidden = [g * unit.sigma(inner(row, start)) for g, row in zip(gate, V, strict=True)]
        downhill = [inner(column, hidden) for column in zip(*V, strict=True)]
        step = [p * f for p, f in zip(P, downhill, strict=True)]
        after = [a + sign * eta * s for a, s in zip(start, step, strict=True)]
        energies = [gated_energy(unit, V, gate, point) for point in (start, after)]
        promised = energies[0] - eta * max(mpmath.mpf(0), 1 - eta * L * max(P) / 2) * inner(downhill, step)
        held = energies[1] <= promised + mpmath.mpf("1e-20")
    return working(
        f"{case.unit}, V = {show(tuple(map(tuple, V)))}, W h = {show(tuple(gate))}, P = diag{show(tuple(P))}",
        f"L = {show(L)}, the safe step is {show(bound)}; eta = {show(eta)}, {show(_real(case.factor))} of it",
        f"x {show(start)} -> {show(after)}, energy {show(energies[0], 9)} -> {show(energies[1], 9)}; at most "
        f"{show(promised, 9)}: {bool(held)}",
        comes_out=held,
    )


_TENTHS = st.integers(1, 9).map(lambda n: Fraction(n, 10))


def _real(value: Any) -> Any:
    """A fraction at mpmath's precision; others as they are."""
    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction | int) else value


def _steepest() -> tuple[Any, Any]:
    """Where SiLU is steepest, and how steep."""
    a = mpmath.findroot(lambda z: z * mpmath.tanh(z / 2) - 2, 2.4)
    return a, mpmath.diff(silu, a)


def _spectral_square(V: Matrix) -> Any:
    """|V|_2^2, for one or two columns."""
    if len(V[0]) == 1:
        return sum(mpmath.mpf(row[0]) ** 2 for row in V)
    a, b, c = _gram(V, [1] * len(V))
    return (a + c + mpmath.sqrt((a - c) ** 2 + 4 * b * b)) / 2


def _tight_for_silu() -> _Stepped:
    """Weights whose Hessian reaches L next to a critical point."""
    with mpmath.workdps(DIGITS):
        a, _ = _steepest()
        b = mpmath.findroot(lambda b: b * silu(2 * a * b) - silu(a), 0.7)  # then x = (0, 2 a) is critical
        half, root = mpmath.mpf(1) / 2, mpmath.sqrt(mpmath.mpf(1) / 2)
        V = ((root, half), (-root, half), (mpmath.mpf(0), b))
        return _Stepped("silu", V, (-1, -1, 1), (mpmath.mpf(1) / 100, 2 * a), (1, 1), Fraction(1001, 1000))


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


def _rise(unit: Unit, V: Number, gate: Number, x: Number, eta: Number) -> Number:
    """How much a step raises the energy, D = M = 1."""
    after = gated_step(unit, [[V]], [gate], [x], eta)
    return gated_energy(unit, [[V]], [gate], after) - gated_energy(unit, [[V]], [gate], [x])


def _bound_decides(case: tuple[int, int, int], *, side: str) -> Working:
    gate, x, eta = case
    rise = _rise(IDENTITY, 1, gate, Fraction(x), eta)
    above = eta * abs(gate) > 2
    held = (not above or x == 0 or rise > 0) if side == "above" else (above or rise <= 0)
    return working(
        f"identity, V = 1, W h = {gate}, x = {x}: L = {abs(gate)}, eta = {eta}, above 2 / L: {above}",
        f"the energy changes by {rise}; as stated: {held}",
        comes_out=held,
    )


def _unit_step_lowers(case: tuple[str, int, int, int], *, size: str) -> Working:
    name, V, gate, x = case
    with mpmath.workdps(DIGITS):
        L = V * V * abs(gate) * (1 if name == "identity" else mpmath.mpf("1.1"))
        eta = mpmath.mpf(1) if size == "one" or L == 0 else 1 / L
        start = mpmath.mpf(x)
        after = gated_step(_UNITS[name], [[V]], [gate], [start], eta)
        energies = [gated_energy(_UNITS[name], [[V]], [gate], [point]) for point in (start, *after)]
        held = energies[1] <= energies[0] + mpmath.mpf("1e-20")
    return working(
        f"{name}, V = {V}, W h = {gate}, eta = {show(eta)}: x {x} -> {show(after[0])}",
        f"energy {show(energies[0])} -> {show(energies[1])}; not higher: {bool(held)}",
        comes_out=held,
    )


_TOKENS = 2


def _unit_step_is_safe(case: tuple[int, str], *, std: float) -> Working:
    """Weights N(0, std^2), tokens of unit root mean square."""
    D, constant = case
    random = np.random.default_rng(D)
    V, W = (torch.from_numpy(random.normal(0, std, (8 * D // 3, D))) for _ in range(2))
    h = torch.from_numpy(random.normal(0, 1, (1, _TOKENS, D)))
    silu_unit = ACTIVATIONS["silu"]
    memory = Elementwise(V, W, silu_unit).remember(h / h.square().mean(-1, keepdim=True).sqrt())
    if constant == "crude":
        largest = float(_largest_eigenvalue(V, torch.ones(len(V)).double()) * memory.gate.abs().amax())
        largest *= silu_unit.slope_bound
    else:
        bends = torch.where(memory.gate < 0, silu_unit.max_slope, -silu_unit.min_slope) * memory.gate.abs()
        largest = max(_largest_eigenvalue(V, weights) for weights in bends[0])
    step = 2 / largest
    return working(
        f"D = {D}, M = {8 * D // 3}, {_TOKENS} random tokens, {constant} constant: safe step {step:.2g}, above 1: "
        f"{step > 1}",
        comes_out=step > 1,
    )


def _largest_eigenvalue(V: torch.Tensor, weights: torch.Tensor) -> float:
    """Of V^T diag(weights) V, weights (M,) not negative."""
    return float(torch.linalg.eigvalsh(V.mT @ (weights[:, None] * V))[-1])


def _some_step_is_safe(_: Any, *, power: int) -> Working:
    eta = sympy.Symbol("eta", positive=True)
    x = 3 / eta
    unit = Unit(lambda z: sympy.Max(z, 0) ** power, lambda z: sympy.Max(z, 0) ** (power + 1) / (power + 1))
    both_ways: tuple[Matrix, Numbers] = ([[1], [-1]], [-1, -1])
    after = gated_step(unit, *both_ways, [x], eta)[0]
    before_energy, after_energy = (sympy.simplify(gated_energy(unit, *both_ways, [point])) for point in (x, after))
    rise = sympy.simplify(after_energy - before_energy)
    return working(
        f"V = (1, -1), W h = (-1, -1), sigma(z) = max(z, 0)^{power}",
        f"from x = {x}: x -> {sympy.simplify(after)}, energy: {before_energy} -> {after_energy}",
        f"it rises by {rise}, whatever eta > 0: {bool(rise.is_positive)}",
        comes_out=not rise.is_positive,
    )


_SLOPE_RANGE = (Fraction(-1, 10), Fraction(11, 10))


def _curvatures() -> Iterator[tuple[Any, Any, Any]]:
    """V, gates and slopes."""
    rows = list(product((-1, 0, 2), repeat=2))
    slopes = (_SLOPE_RANGE[0], Fraction(0), _SLOPE_RANGE[1])
    return product(product(rows, repeat=2), product((-2, 1, 3), repeat=2), product(slopes, repeat=2))


def _is_one_sided(case: tuple[Matrix, Numbers, Numbers], *, swapped: bool) -> Working:
    V, gate, slope = case
    smallest, largest = _SLOPE_RANGE
    down, up = (-smallest, largest) if swapped else (largest, -smallest)
    curvature = [-g * s for g, s in zip(gate, slope, strict=True)]
    one_sided = [down * -g if g < 0 else up * g for g in gate]
    plain = [largest * abs(g) for g in gate]
    gaps = [
        _gram(V, [u - lo for u, lo in zip(upper, lower, strict=True)])
        for upper, lower in ((one_sided, curvature), (plain, one_sided))
    ]
    held = all(_is_semidefinite(gap) for gap in gaps)
    return working(
        f"V = {V}, W h = {gate}, slopes {written(*slope)}; between {smallest} and {largest}",
        f"one-sided less Hessian, plain less one-sided (11, 12, 22): {written(*gaps[0])}, {written(*gaps[1])}",
        f"trace and determinant of both are not negative: {held}",
        comes_out=held,
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
    """The largest eigenvalue of a symmetric matrix of two rows, exactly."""
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

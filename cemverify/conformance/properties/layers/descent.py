"""The energy falls: to first order along every update, and over the whole step if that is claimed.

Whether a small part of the update lowers the energy is a question about a slope, and is tested as one: the sum of
update times gradient is at most zero, up to roundoff, token by token if energies are per token.

A whole step that raises the energy may do so only near its minima, or along the direction of its largest curvature,
where random states are rare. So whole steps are also tested where earlier ones lead, and beside that place along the
direction in which the update changes fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking.boxes import Arrays, Box, flat, plus, shaped
from cemverify.conformance.asking.boxes import Fixed as FixedMemory
from cemverify.conformance.asking.experiments import experiment, shapes
from cemverify.conformance.implementations.energy_layers import ONE_AFTER_ANOTHER
from cemverify.conformance.oracle.evidence import Compared, Comparison, Evidence, moved
from cemverify.conformance.properties.layers.base import Cases, Check, states
from cemverify.conformance.properties.layers.oracle import (
    along,
    compared,
    counted,
    drawn_mask,
    rounding,
    solved,
    terms,
    tokens,
    velocity,
    width,
    with_tokens,
)
from cemverify.conformance.questions.black_boxes import Named, Question

_MASKED = 3  # one in so many questions about equilibria masks tokens, if the layer takes a mask
_CROWD = 24  # the fewest rows of a question, so that faults at few states are met
_ITERATED = 4
_CALLS = 10  # calls that lead to a place where a whole step is tested, besides the drawn places
_SELDOM = 6  # one in so many questions is tested there,
_FEW = 8  # with so many of its rows
_TURNS = 8  # of a direction towards the one in which the update changes fastest
_BESIDE = (1.0, 2.0**-5, 16.0)  # distances along it
_BENDING = 3  # one in so many questions looks for the curvature itself
_RIGHT_ANGLE = 1e-6  # cosines below this count as right angles: P's eigenvalues differ by a factor of at most 1e12
_AROUND = (0.5, 0.125, 2.0**-6, 2.0**-10, 2.0**-13)  # how far off a tried value lies, as a share
_TRIED = 12  # coordinates
_FAR = 1e6  # a step without a bound may run away
_FALLS = Compared.ENERGY("energy after the whole step <= before")
_BOUNDED = Compared.ENERGY("energy after the step <= before + slope + L/2 |step|^2", "bound")
_CONVEX = Compared.ANSWER("L((x + y)/2) <= (L(x) + L(y))/2", "between")


@states(
    "descent/layer/slope",
    claim="To first order, the stated energy falls along the update.",
    formula="dE/dx . (x' - x) < 0",
    why="An update that does not even point downhill descends nothing.",
    premise="the slope differs from zero by more than roundoff",
    needs={"energy", "slope"},
    cases=Cases(crowd=_CROWD),
    controls={"random"},
)
def slope_is_downward(box: Box, q: Question) -> Evidence:
    q = replace(q, noise={})
    u = box.displacement(q)
    slope, tolerance = slope_along(box, q, u)
    claim = Compared.SLOPE("the slope of the energy along the update <= 0")
    falls = Comparison(claim, slope, torch.zeros_like(slope), tolerance, "at most")
    level = box.layer.step.preconditioner is not None and not moved(slope, tolerance)
    nothing = _descends_nothing(box, q, u) if level else []
    return Evidence.of(falls, *nothing, telling=bool(nothing) or moved(slope, tolerance))


def _descends_nothing(box: Box, q: Question, u: Named) -> list[Comparison]:
    """Some row's update must point downhill, if updates and gradients are long enough to tell.

    P > 0 turns no gradient by a right angle: with r the ratio of its largest to its smallest eigenvalue, the cosine
    of the angle is at most -2 sqrt(r) / (1 + r). For a semidefinite P the slope is zero only where the update is.
    """
    slope, tolerance = _row_slope(box, q, u, box.mapped(q.x, q.memory))
    lengths = flat(u).norm(dim=1) * flat(_gradient(box, q.x, q.memory)).norm(dim=1)
    expected, rows = -_RIGHT_ANGLE * lengths, tolerance < _RIGHT_ANGLE * lengths / 2
    if not bool(rows.any()):
        return []
    claim = Compared.SLOPE("the energy falls along the update somewhere: its steepest slope < 0", "steepest")
    steepest = (slope / lengths.clamp(min=1e-300))[rows].argmin()[None]
    return [Comparison(claim, slope[rows][steepest], expected[rows][steepest], tolerance[rows][steepest], "at most")]


@states(
    "descent/layer/along-steps",
    claim="Applied again and again to its own output, the layer's update points downhill every time.",
    formula="dE/dx . (x^(t+1) - x^(t)) < 0 at x^(0), ..., x^(3)",
    why="Later steps start elsewhere. One that recomputes its memory, or reuses the first gradient, is right "
    "at the first step only.",
    premise="the slope at some step differs from zero by more than roundoff",
    needs={"energy", "slope"},
    cases=Cases(crowd=8),
    controls={"random"},
)
def energies_fall_along_steps(box: Box, q: Question) -> Evidence:
    q = replace(q, noise={})
    comparisons, telling = [], False
    for t in range(_ITERATED):
        u = box.displacement(q)
        slope, tolerance = slope_along(box, q, u)
        if not bool(tolerance.isfinite().all()) or float(flat(q.x).abs().max()) > _FAR:
            break
        claim = Compared.SLOPE(f"the slope of the energy along update {t + 1} <= 0")
        comparisons.append(Comparison(claim, slope, torch.zeros_like(slope), tolerance, "at most"))
        telling = telling or moved(slope, tolerance)  # one step may already end at the minimum
        q = box.rounded(replace(q, x=plus(q.x, u)))
    return Evidence.of(*comparisons, telling=telling)


@states(
    "descent/layer/whole-step",
    claim="The whole step, however long, does not raise the stated energy.",
    formula="E(x') <= E(x)",
    why="A step can point downhill and go too far. A layer that declares monotone descent promises that it does not.",
    premise="the energy changes by more than roundoff",
    needs={"energy", "monotone"},
    source="Yuille & Rangarajan 2003 (CCCP); Ramsauer et al., arXiv 2008.02217, Theorem 1",
    cases=Cases(crowd=_CROWD, long=10),
    controls={"random"},
    looks_around=True,
)
def whole_step_does_not_raise(box: Box, q: Question) -> Evidence:
    comparisons, telling = [], False
    for at in _places(box, replace(q, noise={})):
        u = box.displacement(at)
        after, before, tolerance = finite_step(box, at, u)
        comparisons.append(Comparison(_FALLS, after, before, tolerance, "at most"))
        if box.layer.step.kind in ONE_AFTER_ANOTHER:
            comparisons += _others_are_no_better(box, at, u)
        telling = telling or moved(after - before, tolerance)
    return Evidence.of(*comparisons, telling=telling)


def _others_are_no_better(box: Box, q: Question, u: Named) -> list[Comparison]:
    """No other value of a block or coordinate has less energy, given the current values of the earlier ones.

    After several sweeps this can only be seen for the last block.
    """
    step, old, new = box.layer.step, q.x, box.nearest(plus(q.x, u))
    generator = torch.Generator().manual_seed(q.seed % 2**31)
    turns, names = _turns(box, q)
    last = len(names) - 1
    chosen = sorted({*torch.randperm(last + 1, generator=generator)[:_TRIED].tolist(), last})
    copies, comparisons = 5 + 2 * len(_AROUND), []
    held = {name: a.repeat(copies, *[1] * (a.dim() - 1)) for name, a in q.memory.items()}

    def neighbours(z: Tensor, before: Tensor) -> Tensor:  # (B, ...) -> (copies B, ...)
        fresh, also, way = (torch.randn(z.shape, generator=generator, dtype=z.dtype) for _ in range(3))
        beside = [z + share * towards for share in _AROUND for towards in (way, before - z)]
        return torch.cat((before, -z, torch.zeros_like(z), fresh, also, *beside))

    def energies(x: Named, memory: Named, times: int) -> Tensor:  # (times B, tokens or 1) -> (times, B, ...)
        of_tokens = box.layer.stated.per == "token" and not box.layer.coupled
        values = box.energies(x, memory) if of_tokens else box.row_energies(x, memory, copies=times)[:, None]
        return values.reshape(times, q.batch, -1)

    for t in chosen if len(step.sizes) == 1 else [last]:
        at = {name: torch.where(turns[name] <= t, new[name], old[name]) for name in new}
        many = {name: a.repeat(copies, *[1] * (a.dim() - 1)) for name, a in at.items()}
        other = box.mapped({name: neighbours(at[name], old[name]) for name in at}, held)
        tried = {name: torch.where(turns[name] == t, other[name], a) for name, a in many.items()}
        there, here = energies(tried, held, copies), energies(at, q.memory, 1)
        tolerance = rounding(box, q, u, {"E": here[0]}) * len(flat(q.x)[0])
        claim = Compared.ENERGY(f"the energy <= that with another value of {names[t]}", "another value")
        wide = tolerance[None, :, None].expand_as(there)
        comparisons.append(Comparison(claim, here.expand_as(there), there, wide, "at most"))
    return comparisons


def _turns(box: Box, q: Question) -> tuple[Arrays, list[str]]:
    """The turn in which each number of the state is set, as arrays that broadcast to it; what each turn sets."""
    order = box.layer.step.order
    if box.layer.step.kind == "block":
        order = order or tuple(q.x)
        return {name: torch.tensor(order.index(name)) for name in q.x}, [f"block {name}" for name in order]
    ((name, array),) = q.x.items()
    order = order or tuple(range(array.shape[-1]))
    return {name: torch.tensor(order).argsort()}, [f"coordinate {i}" for i in order]


@states(
    "descent/layer/smoothness",
    claim="The step respects the declared bound on the energy's curvature and lowers the energy.",
    formula="E(x') <= E(x) + dE/dx . (x' - x) + L/2 |x' - x|^2",
    why="The declared bound L is what the choice of a step size rests on; if it is too small, the energy may rise.",
    premise="the energy changes by more than roundoff",
    needs={"energy", "smoothness"},
    source="E(x') <= E(x) + dE/dx . (x' - x) + L/2 |x' - x|^2",
    cases=Cases(crowd=_CROWD, long=10),
    controls={"random"},
)
def step_obeys_the_bound(box: Box, q: Question) -> Evidence:
    L = box.layer.step.smoothness
    assert L is not None
    comparisons, telling, whole = [], False, Box.whole_energies
    for at in _places(box, replace(q, noise={})):
        u = box.displacement(at)
        after, before = whole(box, plus(at.x, u), at.memory), whole(box, at.x, at.memory)
        slope, off = _row_slope(box, at, u, box.mapped(at.x, at.memory))
        tolerance = rounding(box, at, u, {"E": before[:, None]}) * max(1, len(flat(at.x)[0])) + off
        bound = before + slope + L / 2 * (flat(u) ** 2).sum(1)
        comparisons += [
            Comparison(_BOUNDED, after, bound, tolerance, "at most"),
            Comparison(_FALLS, after, before, tolerance, "at most"),
        ]
        telling = telling or moved(after - before, tolerance)
    mapped = box.layer.state_map is not None or box.layer.lagrangian is not None
    if q.seed % _BENDING == 0 and not mapped and "autograd" not in box.layer.not_offered:
        comparisons.append(_curvature_is_bounded(box, replace(q, noise={}), L))
    return Evidence.of(*comparisons, telling=telling)


def _curvature_is_bounded(box: Box, q: Question, L: float) -> Comparison:
    """v.Hv <= L |v|^2 along the direction v in which the update changes fastest, by differences of the gradient."""
    q = q.rows(range(min(q.batch, _FEW)))
    v, h = _stiffest(box, q), width(box)
    ahead, behind = (
        flat(_gradient(box, {name: a + s * h * v[name] for name, a in q.x.items()}, q.memory)) for s in (1, -1)
    )
    along_v = flat(v)
    bent = ((ahead - behind) * along_v).sum(1) / (2 * h)
    tolerance = rounding(box, q, shaped(ahead, q.x)) * along_v.abs().sum(1) / h
    return Comparison(
        Compared.CURVATURE("the energy's curvature <= L"), bent, torch.full_like(bent, L), tolerance, "at most"
    )


@states(
    "descent/layer/lagrangian-convex",
    claim="The Lagrangian is convex, so the energy falls along -dE/dg.",
    formula="(g(x) - g(y)) . (x - y) >= 0",
    why="With a state map g = dL/dx, descent along -dE/dg is descent of E only where L is convex.",
    premise="the states differ by more than roundoff",
    needs={"lagrangian"},
    source="Krotov & Hopfield, arXiv 2008.06996",
    cases=Cases(crowd=_CROWD),
)
def lagrangian_is_convex(box: Box, q: Question) -> Evidence:
    generator = torch.Generator().manual_seed(q.seed % 2**31)
    drawn = {k: torch.randn(a.shape, generator=generator, dtype=a.dtype) for k, a in q.x.items()}
    y = box.rounded(box.anew(replace(q, x=drawn))).x
    gx, gy = box.mapped(q.x, q.memory), box.mapped(y, q.memory)
    apart = flat(q.x) - flat(y)
    inner = ((flat(gx) - flat(gy)) * apart).sum(1)
    tolerance = rounding(box, q, gx, gy, y) * (1 + apart.abs().sum(1))
    middle = {k: (a + y[k]) / 2 for k, a in q.x.items()}
    at_x, at_y, between = (box.lagrangians(x) for x in (q.x, y, middle))
    wide = rounding(box, q, {"L": at_x[:, None]}, {"L": at_y[:, None]}, y)
    zeros = torch.zeros_like(inner)
    return Evidence.of(
        Comparison("-(G(x) - G(y)) . (x - y) <= 0", -inner, zeros, tolerance, "at most"),
        Comparison(_CONVEX, between, (at_x + at_y) / 2, wide, "at most"),
        telling=moved(inner, tolerance),
    )


def _equilibrium(name: str, where: str, **more: Any) -> Callable[[Check], Check]:
    return states(
        f"descent/layer/{name}",
        claim=f"{where} is an equilibrium: the gradient there is within the declared tolerance.",
        formula="|dE/dx| <= tolerance at the returned state",
        why="A layer that claims to return an equilibrium is differentiated as one. Where it stops early, those "
        "derivatives are wrong.",
        premise="the gradient at the start is far beyond the tolerance",
        needs={"energy", "equilibrium"},
        source="dE/dx = 0 at the returned state (Bai et al., arXiv 1909.01377)",
        controls={"constant"},
        **more,
    )


@_equilibrium(
    "stationary-from-afar",
    "Where the layer starts 256 times as far out, the returned state",
    cases=Cases(texture="huge-states"),
)
@_equilibrium("stationary", "The returned state", cases=Cases(long=2), looks_around=True)
def returned_state_is_stationary(box: Box, q: Question) -> Evidence:
    """The gradient at the returned state is within the declared tolerance of zero; in turn, for some tokens."""
    tolerance = box.layer.step.tolerance
    assert tolerance is not None
    mask = drawn_mask(box, q) if box.layer.masked and q.seed % _MASKED == 0 else None
    u = box.displacement(q, mask)
    start, there = _gradient(box, q.x, q.memory, mask), _out_of_balance(box, q, u, mask)
    if mask is not None:
        start, there = (with_tokens(arrays, box.layer.state, counted(mask)) for arrays in (start, there))
    allowed = tolerance + rounding(box, q, u, start)
    zeros = {name: torch.zeros_like(a) for name, a in there.items()}
    telling = moved(flat(start), along(10 * allowed, flat(start)))
    stationary = Evidence.of(
        *compared("the gradient at the returned state = 0", there, zeros, allowed), telling=telling
    )
    return stationary if mask is None else replace(stationary, drawn={"mask": mask})


def _out_of_balance(box: Box, q: Question, u: Named, mask: Tensor | None) -> Arrays:
    """The gradient g at the returned state x; with a domain, x - nearest(x - g), which does not lead out of it."""
    x = box.nearest(plus(q.x, u))
    gradient = _gradient(box, x, q.memory, mask)
    if box.layer.domain is None:
        return gradient
    stepped = box.nearest({name: x[name] - gradient[name] for name in x})
    return {name: x[name] - stepped[name] for name in x}


# --- where whole steps are tested ---------------------------------------------------------------------------


def _places(box: Box, q: Question) -> Iterator[Question]:
    """The question; seldom also the place to which the layer leads, and one beside it in the stiffest direction."""
    yield q
    if q.seed % _SELDOM:
        return
    few = q.rows(range(min(q.batch, _FEW)))
    q = box.rounded(replace(few, x=_led(box, few)))
    yield q
    away = _BESIDE[q.seed // _SELDOM % len(_BESIDE)]
    stiffest = _stiffest(box, q)
    yield box.rounded(replace(q, x={name: a + away * stiffest[name] for name, a in q.x.items()}))


@experiment(lambda arguments: shapes(arguments.q.x), calls=2)
def _led(box: Box, q: Question) -> Arrays:
    """The state after some calls, one after the other, or before a call that leads far away."""
    x = dict(q.x)
    for _ in range(_CALLS):
        there = plus(q.x, box.displacement(q))
        if not float(flat(there).abs().max()) <= _FAR:
            break
        x, q = there, replace(q, x=there)
    return x


@experiment(lambda arguments: shapes(arguments.q.x), calls=2)
def _stiffest(box: Box, q: Question) -> Arrays:
    """The direction of each row, of length 1, in which the update changes fastest, by power iteration.

    If the update is a gradient step, that is the direction in which the energy is curved most.
    """
    at, h = flat(q.x), width(box)
    v = torch.randn(at.shape, generator=torch.Generator().manual_seed(q.seed % 2**31), dtype=at.dtype)
    for _ in range(_TURNS):
        v = h * v / v.norm(dim=1, keepdim=True).clamp(min=box.eps)
        ahead, behind = (flat(box.displacement(replace(q, x=shaped(at + way, q.x)))) for way in (v, -v))
        v = behind - ahead
    return shaped(v / v.norm(dim=1, keepdim=True).clamp(min=box.eps), q.x)


# --- slopes ------------------------------------------------------------------------------------------------


def slope_along(box: Box, q: Question, u: Named) -> tuple[Tensor, Tensor]:
    """dE/dt along u and its tolerance: per token (B, J) if energies are and tokens are apart, or per row (B,)."""
    layer = box.layer
    if layer.stated.per == "token" and not layer.coupled:
        slopes, errors, sizes = (
            torch.stack([a.flatten(2).sum(2) for a in tokens(part, layer.state).values()]).sum(0)  # (B, J)
            for part in _products(box, q, u, box.mapped(q.x, q.memory))
        )
        return slopes, errors + _ulp(box, q) * sizes
    return _row_slope(box, q, u, box.mapped(q.x, q.memory))


def _row_slope(box: Box, q: Question, u: Named, g: Named) -> tuple[Tensor, Tensor]:
    slopes, errors, sizes = (flat(part).sum(1) for part in _products(box, q, u, g))
    return slopes, errors + _ulp(box, q) * sizes


def _products(box: Box, q: Question, u: Named, g: Named) -> tuple[Arrays, Arrays, Arrays]:
    """Gradient times velocity, element by element; a bound on the error of each, and its magnitude."""
    gradient, how = box.gradient(g, q.memory)
    off = rounding(box, q, gradient)
    if how == "differences":
        gradient, bound = box.differences_of_energy(g, q.memory)
        off = off + bound
    if box.layer.leak:
        gradient = plus(q.x, gradient)
    speed, error = velocity(box, q, u)
    error = error + rounding(box, q, u) + solved(box)
    products = {name: gradient[name] * speed[name] for name in gradient}
    errors = {
        name: gradient[name].abs() * along(error, speed[name]) + speed[name].abs() * along(off, speed[name])
        for name in gradient
    }
    return products, errors, {name: a.abs() for name, a in products.items()}


def _ulp(box: Box, q: Question) -> float:
    return terms(q) * box.eps


def _gradient(box: Box, x: Named, memory: Named, mask: Tensor | None = None) -> Arrays:
    gradient = box.gradient(box.reached(x, memory), memory, mask)[0]
    return plus(x, gradient) if box.layer.leak else gradient


def finite_step(box: Box, q: Question, u: Named) -> tuple[Tensor, Tensor, Tensor]:
    """The energies after and before the whole step, and their tolerance."""
    layer = box.layer
    whole = layer.coupled or layer.leak or layer.step.kind == "proximal"
    g = box.mapped(q.x, q.memory)
    memory: Named = FixedMemory(g) if layer.reads_itself else q.memory
    if layer.stated.per == "token" and not whole:
        after, before = box.energies(box.reached(plus(q.x, u), q.memory), memory), box.energies(g, memory)
    else:
        after, before = (box.whole_energies(x, memory) for x in (plus(q.x, u), q.x))
    tolerance = rounding(box, q, u, {"E": before.reshape(q.batch, -1)}) * len(flat(q.x)[0])
    return after, before, along(tolerance, before)

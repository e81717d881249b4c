"""What an energy layer must do, from the energy that it states, and how far off roundoff may put it.

The arithmetic inside a layer is unknown. Its roundoff is taken to be that of sums of as many terms as the state has
coordinates, on numbers as large as the inputs and outputs, plus the effect of an equally small change of the
arguments on the answer: a layer may round its arguments, and be right for the rounded ones.

In float32 that is more than a small update itself. There the magnitudes inside the computation decide, if torch shows
them: every operand of the stated energy's gradient is perturbed at random, as in `perturbation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking import extrapolation
from cemverify.conformance.asking.boxes import Arrays, Box, flat, plus, shaped
from cemverify.conformance.asking.experiments import experiment, shapes
from cemverify.conformance.implementations.energy_layers import TOKENS
from cemverify.conformance.implementations.faults import Discard, Fault
from cemverify.conformance.oracle.evidence import Comparison, reworded
from cemverify.conformance.oracle.perturbation import Perturbed
from cemverify.conformance.questions.black_boxes import Named, Question, along_axis

UPDATE = "update = -eta P grad energy"
MASKED = "update where others are masked = -eta P grad energy with that mask"
PROXIMAL = "update = prox(x - eta P grad energy) - x"
_ROUNDINGS = 4  # of each number, and of each term of a sum with as many terms as the state has
_TRIALS = 3
_NUDGED = 16  # roundings of arguments that one trial stands for: a random direction is not the worst one
_ASIDE = 6  # widths of differences: large compared with one, small compared with a question's numbers
_SHAKEN = 2.0**-12  # of an operand: many times the roundoff of float32, and still first order
_SHAKES = 2
OTHER_ORDERS = 8  # for orders of evaluation other than autograd's, or a reference's
_SOLVED = 16  # times the tolerance, twice what a curvature of 1/8 allows
_CALIBRATED = 6  # states per dimension for finding an unknown preconditioner


@dataclass(frozen=True)
class Golden:
    """The displacement that is expected, along the domain."""

    arrays: Arrays  # by name
    tolerance: Tensor  # how far a right answer may be from it, per batch row: (B,), without the answer's own roundoff
    how: str  # by which derivative, "autograd" or "differences"
    measured: Tensor | None = None  # the whole tolerance, if it was measured; else None

    def tolerance_for(self, box: Box, q: Question, got: Named) -> Tensor:
        """How far an answer may be from it: (B,)."""
        widest = self.tolerance + rounding(box, q, got)
        return widest if self.measured is None else torch.minimum(widest, self.measured)


def golden(box: Box, q: Question, mask: Tensor | None = None) -> Golden:
    """T steps of -eta P dE/dg from the stated energy, and sigma times the noise.

    Args:
        mask: (B, J), of the tokens that count; None for all.
    """
    P = preconditioner(box, q)
    displacement, how, error, last = _steps(box, q, P, mask)
    displacement = box.along(q.x, displacement)
    size = 1 + flat(displacement).abs().amax(1)
    tolerance = rounding(box, q, displacement) + error + _normalised(box, q, displacement, last) + solved(box) * size
    tolerance = beyond_nudges(
        box, q, tolerance, displacement, lambda nudged: box.along(q.x, _steps(box, nudged, P, mask)[0])
    )
    # not with differences, which magnify roundoff, or a solver, which stops early
    measured = _measured(box, q, P, displacement, mask) if how == "autograd" and not solved(box) else None
    return Golden(displacement, tolerance, how, measured)


def _measured(box: Box, q: Question, P: Preconditioner, displacement: Named, mask: Tensor | None) -> Tensor | None:
    """What roundoff inside the computation may do to the displacement, (B,); None if that cannot be measured."""
    if box.caller.dtype != torch.float32 or box.layer.arrays != "torch" or box.layer.step.unknown_preconditioner:
        return None
    worst = torch.zeros(q.batch, dtype=torch.float64)
    for seed in range(_SHAKES):
        try:
            moved = box.along(q.x, _steps(box, q, P, mask, shaken=seed)[0])
        except Fault:  # it does not show its operands
            return None
        worst = torch.maximum(worst, (flat(moved) - flat(displacement)).abs().amax(1))
    unit = box.eps / 2
    size = flat(displacement).abs().amax(1)
    if len(box.layer.step.sizes) > 1 or box.layer.step.returns == "next state":  # then x is added to
        size = size + len(box.layer.step.sizes) * flat(q.x).abs().amax(1)
    if q.noise:
        size = size + box.layer.step.noise * flat(q.noise).abs().amax(1)
    return OTHER_ORDERS * unit * (terms(q) / _SHAKEN * worst + size)


@experiment(lambda arguments: shapes(arguments.x), calls=2)
def _shaken_step(box: Box, x: Named, memory: Named, mask: Tensor | None, seed: int) -> Arrays:
    """P times the gradient at x, with every operand on the way to it perturbed."""
    with Perturbed(torch.Generator().manual_seed(seed), _SHAKEN, narrow=True):
        gradient, _ = box.gradient(box.mapped(x, memory), memory, mask)
        return box.preconditioned(plus(gradient, x) if box.layer.leak else gradient, x, memory)


def beyond_nudges(
    box: Box, q: Question, tolerance: Tensor, answer: Named, ask: Callable[[Question], Named]
) -> Tensor:
    """The tolerance plus the effect of roundoff in the question's numbers on an answer, judged by nudging them: (B,).

    Args:
        tolerance: what is already granted, (B,). answer: to the question. ask: returns the answer to another one.
    """
    for trial in range(_TRIALS):
        shift = (flat(ask(nudged(box, q, nudge(box), trial))) - flat(answer)).abs().amax(1)
        tolerance = tolerance + _NUDGED * terms(q) * nudge(box) * shift
    return tolerance


def _normalised(box: Box, q: Question, displacement: Named, last: Named) -> Tensor:
    """How far off a gradient may be if its weights are exp(score - energy), with large scores and energy: (B,).

    The difference of two numbers of the energy's size is off by their spacing, and its exponential by as much
    relatively. The same holds for scores, products of states and memories, which may be larger than the energy.
    """
    if box.layer.energy is None:
        return torch.zeros(q.batch, dtype=torch.float64)
    sizes = [torch.zeros(q.batch, dtype=torch.float64)]
    if q.memory:
        sizes.append(flat(q.x).abs().amax(1) * flat(q.memory).abs().amax(1))
    for x in (q.x, last) if len(box.layer.step.sizes) > 1 else (q.x,):
        with suppress(Fault):  # other properties report faults of the energy itself
            values = box.energies(box.mapped(x, q.memory), q.memory).abs()
            sizes.append(values.reshape(q.batch, -1).amax(1) if values.dim() else values.expand(q.batch))
    return _ROUNDINGS * box.eps * torch.stack(sizes).amax(0) * flat(displacement).abs().amax(1)


@dataclass(frozen=True)
class Preconditioner:
    """P, and how far off it may be if it had to be found: as a relative error of P times a gradient."""

    apply: Callable[[Named, Named, Named], Arrays]  # of the gradient, the state and the memory
    error: float = 0.0


def preconditioner(box: Box, q: Question) -> Preconditioner:
    """P as declared, or as found by least squares on states drawn for that."""
    if not box.layer.step.unknown_preconditioner:
        return Preconditioner(box.preconditioned)
    P, error, _ = calibrated(box, q)
    return Preconditioner(lambda gradient, *_: {name: a @ P.mT for name, a in gradient.items()}, error)


def calibrated(box: Box, q: Question) -> tuple[Tensor, float, Tensor]:
    """The matrix P that best explains update = -eta P dE/dg, over states drawn for that.

    Returns:
        P (D, D), an estimate of its relative error, and an orthonormal basis (D, r) of the gradients that occurred.
    """
    (name,) = q.x
    D = q.x[name].shape[-1]
    rows = -(-_CALIBRATED * D // max(1, q.x[name][0].numel() // D))
    generator = torch.Generator().manual_seed(q.seed % 2**31)
    sizes = {k: (rows, *a.shape[1:]) for k, a in {**q.x, **q.memory}.items()}
    drawn = {k: torch.randn(size, generator=generator, dtype=torch.float64) for k, size in sizes.items()}
    fresh = box.asked(Question({name: drawn[name]}, {k: drawn[k] for k in q.memory}, seed=q.seed))
    u = box.displacement(fresh)[name].reshape(-1, D)
    g = box.gradient(box.mapped(fresh.x, fresh.memory), fresh.memory)[0]
    if box.layer.leak:
        g = plus(g, fresh.x)
    G = -box.layer.step.sizes[0] * g[name].reshape(-1, D)
    _, values, Vt = torch.linalg.svd(G, full_matrices=False)
    if not float(values[0]) > 0:
        raise Discard("the gradients that would determine the preconditioner are zero")
    significant = values > 1e-6 * values[0]
    basis = Vt[significant].mT  # (D, r)
    P = torch.linalg.lstsq(G @ basis, u, driver="gelsd").solution.mT @ basis.mT
    conditioning = float(values[0] / values[significant][-1])
    return P, _ROUNDINGS * terms(fresh) * box.eps * conditioning * len(G) ** 0.5, basis


def _steps(
    box: Box, q: Question, P: Preconditioner, mask: Tensor | None, shaken: int | None = None
) -> tuple[Arrays, str, Tensor, Arrays]:
    """The displacement, the kind of derivative, errors of derivatives and P, (B,), the state before the last step.

    Args:
        shaken: the seed of perturbations of every operand; None for none.
    """
    x, before, how = dict(q.x), dict(q.x), "autograd"
    error, step = torch.zeros(q.batch, dtype=torch.float64), box.layer.step
    for t, mu in enumerate(step.momentum):
        box = box.at_step(t)
        carried = {name: mu * (x[name] - before[name]) for name in x}
        at = plus(x, carried) if step.looks_ahead else x
        sizes = box.step_sizes(t, at, q.memory)
        before = x
        if shaken is not None:
            x = _stepped(box, t, plus(x, carried), sizes, _shaken_step(box, at, q.memory, mask, shaken), q.memory)
            continue
        eta = max(float(torch.as_tensor(size).abs().max()) for size in sizes.values())
        g = box.mapped(at, q.memory)
        gradient, how = box.gradient(g, q.memory, mask)
        if how == "differences":
            gradient, off = box.differences_of_energy(g, q.memory, mask)
            error = error + eta * off * _gain(P, gradient, at, q.memory)
        if box.layer.leak:
            gradient = plus(gradient, at)
        down = P.apply(gradient, at, q.memory)
        error = error + eta * P.error * flat(down).abs().amax(1)
        x = _stepped(box, t, plus(x, carried), sizes, down, q.memory)
    sigma = step.noise
    displacement = {name: x[name] - q.x[name] for name in x}
    if sigma and q.noise:
        displacement = {name: displacement[name] + sigma * q.noise[name] for name in displacement}
    # momentum repeats an error times mu, mu^2 ...
    return displacement, how, error / (1 - max(step.momentum)), before


def _stepped(box: Box, t: int, start: Named, sizes: Mapping[str, Any], step: Named, memory: Named) -> Arrays:
    """The state after step t, of these sizes, down P dE/dg, from where momentum leads."""
    there = {name: start[name] - sizes[name] * step[name] for name in start}
    return there if box.layer.step.kind != "proximal" else box.proximal(there, box.layer.step.sizes[t], memory)


def _gain(P: Preconditioner, gradient: Named, x: Named, memory: Named) -> float:
    """The factor by which P may enlarge an error, at most; estimated on signs."""
    signs = {name: torch.where(a < 0, -1.0, 1.0).to(torch.float64) for name, a in gradient.items()}
    return max(1.0, 4 * float(flat(P.apply(signs, x, memory)).abs().max()))


# --- roundoff ----------------------------------------------------------------------------------------


def terms(q: Question) -> int:
    """The number of terms in the longest sum that a layer is expected to take."""
    return 16 + sum(a[0].numel() for a in (*q.x.values(), *q.memory.values()))


def rounding(box: Box, q: Question, *values: Named) -> Tensor:
    """How large roundoff may be in values of that size: (B,)."""
    parts = [part for part in (q.x, q.memory, *values) if part]
    size = 1 + torch.stack([flat(part).abs().amax(1) for part in parts]).sum(0)
    return size * float(_ROUNDINGS * terms(q) * box.eps)


def solved(box: Box) -> float:
    """How far apart two answers of a solver may be if both stopped within its tolerance; 0 for any other layer.

    A state whose gradient is within the tolerance is at most so far from the equilibrium if the energy's curvature is
    at least 1/8. The tolerance of a gradient step is that of the update itself.
    """
    return (_SOLVED if box.layer.step.kind == "equilibrium" else 2) * (box.layer.step.tolerance or 0.0)


def nudge(box: Box) -> float:
    """The relative size of nudges, and the ratio of roundoff to a nudge."""
    return float(box.eps**0.5)


def nudged(box: Box, q: Question, size: float, seed: int | None) -> Question:
    """The question with every number moved by at most that share of it: at random, or all alike without a seed."""
    if seed is None:
        return _moved(box, q, lambda array: array * (1 + size))
    generator = torch.Generator().manual_seed(seed)

    def moved(array: Tensor) -> Tensor:
        return array * (1 + size * (2 * torch.rand(array.shape, generator=generator, dtype=torch.float64) - 1))

    return _moved(box, q, moved)


def _moved(box: Box, q: Question, moved: Callable[[Tensor], Tensor]) -> Question:
    """The question with its arrays moved, except those of the memory that a sampler draws: one-hot rows stay so."""
    memory = {name: a if name in box.layer.draw else moved(a) for name, a in q.memory.items()}
    return replace(q, x={name: moved(a) for name, a in q.x.items()}, memory=memory)


def aside(box: Box, q: Question, generator: torch.Generator, distance: float | None = None) -> Question:
    """The question moved a little at random, because round numbers often lie at kinks, which have no derivatives.

    Args:
        distance: the standard deviation; None for the width of differences, 2^-10 in float64 and 2^-4 in float32.
    """
    distance = distance or 2.0 ** round(math.log2(_ASIDE * box.eps**0.2 / 4))

    def moved(array: Tensor) -> Tensor:
        return array + distance * torch.randn(array.shape, generator=generator, dtype=array.dtype)

    return _moved(box, q, moved)


def compared(claim: str, got: Named, expected: Named, tolerance: Tensor) -> list[Comparison]:
    """One comparison per array; the tolerance is per batch row."""
    several = len(got) > 1
    return [
        Comparison(
            reworded(claim, f"{claim} ({name})", name) if several else claim,
            got[name],
            expected[name],
            along(tolerance, got[name]),
        )
        for name in got
    ]


def along(tolerance: Tensor, like: Tensor) -> Tensor:
    """One number per batch row, (B,), expanded to the shape of an array."""
    return tolerance.reshape(-1, *[1] * (like.dim() - 1)).expand_as(like)


# --- the field -------------------------------------------------------------------------------------------


def jacobian(box: Box, function: Callable[[Question], Named], q: Question, noise: Tensor) -> tuple[Tensor, Tensor]:
    """d function / d x by extrapolated central differences, and a cautious estimate of the error.

    Returns:
        (B, n, n), and the estimate in the same shape.
    """
    at = flat(q.x)

    def moved(points: Tensor) -> Tensor:
        rows = len(points) // len(at)
        many = q.each(lambda a: a.repeat(rows, *[1] * (a.dim() - 1)))
        return flat(function(replace(many, x=shaped(points, q.x))))

    value, bound = extrapolation.jacobian(moved, at, width(box), noise)
    return value, bound[:, None, None].expand_as(value)


def width(box: Box) -> float:
    """Half the width of the wider difference: moderate, for states of the size of one."""
    wide = 2.0**-8 if box.caller.dtype == torch.float64 else 2.0**-4
    return wide if box.layer.domain is None else wide / 4  # because a boundary may be near


def preconditioner_matrix(box: Box, q: Question) -> Tensor | None:
    """P over all coordinates of a row, (n, n); None for the identity."""
    if box.layer.step.preconditioner is None:
        return None
    n = flat(q.x).shape[1]
    one = {k: a[:1] for k, a in q.x.items()}
    return flat(box.preconditioned(shaped(torch.eye(n, dtype=torch.float64), one), one, {})).mT


def velocity(box: Box, q: Question, displacement: Named) -> tuple[Arrays, Tensor]:
    """dg/dt while x moves along the displacement, and a bound on its error: arrays, (B,)."""
    if box.layer.state_map is None and box.layer.lagrangian is None:
        return dict(displacement), torch.zeros(q.batch, dtype=torch.float64)
    u = flat(displacement)
    length = 1 + u.abs().amax(1, keepdim=True)

    def central(h: float) -> Tensor:
        ahead, behind = (flat(box.mapped(shaped(flat(q.x) + s * h * u / length, q.x), q.memory)) for s in (1, -1))
        return length * (ahead - behind) / (2 * h)

    rate, bound = extrapolation.extrapolated(central, width(box), length[:, 0] * rounding(box, q, q.x))
    return shaped(rate, q.x), bound


# --- tokens -----------------------------------------------------------------------------------------------


def tokens(named: Named, shapes: Mapping[str, Sequence[int | str]]) -> Arrays:
    """The arrays that have a token axis, with that axis second: (B, J, ...)."""
    return {
        name: array.movedim(1 + shapes[name].index(TOKENS), 1)
        for name, array in named.items()
        if TOKENS in shapes[name]
    }


def token_count(box: Box, q: Question) -> int:
    """J, or 1 if there are no tokens."""
    arrays = tokens(q.x, box.layer.state)
    return next(iter(arrays.values())).shape[1] if arrays else 1


def repeated(box: Box, q: Question, J: int) -> Question:
    """The question with J tokens: its own, then its first ones again."""
    n = token_count(box, q)
    return along_axis(q, box.form, TOKENS, [i % n for i in range(J)])


def drawn_mask(box: Box, q: Question) -> Tensor:
    """A mask of about half of the tokens, anywhere, which leaves each row as many as the layer needs: (B, J)."""
    J, generator = token_count(box, q), torch.Generator().manual_seed(q.seed % 2**31)
    mask = torch.rand((q.batch, J), generator=generator) < 0.5
    for i in range(q.batch):
        for j in torch.randperm(J, generator=generator).tolist():
            if int(mask[i].sum()) < box.layer.shortest:
                mask[i, j] = True
    return mask


def counted(mask: Tensor) -> Callable[[Tensor], Tensor]:
    """Sets the tokens that do not count to zero, in arrays (B, J, ...)."""
    return lambda array: array * mask.reshape(*mask.shape, *[1] * (array.dim() - 2))


def with_tokens(
    named: Named, shapes: Mapping[str, Sequence[int | str]], change: Callable[[Tensor], Tensor]
) -> Arrays:
    """The arrays with a change of their tokens; `change` sees (B, J, ...)."""
    changed = {}
    for name, array in named.items():
        if TOKENS in shapes[name]:
            axis = 1 + shapes[name].index(TOKENS)
            array = change(array.movedim(axis, 1)).movedim(1, axis)
        changed[name] = array
    return changed

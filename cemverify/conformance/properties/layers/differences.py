"""Automatic derivatives of the update are those of its values: in the state, the memory and the parameters.

No energy is needed, so every layer that lets gradients through is tested. Each array is moved along one random
direction, and so are all parameters together: a derivative that is wrong anywhere is wrong along almost all of them.

At a kink there is no derivative. Two widths show one: with the central difference w(h) = (f(h) - f(-h)) / 2h and bend
s(h) = (f(h) - 2 f(0) + f(-h)) / h, a smooth function has A = w(h/2) - w(h) of the order of h^2 and, of h^3,
B = 2 s(h/2) - s(h). A kink of strength k at a distance d < h/2 gives A = -k d / 2h and B = k (1 - 3 d/h), and the
error of the extrapolated difference is B / 2 - 2 A / 3. Kinks of two outputs must not cancel, so each output counts.
Two kinks on both sides, nearer than h, look like none; h is about a millionth (more with a solver's tolerance), and
questions are moved off round numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from cemverify.conformance.asking.boxes import Arrays, Box, flat
from cemverify.conformance.asking.extrapolation import extrapolated
from cemverify.conformance.asking.parameters import displacement_with, parameters_of, some_of
from cemverify.conformance.asking.views import incoming
from cemverify.conformance.implementations.faults import Discard, Fault
from cemverify.conformance.oracle.evidence import Compared, Comparison, Evidence, moved
from cemverify.conformance.properties.layers.base import Cases, states
from cemverify.conformance.properties.layers.oracle import aside, rounding, solved, terms
from cemverify.conformance.properties.layers.products import ROUNDINGS, gradients_of_update
from cemverify.conformance.questions.black_boxes import Named, Question

_AT_ONCE = 4  # parameters that one question moves by themselves; the seed says which
_NEARER = (1.0, 2.0**-6, 2.0**-12)  # near the end of its range, a parameter would leave it by a larger step
_TOGETHER = "all parameters together"

Displaced = Callable[[Named], Arrays]


@states(
    "training/layer/derivatives-agree",
    claim="Automatic derivatives of the update agree with finite differences of its values.",
    formula="v^T d(c^T u)/dw = (c^T u(w + h v) - c^T u(w - h v)) / 2h,  u = x' - x",
    why="What backpropagation says of the update must be what the update does, with an energy or without. A "
    "solver that records its last iteration alone, a detached branch or a straight-through trick trains on "
    "another function. If that is meant, declare not_offered=('gradients',).",
    premise="some derivative is not zero",
    needs={"gradients", "differences"},
    source="(v . d/dw) (c . u) for the state, the memory and each parameter w",
    cases=Cases(plain=True),
)
def derivatives_of_update_agree(box: Box, q: Question) -> Evidence:
    generator = torch.Generator().manual_seed(q.seed % 2**31)
    q = box.rounded(aside(box, q, generator))
    u = box.displacement(q)
    drawn = {name: torch.randn(a.shape, generator=generator, dtype=torch.float64) for name, a in u.items()}
    c = {name: incoming(q.seed)[1](array).contiguous() for name, array in drawn.items()}
    noise = float(((rounding(box, q, u) + solved(box)) * flat(c).abs().sum(1)).sum())
    at = _Place(c, u, box.eps, max(box.eps, box.layer.step.tolerance or 0.0), noise, terms(q), generator)

    still = {*box.layer.whole, *(box.layer.draw.keys() & q.memory.keys())}
    arguments = {name: array for name, array in {**q.x, **q.memory}.items() if name not in still}

    def with_arguments(other: Named) -> Arrays:
        now = {**q.x, **q.memory, **other}
        return box.displacement(replace(q, x={k: now[k] for k in q.x}, memory={k: now[k] for k in q.memory}))

    gradients = gradients_of_update(box, q, list(c.values()), of_parameters=False)
    comparisons = [
        at.along_one_direction(name, gradients, {name: array}, with_arguments, leads=partial(box.along_all, q))
        for name, array in arguments.items()
    ]
    if values := parameters_of(box):
        gradients = gradients_of_update(box, q, list(c.values()), of_parameters=True)
        parts = {name: {name: values[name]} for name in some_of(values, q, _AT_ONCE)}
        if len(values) > _AT_ONCE:
            parts[_TOGETHER] = dict(values)
        displaced = partial(displacement_with, box, q)
        comparisons += [_within_range(at, name, gradients, part, displaced) for name, part in parts.items()]
    return Evidence.of(*comparisons, telling=any(moved(f.expected, f.budget) for f in comparisons))


def _within_range(at: _Place, name: str, gradients: Named, here: Named, displaced: Displaced) -> Comparison:
    """The comparison for parameters, nearer and nearer until there are answers on both sides."""
    for nearer in _NEARER:
        with suppress(Fault):
            return at.along_one_direction(name, gradients, here, displaced, nearer)
    raise Discard(f"there is no answer on both sides of {name}")


@dataclass(frozen=True)
class _Place:
    """Where derivatives are taken, and how exactly values are known there."""

    c: Named  # by which the update is multiplied
    u: Named  # the update there
    eps: float  # of the layer's numbers
    precision: float  # of its answers, relative
    noise: float  # absolute, of c . update
    terms: int  # of the longest sum
    generator: torch.Generator  # of directions

    def along_one_direction(
        self,
        name: str,
        gradients: Named,
        here: Named,
        displaced: Displaced,
        nearer: float = 1.0,
        leads: Callable[[Arrays], Arrays] = dict,
    ) -> Comparison:
        """The two derivatives along a random direction of some arrays.

        Args:
            name: of what is moved. here: its arrays. gradients: theirs, or more. nearer: the factor of the width.
            leads: returns the part of a direction that may be taken.
        """
        spacing = max(_spacing(array) for array in here.values())
        h = nearer * max(self.precision, spacing) ** (1 / 3) / 4
        v = {
            k: (1 + array.abs().max()) * torch.randn(array.shape, generator=self.generator, dtype=torch.float64)
            for k, array in here.items()
        }
        v = leads(v)

        def value(by: float) -> Tensor:
            return self._times_c(displaced({k: array + by * v[k] for k, array in here.items()}))

        middle = self._times_c(self.u)  # (n,), an entry for each number of the update
        at = {by: value(by) for by in (h, -h, h / 2, -h / 2)}
        derivatives, truncated = extrapolated(lambda by: (at[by] - at[-by]) / (2 * by), h, 0.0)
        bend, near_bend = ((at[by] - 2 * middle + at[-by]) / by for by in (h, h / 2))
        expected, truncation = derivatives.sum(), (truncated + 2 * (2 * near_bend - bend).abs()).sum()
        # places are rounded too, each by itself, and the function is as steep there as the gradient says
        steep = torch.cat([(gradients[k] * array).flatten() for k, array in here.items()])
        misplaced = 4 * spacing * steep.norm()
        largest = 1 + max(float(a.abs().max()) for k, w in here.items() for a in (w, gradients[k], *self.c.values()))
        backward = ROUNDINGS * self.terms * self.eps * largest**2 * sum(float(a.abs().sum()) for a in v.values())
        tolerance = truncation + 6 / h * (self.noise + misplaced) + backward
        got = torch.stack([(gradients[k] * v[k]).sum() for k in here]).sum()
        claim = Compared.PRODUCT(f"v . the gradient with respect to {name}", name)
        return Comparison(claim, got.reshape(1), expected.reshape(1), tolerance.reshape(1))

    def _times_c(self, update: Named) -> Tensor:
        return torch.cat([(self.c[name] * a).flatten() for name, a in update.items()])


def _spacing(array: Tensor) -> float:
    """The spacing of numbers above 1 in the dtype from which these numbers come, as far as they show it."""
    narrow = bool((array.to(torch.float32).to(torch.float64) == array).all())
    return torch.finfo(torch.float32 if narrow else torch.float64).eps

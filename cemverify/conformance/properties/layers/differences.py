"""Automatic derivatives of the update are those of its values: in the state, the memory and the parameters.

This needs no energy, so it is asked of every layer that lets gradients through, whatever its step is: of an
equilibrium as of a free step. Of each array one direction is tried, a random one: a derivative that is wrong anywhere
is wrong along it.

At a kink there is no derivative. Two widths tell: with the central difference w(h) = (f(h) - f(-h)) / 2h and the bend
s(h) = (f(h) - 2 f(0) + f(-h)) / h, a smooth function has A = w(h/2) - w(h) of the order of h^2 and, of h^3,
B = 2 s(h/2) - s(h). A kink of strength k at a distance d < h/2 gives A = -k d / 2h and B = k (1 - 3 d/h), and the
error of the extrapolated difference is B / 2 - 2 A / 3. Kinks of two outputs must not cancel, so each output counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from cemverify.conformance.asking.boxes import Arrays, Box, flat
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge, moved
from cemverify.conformance.properties.base import Property
from cemverify.conformance.properties.layers.base import Cases, layer_property
from cemverify.conformance.properties.layers.oracle import aside, rounding, terms
from cemverify.conformance.properties.layers.parameters import displacement_with, parameters_of
from cemverify.conformance.properties.layers.training import ROUNDINGS, gradients_of_update
from cemverify.conformance.questions.black_boxes import Named, Question

_AT_ONCE = 4  # parameters of one question; the seed says which

Displaced = Callable[[Named], Arrays]


def derivatives_of_update_agree(box: Box, q: Question) -> Evidence:
    """For a random c and directions v: (v . d/dw) (c . update), by backpropagation and by differences."""
    generator = torch.Generator().manual_seed(q.seed % 2**31)
    q = box.rounded(aside(q, generator))
    u = box.displacement(q)
    c = {name: torch.randn(a.shape, generator=generator, dtype=torch.float64) for name, a in u.items()}
    precision = max(box.eps, box.layer.step.tolerance or 0.0)
    noise = float((rounding(box, q, u) * flat(c).abs().sum(1)).sum())
    at = _Place(c, u, precision, noise, terms(q), generator)

    comparisons, telling = [], False
    for what, here, displaced in _variables(box, q):
        found = gradients_of_update(box, q, list(c.values()), of_parameters=what == "parameters")
        for name, array in here.items():
            got, expected, room = at.along_one_direction(found[name], name, array, displaced)
            comparisons.append(Comparison(f"v . the gradient with respect to {name}", got, expected, room))
            telling = telling or moved(expected, room)
    return judge(*comparisons, telling=telling)


def _variables(box: Box, q: Question) -> Iterator[tuple[str, Named, Displaced]]:
    """What the update depends on: arrays by name, and the displacement where some of them are others."""
    arguments = {**q.x, **q.memory}

    def with_arguments(other: Named) -> Arrays:
        now = {**arguments, **other}
        return box.displacement(replace(q, x={k: now[k] for k in q.x}, memory={k: now[k] for k in q.memory}))

    yield "arguments", arguments, with_arguments
    values = parameters_of(box)
    if values:
        names = sorted(values)
        first = q.seed % len(names)
        some = {name: values[name] for name in islice((*names[first:], *names[:first]), _AT_ONCE)}
        yield "parameters", some, lambda other: displacement_with(box, q, dict(other))


@dataclass(frozen=True)
class _Place:
    """Where derivatives are taken, and how exactly values are known there.

    Attributes:
        c: what the update is multiplied by. u: the update there. precision: of values, relative; noise: absolute,
        of c . update. terms: of the longest sum. generator: of directions.
    """

    c: Named
    u: Named
    precision: float
    noise: float
    terms: int
    generator: torch.Generator

    def along_one_direction(
        self, gradient: Tensor, name: str, array: Tensor, displaced: Displaced
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The two derivatives along a random direction, and how far apart they may be; each of shape (1,)."""
        size = 1 + float(array.abs().max())
        v = size * torch.randn(array.shape, generator=self.generator, dtype=torch.float64)
        eps = max(self.precision, _spacing(array))
        h = eps**0.2 / 4  # too wide a step is all truncation, too narrow all roundoff

        def value(by: float) -> Tensor:
            return self._times_c(displaced({name: array + by * v}))

        middle = self._times_c(self.u)  # (n,), an entry for each number of the update
        ahead, behind, near_ahead, near_behind = (value(by) for by in (h, -h, h / 2, -h / 2))
        wide, narrow = (ahead - behind) / (2 * h), (near_ahead - near_behind) / h
        bend, near_bend = (ahead - 2 * middle + behind) / h, 2 * (near_ahead - 2 * middle + near_behind) / h
        expected = (4 * narrow - wide) / 3
        truncated = 4 * (wide - narrow).abs() + 2 * (2 * near_bend - bend).abs()
        # places are rounded too, and what comes back is as steep there as the gradient says
        misplaced = eps * float((gradient.abs() * (array.abs() + h * v.abs())).sum())
        largest = size + float(gradient.abs().max()) + max(float(a.abs().max()) for a in self.c.values())
        backward = ROUNDINGS * self.terms * eps * largest**2 * float(v.abs().sum())
        room = truncated.sum() + 6 / h * (self.noise + misplaced) + backward
        return (gradient * v).sum().reshape(1), expected.sum().reshape(1), room.reshape(1)

    def _times_c(self, update: Named) -> Tensor:
        return torch.cat([(self.c[name] * a).flatten() for name, a in update.items()])


def _spacing(array: Tensor) -> float:
    """The spacing of numbers above 1 in the dtype that these numbers come from, as far as they show it."""
    narrow = bool((array.to(torch.float32).to(torch.float64) == array).all())
    return torch.finfo(torch.float32 if narrow else torch.float64).eps


def properties() -> Iterator[Property]:
    """The properties of the family."""
    yield layer_property(
        "training/layer/derivatives-agree",
        "Automatic derivatives of the update agree with finite differences of its values.",
        derivatives_of_update_agree,
        "some derivative is not zero",
        needs={"gradients"},
        source="(v . d/dw) (c . u) for the state, the memory and each parameter w",
        share=0.25,
        cases=Cases(plain=True),
    )

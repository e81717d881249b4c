"""The values of an energy layer's parameters, and how to call it with others for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cemverify.conformance.asking.boxes import Arrays, Box
from cemverify.conformance.asking.experiments import experiment, shapes
from cemverify.conformance.questions.black_boxes import Named, Question


@experiment(lambda arguments: shapes(own_parameters(arguments.box)))
def parameters_of(box: Box) -> Arrays:
    """The values of the parameters, under one name each: tied ones have several."""
    return {name: p.detach().cpu().to(torch.float64) for name, p in own_parameters(box).items()}


@experiment(lambda arguments: shapes(arguments.q.x))
def displacement_with(box: Box, q: Question, values: Arrays) -> Arrays:
    """The displacement with other values of some parameters."""
    with set_to(box, values):
        return box.displacement(q)


def own_parameters(box: Box) -> Arrays:
    """The parameters, under one name each."""
    first = {id(p): name for name, p in reversed(list(box.layer.parameters.items()))}
    return {name: p for name, p in box.layer.parameters.items() if first[id(p)] == name}


@contextmanager
def set_to(box: Box, values: Named, *, counted: bool = True) -> Iterator[None]:
    """Within, parameters have these values; they are set in place, as an optimiser does it.

    Args:
        counted: whether torch's version counters record the change; writing to `.data` does not.
    """
    before = {name: box.layer.parameters[name].detach().clone() for name in values}
    try:
        _copy(box, values, counted=counted)
        yield
    finally:
        _copy(box, before, counted=counted)


def _copy(box: Box, values: Named, *, counted: bool) -> None:
    with torch.no_grad():
        for name, value in values.items():
            parameter = box.layer.parameters[name]
            (parameter if counted else parameter.data).copy_(value)


def some_of(values: Named, q: Question, most: int) -> list[str]:
    """At most `most` names, in order, beginning with one that the question's seed selects."""
    names, first = sorted(values), q.seed % len(values)
    return [*names[first:], *names[:first]][:most]

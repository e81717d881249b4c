"""Whatever an implementation's process sends instead of an answer never holds, and is never a suite error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cemverify import energy_layer
from cemverify.conformance.asking.experiments import Rows, check, experiment_of
from cemverify.conformance.implementations.faults import Discard, Fault, NotFinite, Tampered, WrongShape
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.oracle.evidence import Comparison, Evidence
from cemverify.conformance.properties import Property, select
from cemverify.conformance.workers import wire
from suites.kit.judging import QUICKLY

# one property for each experiment that returns arrays
ASKED = select(
    [
        *("gradient/attention/plain", "training/attention/plain", "training/mlp-energy/any-options"),
        *("contract/mlp/inputs-unchanged", "contract/mlp/threads", "contract/mlp/edited-arrays"),
        *("contract/mlp/windows", "contract/mlp/shared-memory", "contract/mlp/one-array"),
        *("contract/mlp/surroundings", "modes/mlp/vmap", "training/layer/parameters", "training/layer/states"),
        *("gradient/layer/energy", "gradient/layer/derivatives-agree", "gradient/layer/conservative-field"),
        *("structure/layer/energy-per-token", "structure/layer/inputs-unchanged", "structure/layer/edited-arrays"),
        *("structure/layer/windows", "modes/layer/no-gradients", "modes/layer/surroundings", "modes/layer/vmap"),
        *("training/layer/derivatives-agree", "training/layer/parameters-matter"),
    ]
)
# a parameter may leave its range, and then a missing answer may belong to a question outside the premise
MAY_BE_OUTSIDE = {"training/layer/parameters-matter"}
W = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 3)))
LAYER = energy_layer(
    update=lambda x, h: -0.2 * (x @ W.to(x.dtype) - h) @ W.to(x.dtype).mT, step_size=0.1, dim=3,
    energy=lambda x, h: ((x @ W.to(x.dtype) - h) ** 2).sum(-1), parameters={"W": W},
)  # fmt: skip

WAYS: dict[str, Callable[[Tensor], Any]] = {
    "nothing": lambda a: a.new_zeros(0),
    "size zero": lambda a: a.new_zeros((0, *[1] * (a.dim() - 1))),
    "one number": lambda a: a.new_zeros(()),
    "one of each": lambda a: a.new_zeros([1] * a.dim()) if a.numel() > 1 else a.new_zeros(2),
    "an axis more": lambda a: a[None],
    "booleans": lambda a: a.bool(),
    "arrays of NumPy": lambda a: a.numpy(),
    "numbers": lambda a: float(a.sum()),
    "NaN": lambda a: torch.full_like(a, torch.nan),
    "no answer": lambda a: None,
}


def changed(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """An answer with every array changed."""
    match value:
        case Tensor():
            return change(value)
        case dict():
            return {key: changed(item, change) for key, item in value.items()}
        case list() | tuple():
            return [changed(item, change) for item in value]
    return value


def renamed(value: Any) -> Any:
    """The same arrays under other names, in longer lists."""
    match value:
        case dict():
            return {f"{key}'": item for key, item in value.items()}
        case list() | tuple():
            return [*map(renamed, value), *value[-1:]]
    return [value]


@dataclass(frozen=True)
class Forger:
    """Takes the place of an implementation's process, and sends a forged answer."""

    forge: Callable[[Any], Any]
    processes: tuple[int, ...] = ()

    def asking(self, question: Any) -> None:
        pass

    def perform(self, experiment: str, caller_or_box: Any, arguments: Any, named: Any, allowance: Any) -> Any:
        caller = getattr(caller_or_box, "caller", caller_or_box)
        here: Any = replace(caller, layer_process=None)
        if caller is not caller_or_box:
            here = type(caller_or_box)(here, t=caller_or_box.t)
        answer = experiment_of(experiment)(here, *arguments, **named)
        return wire.answered(wire.answer({"answer": self.forge(answer)}))["answer"]


FORGED: dict[str, Callable[[Any], Any]] = {
    "as they are": lambda answer: answer,
    "other names": renamed,
    **{name: partial(changed, change=change) for name, change in WAYS.items()},
}


@pytest.mark.parametrize("property_", ASKED, ids=lambda p: p.id)
def test_what_a_process_forges_is_a_violation_and_never_holds_and_what_it_does_not_holds(property_: Property) -> None:
    subject = LAYER if property_.kind == "energy layer" else reference
    for way, forge in FORGED.items():
        record = judge_property(subject, property_, QUICKLY, Forger(forge))
        wrong = (Verdict.VIOLATED, *([Verdict.INCONCLUSIVE] if record.id in MAY_BE_OUTSIDE else []))
        assert record.verdict in (wrong if way != "as they are" else [Verdict.HOLDS]), (way, record.reason)


ONE = torch.ones(1, dtype=torch.float64)


def test_nothing_cannot_be_compared_nor_can_shapes_that_differ() -> None:
    for shape in ((0,), (0, 1, 1), (3, 0)):
        with pytest.raises(Discard, match="nothing to compare"):
            Comparison("", torch.zeros(shape), torch.zeros(shape), torch.zeros(()))
    for got, expected in (((0,), (2,)), ((), (2,)), ((1,), (2,)), ((1, 2), (2,)), ((2, 1), (2, 2))):
        with pytest.raises(WrongShape):
            Comparison("", torch.zeros(got), torch.zeros(expected), torch.zeros(()))
    with pytest.raises(Discard, match="nothing to compare"):
        Evidence([])
    with pytest.raises(ValueError, match="below zero"):
        Comparison("", ONE, ONE, -ONE)
    with pytest.raises(ValueError, match="a budget of shape"):
        Comparison("", ONE, ONE, torch.zeros(2))
    assert not Comparison("", torch.nan * ONE, ONE, ONE).margin <= 1


@pytest.mark.parametrize(
    ("value", "expected", "fault"),
    [
        (torch.zeros(0), torch.Size((2,)), WrongShape),
        (torch.zeros(()), Rows(1), WrongShape),
        (torch.zeros(3, 4), Rows(2), WrongShape),
        ({"a": ONE}, {"a": torch.Size((2,))}, WrongShape),
        ({"a": ONE}, {"b": torch.Size((1,))}, Tampered),
        ({}, {"b": torch.Size((1,))}, Tampered),
        ((ONE,), [torch.Size((1,))] * 2, Tampered),
        ((torch.inf * ONE,), [torch.Size((1,))], NotFinite),
    ],
)
def test_an_answer_has_the_names_shapes_and_finite_numbers_that_are_due(
    value: object, expected: object, fault: type[Fault]
) -> None:
    with pytest.raises(fault):
        check(value, expected)

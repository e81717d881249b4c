"""The second door: what any energy layer must do, asked of a black box with an update and perhaps an energy.

Its roundoff is unknown, so that it is taken to be that of n-term sums of the magnitudes that come out,
n = 64 tokens times dimensions: far above what such small cases need, far below any fault worth the name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from cemverify.conformance.asking.calls import Caller, as_tensor
from cemverify.conformance.implementations.contract import EnergyLayer
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge, moved
from cemverify.conformance.properties.base import Asked, By, Property
from cemverify.conformance.properties.jacobian import extrapolated
from cemverify.conformance.questions.spaces import Source

_SEVERAL = "there are several tokens, and the others' values are not zero"


@dataclass(frozen=True, repr=False)
class Question:
    """States and memory for a black box.

    Attributes:
        x, memory: (B, J, D).
    """

    x: Tensor
    memory: Tensor

    def __repr__(self) -> str:
        return f"Question(x {tuple(self.x.shape)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002
        """Hypothesis prints failing arguments, and would print every array of a dataclass."""
        printer.text(repr(self))

    def describe(self) -> dict[str, Any]:
        """The question as JSON."""
        return {
            "tokens": self.x.shape[1],
            "dim": self.x.shape[2],
            "x": self.x.tolist(),
            "memory": self.memory.tolist(),
        }


def field_is_conservative(caller: Caller, question: Question) -> Evidence:
    """The Jacobian of the update in all of x, memory fixed, is symmetric."""
    update = caller.layer_update(question.x, question.memory)

    def moved_update(x: Tensor) -> Tensor:
        return caller.layer_update(x, question.memory.repeat(x.shape[0] // question.x.shape[0], 1, 1))

    J, error = extrapolated(moved_update, question.x, _noise(update, question))
    comparison = Comparison("the Jacobian equals its transpose", J, J.mT, error + error.mT)
    return judge(comparison, telling=moved(J, error))


def update_is_gradient(caller: Caller, question: Question) -> Evidence:
    """update = -eta grad energy, the gradient by differences of the stated energy."""
    assert isinstance(caller.subject, EnergyLayer)
    energies = caller.layer_energy(question.x, question.memory)

    def total(x: Tensor) -> Tensor:
        rows = x.shape[0] // question.x.shape[0]
        return caller.layer_energy(x, question.memory.repeat(rows, 1, 1)).sum(-1, keepdim=True)

    noise = question.x.shape[1] * _noise(energies, question)
    J, error = extrapolated(total, question.x, noise)  # (B, 1, n)
    eta = caller.subject.step_size
    update = caller.layer_update(question.x, question.memory)
    expected = -eta * J.reshape(update.shape)
    budget = abs(eta) * error.reshape(update.shape) + _noise(update, question)[:, None, None]
    return judge(Comparison("update = -eta grad energy", update, expected, budget), telling=moved(expected, budget))


def energy_falls(caller: Caller, question: Question) -> Evidence:
    """A small enough part of the update lowers the energy, to first order by |update|^2 / eta times that part.

    How small depends on how the energy bends, which is unknown: the part is halved until the energy falls.
    """
    assert isinstance(caller.subject, EnergyLayer)
    update = caller.layer_update(question.x, question.memory)
    before = caller.layer_energy(question.x, question.memory)
    room = _noise(before, question)[:, None].expand_as(before)
    slope = (update**2).sum(-1) / caller.subject.step_size  # (B, J)
    what = "energy after a small step along the update <= before"
    part = 2.0**-10
    while True:
        after = caller.layer_energy(question.x + part * update, question.memory)
        comparison = Comparison(what, after, before, room, "at most")
        smaller = part / 4
        # at a smaller part, would a slope the other way still stand clear of roundoff?
        if comparison.margin <= 1 or not moved(smaller * slope, 2 * room):
            return judge(comparison, telling=moved(part * slope, room))
        part = smaller


def future_is_not_read(caller: Caller, question: Question) -> Evidence:
    """Another last token, in x and in the memory, leaves the others' updates as they were."""
    before = caller.layer_update(question.x, question.memory)[:, :-1]
    after = caller.layer_update(_another_last(question.x), _another_last(question.memory))[:, :-1]
    return _unchanged(
        "the other tokens' updates when the last token t becomes 3 - 2t in x and the memory",
        after,
        before,
        question,
    )


def own_state_only(caller: Caller, question: Question) -> Evidence:
    """With the memory fixed, a token's update depends on its own state and not on the others'."""
    before = caller.layer_update(question.x, question.memory)[:, :-1]
    after = caller.layer_update(_another_last(question.x), question.memory)[:, :-1]
    return _unchanged("the other tokens' updates when the last token t of x becomes 3 - 2t", after, before, question)


def batch_rows_are_independent(caller: Caller, question: Question) -> Evidence:
    """A row alone gives what it gives among others."""
    among = caller.layer_update(question.x, question.memory)[:1]
    alone = caller.layer_update(question.x[:1], question.memory[:1])
    evidence = _unchanged("a batch row alone = the same row in a batch", alone, among, question)
    return replace(evidence, telling=evidence.telling and question.x.shape[0] > 1)


def twice_gives_the_same(caller: Caller, question: Question) -> Evidence:
    """The same call twice, with another between, gives the same bits."""
    first = caller.layer_update(question.x, question.memory)
    between = caller.layer_update(question.x + 1, question.memory + 1)
    second = caller.layer_update(question.x, question.memory)
    comparison = Comparison("second call = first call", second, first, torch.zeros(()))
    return judge(comparison, telling=not torch.equal(between, first))


def inputs_are_left_alone(caller: Caller, question: Question) -> Evidence:
    """x and the memory are bit for bit what they were before the call, of the energy too."""
    assert isinstance(caller.subject, EnergyLayer)
    comparisons = []
    for function in (caller.subject.update, caller.subject.energy):
        if function is not None:
            arrays = {"x": caller.array(question.x), "memory": caller.array(question.memory)}
            before = {name: as_tensor(array).clone() for name, array in arrays.items()}
            with caller.guarded():
                function(arrays["x"], arrays["memory"])
            comparisons += [
                Comparison(f"{name} after the call", as_tensor(array), before[name], torch.zeros(()))
                for name, array in arrays.items()
            ]
    return judge(*comparisons)


def energy_is_per_token(caller: Caller, question: Question) -> Evidence:
    """With the memory fixed, a token's energy depends on its own state and not on the others'."""
    before = caller.layer_energy(question.x, question.memory)[:, :-1]
    after = caller.layer_energy(_another_last(question.x), question.memory)[:, :-1]
    return _unchanged("the other tokens' energies when the last token t of x becomes 3 - 2t", after, before, question)


def properties() -> Iterator[Property]:
    """The family."""
    for name, claim, check, needs, premise, controls in (
        ("gradient/layer/conservative-field", "The update field is a gradient field: its Jacobian in x is symmetric.",
         field_is_conservative, set(), "the Jacobian is not zero", set()),
        ("gradient/layer/energy", "The update is -eta times the gradient of the stated energy.",
         update_is_gradient, {"energy"}, "the gradient is not zero", {"constant"}),
        ("descent/layer/energy-falls", "A small step along the update lowers the stated energy.",
         energy_falls, {"energy"}, "the energy must fall by more than roundoff", {"random"}),
        ("structure/layer/causality", "A token's update does not depend on later tokens.",
         future_is_not_read, {"causality"}, _SEVERAL, {"random"}),
        ("structure/layer/own-state", "With the memory fixed, other tokens' states do not affect a token's update.",
         own_state_only, set(), _SEVERAL, {"random"}),
        ("structure/layer/energy-per-token",
         "With the memory fixed, other tokens' states do not affect a token's energy.",
         energy_is_per_token, {"energy"}, _SEVERAL, {"random"}),
        ("structure/layer/batch-independence", "A batch row's update does not depend on the other rows.",
         batch_rows_are_independent, set(), "the batch has several rows, and the update is not zero", {"random"}),
        ("structure/layer/determinism", "The same call returns the same bits, whatever was called in between.",
         twice_gives_the_same, set(), "the call in between returns something else", set()),
        ("structure/layer/inputs-unchanged", "A call of either function leaves x and the memory unchanged.",
         inputs_are_left_alone, set(), "the call returns an answer", set()),
    ):  # fmt: skip
        yield Property(
            name,
            claim,
            "Eq. 3 (update = -eta grad energy, memory fixed)",
            check,
            By(_questions),
            frozenset(needs),
            door="energy layer",
            dtype=torch.float64,
            once=check is twice_gives_the_same,
            premise=premise,
            controls=frozenset(controls),
        )


@st.composite
def _draw_question(draw: st.DrawFn, source: Source, asked: Asked) -> Question:
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 6)), asked.dim)
    if source == "small" and np.prod(shape) <= 32:
        integers = hnp.arrays(np.int8, shape, elements=st.integers(-2, 2), fill=st.nothing())
        x, memory = (torch.from_numpy(draw(integers).astype(np.float64)) for _ in range(2))
        return Question(x, memory)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    box = rng.standard_normal((2, 3, 6, asked.dim))
    x, memory = (torch.from_numpy(np.ascontiguousarray(a[: shape[0], : shape[1]])) for a in box)
    return Question(x, memory)


def _questions(source: Source, asked: Asked) -> SearchStrategy[Question]:
    return _draw_question(source, asked)


def _noise(values: Tensor, question: Question) -> Tensor:
    """What roundoff may do to values of that size, per batch row: (B,)."""
    terms = 64 * question.x[0].numel()
    # of the states near x too, at which differences are taken: none is much larger than these and one
    near = (values, question.x, question.memory[: values.shape[0]])
    size = 1 + torch.stack([a.flatten(1).abs().amax(1) for a in near]).sum(0)
    return terms * torch.finfo(torch.float64).eps * size


def _unchanged(what: str, got: Tensor, expected: Tensor, question: Question) -> Evidence:
    if not got.numel():
        return judge(Comparison(what, torch.zeros(1), torch.zeros(1), torch.zeros(1)), telling=False)
    noise = _noise(expected, replace(question, x=question.x[: got.shape[0]]))
    budget = noise.reshape(-1, *[1] * (got.dim() - 1)).expand_as(got)
    return judge(Comparison(what, got, expected, budget), telling=moved(expected, budget))


def _another_last(tokens: Tensor) -> Tensor:
    changed = tokens.clone()
    changed[:, -1] = 3.0 - 2.0 * changed[:, -1]
    return changed

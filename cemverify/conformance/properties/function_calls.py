"""The contract of a call, stated once for CEM's functions and for those of any other energy layer.

Either kind of implementation is a set of functions of named arrays. A `Call` is one of these functions, asked one
question. It can be made as usual and in other circumstances, and it says how far apart two right answers may be. The
checks below hold for both kinds: `contract` and `modes` ask them of CEM's functions, `layers.contract` and
`layers.modes` of what a layer declares. They differ in what is due and how exactly, which the calls know.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Self, TypeVar

import torch
from torch import Tensor

from cemverify.conformance.asking.process_state import SETTINGS
from cemverify.conformance.asking.surroundings import GENERATORS, SURROUNDINGS
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge

_MAPPED = 3  # questions that are mapped over at once

Answer = Mapping[str, Tensor]  # the arrays that a function returned, by name, in float64


class Call(ABC):
    """One function of an implementation, asked one question."""

    @property
    def leads(self) -> bool:
        """Whether it is the function whose answers decide if an example is telling."""
        return True

    @property
    def surroundings(self) -> Sequence[str]:
        """The settings of `SURROUNDINGS` in which it may be made."""
        return tuple(SURROUNDINGS)

    def said(self, what: str) -> str:
        """A claim about its answers, with the function's name where that is not plain."""
        return what

    @abstractmethod
    def answer(self) -> Answer:
        """The arrays that a call in usual circumstances returns."""

    @abstractmethod
    def answer_between(self) -> Answer:
        """What the same function returns for another question."""

    @abstractmethod
    def room(self, usual: Answer) -> Tensor:
        """How far roundoff may lead from the right answer."""

    @abstractmethod
    def compared(self, what: str, got: Answer, due: Answer, room: Tensor | None = None) -> list[Comparison]:
        """The comparisons of two answers; bit for bit where there is no room."""

    @abstractmethod
    def moved(self, usual: Answer, room: Tensor) -> bool:
        """Whether the answer is another one than that of a function that does nothing, by more than the room."""

    @abstractmethod
    def changes(self) -> tuple[list[str], list[str]]:
        """The settings of the process that the call changes, and the libraries whose random generator it seeds."""

    @abstractmethod
    def answer_within(self, surroundings: str) -> Answer:
        """What it returns under such a setting."""

    @abstractmethod
    def recorded(self) -> Mapping[str, Answer]:
        """What it returns with gradients recorded of some arguments and of others, each by the claim about it."""

    def unrecorded(self) -> Answer:
        """What it returns where no gradients are recorded."""
        return self.answer()

    @abstractmethod
    def on(self, device: str) -> Answer:
        """What it returns for arrays on a device."""

    @abstractmethod
    def scaled(self, factor: float) -> Self:
        """The same call with arrays that are a multiple of these."""

    @abstractmethod
    def mapped(self, calls: Sequence[Self]) -> Mapping[str, tuple[Sequence[Self], Answer]]:
        """Calls that a mapped function makes at once, and its answers along a first axis, by the claim about them."""


Calls = Sequence[Call]
Kind = TypeVar("Kind", bound=Call)


def yes(what: str, *, holds: bool) -> Comparison:
    """A statement that is true or not, as a comparison."""
    one = torch.ones(1)
    return Comparison(f"{what} (1 = yes)", one * holds, one, torch.zeros(1))


def unchanged_but(changed: Sequence[str], what: str) -> Comparison:
    """The statement that a call changes nothing of some kind; what it changed all the same is told."""
    return yes(f"{what}{', but it changed ' * bool(changed)}{', '.join(changed)}", holds=not changed)


def twice_gives_the_same(calls: Calls) -> Evidence:
    """A repeated call returns equal bits, with and without another call in between."""
    comparisons, telling = [], False
    for call in calls:
        first, between, second = call.answer(), call.answer_between(), call.answer()
        third = call.answer()  # at once, which shows what happens on every second call
        comparisons += call.compared("second call = first call", second, first)
        comparisons += call.compared("third call = second call", third, second)
        telling |= call.leads and any(not torch.equal(between[name], array) for name, array in first.items())
    return judge(*comparisons, telling=telling)


def settings_are_left_alone(calls: Calls) -> Evidence:
    """A call changes no setting of the process and seeds no random generator; it may draw from them."""
    comparisons = []
    for call in calls:
        changed, seeded = call.changes()
        kept = {setting.name: setting.name not in changed for setting in SETTINGS}
        kept |= {f"random state of {library}": library not in seeded for library in GENERATORS}
        comparisons += [yes(call.said(f"the process keeps its {what}"), holds=holds) for what, holds in kept.items()]
    return judge(*comparisons)


def surroundings_change_no_answer(calls: Calls) -> Evidence:
    """The answer is one, in inference mode, with another default dtype, another seed, another number of threads."""
    return unchanged(calls, lambda call: {f"{one} = as usual": call.answer_within(one) for one in call.surroundings})


def gradients_change_no_answer(calls: Calls) -> Evidence:
    """The output is one, with gradients recorded for all arrays or for some of them, and without."""
    return unchanged(calls, lambda call: call.recorded(), lambda call: call.unrecorded())


def mapped_is_looped(calls: Sequence[Kind]) -> Evidence:
    """Mapped over a further axis of its arrays, the function gives what a loop gives."""
    comparisons, telling = [], False
    for call in calls:
        for what, (several, answers) in call.mapped([call.scaled(1 - i / 4) for i in range(_MAPPED)]).items():
            for i, one in enumerate(several):
                due = one.answer()
                room = 2 * one.room(due)
                comparisons += one.compared(what, {name: array[i] for name, array in answers.items()}, due, room)
                telling |= one.moved(due, room)
    return judge(*comparisons, telling=telling)


def cuda_is_cpu(calls: Calls) -> Evidence:
    """The output on the CUDA device equals that on the CPU."""
    return unchanged(calls, lambda call: {"on CUDA = on the CPU": call.on("cuda")}, lambda call: call.on("cpu"))


def unchanged(
    calls: Sequence[Kind],
    others: Callable[[Kind], Mapping[str, Answer]],
    usual: Callable[[Kind], Answer] = lambda call: call.answer(),
) -> Evidence:
    """Answers in other circumstances are the usual one, up to the roundoff of both.

    Args:
        others: the answers to a call, each by the claim that it makes true. usual: the answer that they must equal.
    """
    comparisons, telling = [], False
    for call in calls:
        expected = usual(call)
        room = 2 * call.room(expected)
        for what, got in others(call).items():
            comparisons += call.compared(what, got, expected, room)
        telling |= call.leads and call.moved(expected, room)
    return judge(*comparisons, telling=telling)

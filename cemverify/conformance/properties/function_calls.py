"""The contract of a call, stated once for CEM's functions and for those of any other energy layer.

Either kind of implementation is a set of functions of named arrays. A `Call` is one of these functions with one
question. It can be made as usual and in other circumstances, and it says how far apart two right answers may be. The
checks below are for both kinds: `contract` and `modes` apply them to CEM's functions, `layers.contract` and
`layers.modes` to what a layer declares. What is expected, and how exactly, differs; the calls know it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Self, TypeVar

import torch
from torch import Tensor

from cemverify.conformance.asking.process_state import SETTINGS
from cemverify.conformance.asking.surroundings import GENERATORS, SURROUNDINGS
from cemverify.conformance.oracle.evidence import Compared, Comparison, Evidence, yes

_MAPPED = 3  # questions that are mapped over at once

Answer = Mapping[str, Tensor]  # the arrays that a function returned, by name, in float64


class Call(ABC):
    """One function of an implementation, with one question."""

    @property
    def leads(self) -> bool:
        """Whether it is the function whose answers decide if an example is telling."""
        return True

    @property
    def surroundings(self) -> Sequence[str]:
        """The settings of `SURROUNDINGS` in which it may be made."""
        return tuple(SURROUNDINGS)

    def phrase(self, claim: str) -> str:
        """A claim about its answers, with the function's name if that is not obvious."""
        return claim

    @abstractmethod
    def answer(self) -> Answer:
        """The arrays that a call in usual circumstances returns."""

    @abstractmethod
    def answer_between(self) -> Answer:
        """What the same function returns for another question."""

    @abstractmethod
    def tolerance(self, usual: Answer) -> Tensor:
        """How far from the right answer roundoff may lead."""

    @abstractmethod
    def compared(
        self, claim: str, got: Answer, expected: Answer, tolerance: Tensor | None = None
    ) -> list[Comparison]:
        """The comparisons of two answers; bit for bit without a tolerance."""

    @abstractmethod
    def moved(self, usual: Answer, tolerance: Tensor) -> bool:
        """Whether the answer differs from that of a function that does nothing, by more than the tolerance."""

    @abstractmethod
    def changes(self) -> tuple[list[str], list[str]]:
        """The settings of the process that the call changes, and the libraries whose random generator it seeds."""

    @abstractmethod
    def answer_within(self, surroundings: str) -> Answer:
        """What it returns under such a setting."""

    @abstractmethod
    def recorded(self) -> Mapping[str, Answer]:
        """What it returns with gradients recorded for several choices of arguments, by the claim about each."""

    def unrecorded(self) -> Answer:
        """What it returns if no gradients are recorded."""
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


def twice_gives_the_same(calls: Calls) -> Evidence:
    """A repeated call returns equal bits, with and without another call in between."""
    comparisons, telling = [], False
    for call in calls:
        first, between, second = call.answer(), call.answer_between(), call.answer()
        third = call.answer()  # at once, to show what happens on every second call
        comparisons += call.compared(Compared.REPEATED("second call = first call"), second, first)
        comparisons += call.compared(Compared.REPEATED("third call = second call", "at once"), third, second)
        telling |= call.leads and any(not torch.equal(between[name], array) for name, array in first.items())
    return Evidence.of(*comparisons, telling=telling)


def settings_are_left_alone(calls: Calls) -> Evidence:
    """A call changes no setting of the process and seeds no random generator; it may draw from them."""
    comparisons = []
    for call in calls:
        changed, seeded = call.changes()
        is_kept = {setting.name: setting.name not in changed for setting in SETTINGS}
        is_kept |= {f"random state of {library}": library not in seeded for library in GENERATORS}
        comparisons += [
            yes(call.phrase(Compared.SETTING(f"the process keeps its {name}", name)), holds=holds)
            for name, holds in is_kept.items()
        ]
    return Evidence.of(*comparisons)


def surroundings_change_no_answer(calls: Calls) -> Evidence:
    """The answer is the same in inference mode, with another default dtype, seed, or number of threads."""
    return unchanged(
        calls,
        lambda call: {
            Compared.ANSWER(f"{one} = as usual", one): call.answer_within(one) for one in call.surroundings
        },
    )


def gradients_change_no_answer(calls: Calls) -> Evidence:
    """The output is the same with gradients recorded for all arrays, for some of them, and without."""
    return unchanged(calls, lambda call: call.recorded(), lambda call: call.unrecorded())


def mapped_is_looped(calls: Sequence[Kind]) -> Evidence:
    """Mapped over a further axis of its arrays, the function gives what a loop gives."""
    comparisons, telling = [], False
    for call in calls:
        for claim, (several, answers) in call.mapped([call.scaled(1 - i / 4) for i in range(_MAPPED)]).items():
            for i, one in enumerate(several):
                expected = one.answer()
                tolerance = 2 * one.tolerance(expected)
                comparisons += one.compared(
                    claim, {name: array[i] for name, array in answers.items()}, expected, tolerance
                )
                telling |= one.moved(expected, tolerance)
    return Evidence.of(*comparisons, telling=telling)


def cuda_is_cpu(calls: Calls) -> Evidence:
    """The output on the CUDA device equals that on the CPU."""
    return unchanged(calls, lambda call: {"on CUDA = on the CPU": call.on("cuda")}, lambda call: call.on("cpu"))


def unchanged(
    calls: Sequence[Kind],
    answers_to: Callable[[Kind], Mapping[str, Answer]],
    usual: Callable[[Kind], Answer] = lambda call: call.answer(),
) -> Evidence:
    """Answers in other circumstances equal the usual one, up to the roundoff of both.

    Args:
        answers_to: the answers to a call, each by the claim that it supports. usual: the answer that they
            must equal.
    """
    comparisons, telling = [], False
    for call in calls:
        expected = usual(call)
        tolerance = 2 * call.tolerance(expected)
        for claim, got in answers_to(call).items():
            comparisons += call.compared(claim, got, expected, tolerance)
        telling |= call.leads and call.moved(expected, tolerance)
    return Evidence.of(*comparisons, telling=telling)

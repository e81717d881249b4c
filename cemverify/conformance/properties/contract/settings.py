"""Settings of the process: a call changes none of them, and none of them changes an answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.oracle.evidence import Evidence
from cemverify.conformance.oracle.functions import EVERY, Function
from cemverify.conformance.properties.base import Explanation, Property
from cemverify.conformance.properties.contract.calls import OfAllFunctions
from cemverify.conformance.properties.contract.functions import FunctionCall, changes, contract_property, of_call
from cemverify.conformance.properties.function_calls import settings_are_left_alone, surroundings_change_no_answer
from cemverify.conformance.properties.mixed import mixed
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.spaces import scattered_case

SETTINGS_KEPT = Explanation(
    "settings of the process and states of generators after the call = before",
    "A default dtype, a number of threads or a seed that a layer leaves behind changes other people's results.",
)
UNMOVED = Explanation(
    "F under other settings of the process = F",
    "An answer that depends on the default dtype, on inference mode or on a seed differs between two programs that "
    "call the layer alike.",
)


_SIZES = {"B": (2,), "J": (3,), "D": (4,), "K": (2,), "R": (2,), "M": (3,)}  # one shape, whatever the options


def first_uses_leave_settings_alone(caller: Caller, case: Case) -> Evidence:
    """Each option is met for the first time in this process, and no setting is changed and no generator seeded."""
    plain = _without_composed(caller)
    return settings_are_left_alone([_FirstUse(function, caller, case) for function in plain])


@dataclass(frozen=True)
class _FirstUse(FunctionCall):
    """Calls of one function that meet every value of every option."""

    def changes(self) -> tuple[list[str], list[str]]:
        space = mixed(self.function.layer, sizes=_SIZES, textures=("plain",)).within(self.caller.subject.not_offered)
        options = {name: values for name, values in space.choices.items() if values}
        cases = []
        for i in range(max(map(len, (*options.values(), space.preconditioners)))):
            chosen = {name: (values[i % len(values)],) for name, values in options.items()}
            kind = space.preconditioners[i % len(space.preconditioners)]
            met = replace(space, choices=chosen, preconditioners=(kind,))
            cases.append(self.function.question(scattered_case(met, self.case.turn(997)), self.caller.dtype))
        return changes(self.caller, self.function.name, cases)

    def phrase(self, claim: str) -> str:
        return f"{claim} when {self.function.name} is first used"


def _without_composed(caller: Caller) -> Sequence[Function]:
    """The functions that there are; of a block and of decoding only where nothing simpler meets their options."""
    offered = [function for function in EVERY if function.name in caller.functions]
    return [function for function in offered if not function.starts_at_the_memory] or offered


def properties() -> Iterator[Property]:
    """Settings that a call leaves and that leave an answer, for each function of an implementation."""
    for function in EVERY:
        yield contract_property(
            function,
            "settings-unchanged",
            f"A call of {function.name} leaves settings of the process as they are, whatever they are, and seeds no "
            "random generator.",
            *SETTINGS_KEPT,
            of_call(settings_are_left_alone),
            "the call returns an answer",
            every_dtype=True,
            rows=0.3,
            once=True,
            floor=1.0,
        )
        yield contract_property(
            function,
            "surroundings",
            f"Settings of the process change no answer of {function.name}.",
            *UNMOVED,
            of_call(surroundings_change_no_answer),
            "the right answer is not that of a layer that does nothing",
            rows=0.25,
            dtype=torch.float64,
        )
    yield Property(
        "contract/all/first-uses",
        "The first call with an option changes no setting of the process and seeds no random generator.",
        "docs/contract.md",
        SETTINGS_KEPT.formula,
        "What is set up where an option is first met, a hook or a check of itself, is easily left behind.",
        first_uses_leave_settings_alone,
        OfAllFunctions(mixed("block", textures=("plain",))),
        share=0.1,
        sources=(),
        scattered=1,
        first=True,
        once=True,
        premise="the call returns an answer",
        floor=1.0,
    )

"""What a call depends on beside its arguments: nothing, neither another call, earlier or meanwhile, nor a setting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.meanwhile import answered_while_another_runs
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge, together
from cemverify.conformance.oracle.functions import EVERY, Function
from cemverify.conformance.properties.base import Offer, Over
from cemverify.conformance.properties.contract.functions import (
    LONG_ROW,
    FunctionCall,
    changes,
    elsewhere,
    lengthened,
    lower_dtypes,
)
from cemverify.conformance.properties.function_calls import settings_are_left_alone, twice_gives_the_same
from cemverify.conformance.properties.training import products_are_right
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.contexts import nearly, otherwise
from cemverify.conformance.questions.spaces import mixed, scattered_case


def first_is_as_good_as_later(caller: Caller, case: Case) -> Evidence:
    """The first call of each function in a process, and one after several others, return the right answer.

    So does one with nearly the same options, which what is kept for rounded options would spoil.
    """
    parts = [(function, function.question(_part(function, case), caller.dtype)) for function in EVERY]
    parts = [(function, part) for function, part in parts if function.name in caller.subject.functions]  # type: ignore[union-attr]
    first = [caller.answer(function.name, part) for function, part in parts]
    for other in (elsewhere, _longer, elsewhere):
        for function, part in parts:
            caller.answer(function.name, other(part))
    evidences = []
    for (function, part), answer in zip(parts, first, strict=True):
        name, later = function.name, caller.answer(function.name, part)
        evidences += [
            function.evidence(f"first answer of {name} = golden answer", answer, part, caller.dtype),
            function.evidence(f"answer of {name} after other calls = golden answer", later, part, caller.dtype),
        ]
        if not caller.kind.compiles:
            near = replace(part, config=nearly(part.config, caller.subject.not_offered))
            claim = f"answer of {name} with nearly the same options = golden answer"
            evidence = function.evidence(claim, caller.answer(name, near), near, caller.dtype)
            evidences.append(replace(evidence, telling=True))  # the others say whether it is worth anything
    return together(evidences, all)


def training_follows_other_uses(caller: Caller, case: Case) -> Evidence:
    """Gradients after each function was called in inference mode and in a lower dtype, at the same shapes.

    The first call of all is both, so that whatever is kept for these shapes is made there.
    """
    lower = [caller.dtype, *lower_dtypes(caller)][-1]
    evidences = []
    for function in EVERY:
        if function.name not in caller.subject.functions:  # type: ignore[union-attr]
            continue
        part = function.question(_part(function, case), caller.dtype)
        for dtype in (lower, caller.dtype):
            FunctionCall(function, caller.at(dtype), part).answer_within("in inference mode")
        caller.at(lower).answer(function.name, part)
        trained = products_are_right(caller, part, function)
        compared = [replace(c, claim=f"{function.name} after other uses: {c.claim}") for c in trained.comparisons]
        # an energy reads neither the norm's gain nor P
        evidences.append(judge(*compared, telling=trained.telling or function.is_energy))
    return together(evidences, all)


_ONE_IN = 3  # cases has long rows


def _part(function: Function, case: Case) -> Case:
    """What a function is asked of a block's case."""
    if function.layer == "block":
        return case
    return case.part("mlp" if function.layer == "mlp" else "attention")


def repeats_its_bits(function: Function, caller: Caller, case: Case) -> Evidence:
    """The same call gives the same bits. Some rows are longer than a tile; then a much longer one comes between."""
    if case.turn(_ONE_IN) == 0 and function.name != "decode" and not caller.kind.compiles:
        case = lengthened(case, LONG_ROW, case.h.shape[0])
    return twice_gives_the_same([FunctionCall(function, caller, case)])


def each_thread_gets_its_answer(function: Function, caller: Caller, case: Case) -> Evidence:
    """Of two calls in two threads, each of which goes on where the other stopped, both return what they do alone.

    The two share nothing: neither states nor weights, nor options that can be others for weights of the same shapes.
    """
    weights = {name: w / 2 for name, w in case.weights.items()}
    other = replace(elsewhere(case), config=otherwise(case.config, caller.subject.not_offered), weights=weights)
    shape = function.shape(case)
    alone, other_alone = (caller.answer(function.name, one) for one in (case, other))
    interrupted, meanwhile, ran = answered_while_another_runs(caller, function.name, case, other, shape)
    exact = torch.zeros(())
    return judge(
        *(
            Comparison("answer while another thread calls = answer alone", answer, alone, exact)
            for answer in interrupted
        ),
        *(
            Comparison("answer to a call during another = answer alone", answer, other_alone, exact)
            for answer in meanwhile
        ),
        telling=ran and not torch.equal(alone, other_alone),
    )


@dataclass(frozen=True)
class OfAllFunctions(Over):
    """Cases of a block, whose parts are the questions to all functions that there are."""

    def emptied(self, absent: Iterable[str]) -> str | None:  # noqa: ARG002
        return None

    def scattered(self, offer: Offer, seed: int) -> Case:
        space = offer.within(self.space)
        # without an activation there is no MLP to ask either; without the positions asked for there are none
        usual = {**{name: values[0] for name, values in self.space.choices.items()}, "position": "none"}
        choices = {name: values or (usual[name],) for name, values in space.choices.items()}
        return scattered_case(replace(space, choices=choices), seed)


def _longer(case: Case) -> Case:
    """A case with every row of this one twice."""
    return case.with_states(lambda states: torch.cat((states, states)))


_SIZES = {"B": (2,), "J": (3,), "D": (4,), "K": (2,), "R": (2,), "M": (3,)}  # one shape, whatever the options


def first_uses_leave_settings_alone(caller: Caller, case: Case) -> Evidence:
    """Each option is met for the first time in this process, and no setting is changed and no generator seeded."""
    offered = [function for function in EVERY if function.name in caller.functions]
    # a block and decoding only where nothing simpler meets their options
    plain = [function for function in offered if not function.starts_at_the_memory] or offered
    return settings_are_left_alone([_FirstUse(function, caller, case) for function in plain])


@dataclass(frozen=True)
class _FirstUse(FunctionCall):
    """Calls of one function that meet every value of every option."""

    def changes(self) -> tuple[list[str], list[str]]:
        offer = Offer(frozenset(self.caller.subject.not_offered), kind=self.caller.kind)
        space = offer.within(mixed(self.function.layer, sizes=_SIZES, textures=("plain",)))
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

"""A call depends on nothing besides its arguments: not on other calls, earlier or concurrent, and on no setting."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.meanwhile import answered_while_another_runs
from cemverify.conformance.oracle.evidence import Compared, Comparison, Evidence, reworded, together
from cemverify.conformance.oracle.functions import EVERY, Function
from cemverify.conformance.properties.base import Offer
from cemverify.conformance.properties.derivatives import SMOOTH, products_are_right
from cemverify.conformance.properties.explanations import REPEATABLE, SETTINGS_KEPT, UNMOVED
from cemverify.conformance.properties.function_calls import (
    settings_are_left_alone,
    surroundings_change_no_answer,
    twice_gives_the_same,
)
from cemverify.conformance.properties.functions import (
    LONG_ROW,
    MOVES,
    FunctionCall,
    changes,
    contract_claim,
    elsewhere,
    lengthened,
    lower_dtypes,
    of_all,
)
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.contexts import nearly, otherwise
from cemverify.conformance.questions.spaces import mixed, scattered_case


@of_all(
    "first-calls",
    claim="The first answer of each function in a new process is right, and so is one after many others.",
    formula="the first call in a process, and a later one in another shape = the golden answer",
    why="What is set up lazily, such as a table of positions, may be wrong at first or frozen at the first shape.",
    space=mixed("block", steps=(2, 3), textures=("plain",)),
    premise="no right answer is that of a layer that does nothing",
    floor=0.5,
)
def first_is_as_good_as_later(caller: Caller, case: Case) -> Evidence:
    """The first call of each function in a process, and one after several others, return the right answer.

    So does one with nearly the same options, which a cache for rounded options would spoil.
    """
    parts = _parts(caller, case)
    first = [caller.answer(function.name, part) for function, part in parts]
    for other in (elsewhere, _longer, elsewhere):
        for function, part in parts:
            caller.answer(function.name, other(part))
    evidences = []
    for (function, part), answer in zip(parts, first, strict=True):
        name, later = function.name, caller.answer(function.name, part)
        evidences += [
            function.evidence(claim, got, part, caller.dtype)
            for claim, got in (
                (Compared.ANSWER(f"first answer of {name} = right answer", name), answer),
                (Compared.LATER(f"answer of {name} after other calls = right answer", name), later),
            )
        ]
        if not caller.kind.compiles:
            near = replace(part, config=nearly(part.config, caller.subject.not_offered))
            text = f"answer of {name} with nearly the same options = right answer"
            claim = Compared.EDITED(text, f"options of {name}")
            evidence = function.evidence(claim, caller.answer(name, near), near, caller.dtype)
            evidences.append(replace(evidence, telling=True))  # the other calls decide whether the example is telling
    return together(evidences, all)


_POSITIONS = mixed("block", SMOOTH, steps=(1, 2), textures=("plain",), tokens=3, rows=2)


@of_all(
    "training-after-other-uses",
    claim="Gradients are right after calls of the same shapes in inference mode and in a lower dtype.",
    formula="v^T dF/dw after F in inference mode, and after F in bfloat16, at the same shapes = golden",
    why="A model is evaluated before it is trained. Masks, slopes and angles that were kept from an evaluation "
    "cannot be saved for a backward pass, or have the precision of another dtype.",
    # angles are cached most often, and a lower dtype spoils them most
    space=replace(_POSITIONS, choices={**_POSITIONS.choices, "position": ("rotary",)}),
    needs={"gradients"},
    premise="the products with respect to all arrays are not zero",
    floor=0.3,
)
def training_follows_other_uses(caller: Caller, case: Case) -> Evidence:
    """Gradients after each function was called in inference mode and in a lower dtype, at the same shapes.

    The very first call is both, so that whatever is cached for these shapes is made there.
    """
    lower = [caller.dtype, *lower_dtypes(caller)][-1]
    evidences = []
    for function, part in _parts(caller, case):
        for dtype in (lower, caller.dtype):
            FunctionCall(function, caller.at(dtype), part).answer_within("in inference mode")
        caller.at(lower).answer(function.name, part)
        trained = products_are_right(caller, part, function)
        compared = [
            replace(c, claim=reworded(c.claim, f"{function.name} after other uses: {c.claim}", function.name))
            for c in trained.comparisons
        ]
        # an energy reads neither the norm's gain nor P
        evidences.append(Evidence.of(*compared, telling=trained.telling or function.is_energy))
    return together(evidences, all)


def _parts(caller: Caller, case: Case) -> list[tuple[Function, Case]]:
    """Each function's question from a block's case; without an activation, only attention's functions have one."""
    lacking = f"activation:{case.config.mlp.activation}" in caller.subject.not_offered  # type: ignore[union-attr]
    offered = [f for f in EVERY if f.name in caller.functions and not (lacking and f.layer != "attention")]
    return [(f, f.question(case if f.layer == "block" else case.part(f.layer), caller.dtype)) for f in offered]


@contract_claim(
    "determinism",
    claim="The same call returns the same bits, whatever was called in between.",
    **REPEATABLE,
    premise="the call in between returns something else",
    floor=0.5,
    once=True,
)
def repeats_its_bits(function: Function, caller: Caller, case: Case) -> Evidence:
    """The same call returns the same bits. A third of the rows exceed a tile, with a much longer call in between."""
    if case.turn(3) == 0 and function.name != "decode" and not caller.kind.compiles:
        case = lengthened(case, LONG_ROW, case.h.shape[0])
    return twice_gives_the_same([FunctionCall(function, caller, case)])


@contract_claim(
    "threads",
    claim="A call returns the same while another thread makes one, and so does that one.",
    formula="two calls in two threads = each call alone",
    why="Servers and data loaders call from several threads; state that calls share mixes their answers.",
    premise="the other call began during the first, and returns something else",
    once=True,
    needs={"threads"},
)
def each_thread_gets_its_answer(function: Function, caller: Caller, case: Case) -> Evidence:
    """Two calls in two threads, which take turns in running, both return what they return alone.

    The two share nothing: neither states nor weights, nor options that can differ for weights of the same shapes.
    """
    weights = {name: w / 2 for name, w in case.weights.items()}
    other = replace(elsewhere(case), config=otherwise(case.config, caller.subject.not_offered), weights=weights)
    shape = function.shape(case)
    alone, other_alone = (caller.answer(function.name, one) for one in (case, other))
    interrupted, meanwhile, ran = answered_while_another_runs(caller, function.name, case, other, shape)
    exact = torch.zeros(())
    meanwhile_claim = Compared.ANSWER("answer to a call during another = answer alone", "meanwhile")
    return Evidence.of(
        *(
            Comparison("answer while another thread calls = answer alone", answer, alone, exact)
            for answer in interrupted
        ),
        *(Comparison(meanwhile_claim, answer, other_alone, exact) for answer in meanwhile),
        telling=ran and not torch.equal(alone, other_alone),
    )


def _longer(case: Case) -> Case:
    """A case with every row of this one twice."""
    return case.with_states(lambda states: torch.cat((states, states)))


_SIZES = {"B": (2,), "J": (3,), "D": (4,), "K": (2,), "R": (2,), "M": (3,)}  # one shape, whatever the options


@contract_claim(
    "settings-unchanged",
    claim="A call leaves settings of the process as they are, whatever they are, and seeds no random generator.",
    **SETTINGS_KEPT,
    premise="the call returns an answer",
    every_dtype=True,
    once=True,
    floor=1.0,
)
def settings_stay(function: Function, caller: Caller, case: Case) -> Evidence:
    """A call changes no setting, and seeds no generator."""
    return settings_are_left_alone([FunctionCall(function, caller, case)])


@contract_claim(
    "surroundings",
    claim="Settings of the process change no answer.",
    **UNMOVED,
    premise=MOVES,
    dtype=torch.float64,
)
def answers_are_the_same_anywhere(function: Function, caller: Caller, case: Case) -> Evidence:
    """The answer is the usual one under every setting."""
    return surroundings_change_no_answer([FunctionCall(function, caller, case)])


@of_all(
    "first-uses",
    claim="The first call with an option changes no setting of the process and seeds no random generator.",
    formula=SETTINGS_KEPT["formula"],
    why="What is set up when an option is first used, such as a hook or a self-check, is easily left behind.",
    space=mixed("block", textures=("plain",)),
    premise="the call returns an answer",
    floor=1.0,
)
def first_uses_leave_settings_alone(caller: Caller, case: Case) -> Evidence:
    """Each option is used for the first time in this process, and no setting is changed and no generator seeded."""
    offered = [function for function in EVERY if function.name in caller.functions]
    # a block and decoding only if nothing simpler uses their options
    plain = [function for function in offered if not function.starts_at_the_memory] or offered
    return settings_are_left_alone([_FirstUse(function, caller, case) for function in plain])


@dataclass(frozen=True)
class _FirstUse(FunctionCall):
    """Calls of one function that use every value of every option."""

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
        return reworded(claim, f"{claim} when {self.function.name} is first used", self.function.name)

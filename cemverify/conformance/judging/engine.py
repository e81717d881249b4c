"""The engine: tests an implementation against one property after another, and emits events."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from cemverify.conformance.asking.calls import Caller, traced_anew
from cemverify.conformance.asking.experiments import LayerProcess, Lost, experiment
from cemverify.conformance.implementations.contract import Subject, load
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.faults import Discard, Fault, Hung, NotAnArray, Raised, WrongShape, words
from cemverify.conformance.implementations.origin import Place, display
from cemverify.conformance.judging.aiming import Aiming
from cemverify.conformance.judging.conclusion import conclude, unanswered
from cemverify.conformance.judging.controls import control
from cemverify.conformance.judging.effort import Effort, Explaining
from cemverify.conformance.judging.localisation.bench import WrongPart
from cemverify.conformance.judging.localisation.layers import localise_layer, localise_mask
from cemverify.conformance.judging.localisation.localise import localise
from cemverify.conformance.judging.offered import not_offered
from cemverify.conformance.judging.recording import from_plain, save, to_plain
from cemverify.conformance.judging.search import PropertySearch, SearchTally, SuiteBroke, Violation
from cemverify.conformance.judging.verdicts import BACKWARD, TWO_ANSWERS, UNDEFINED, Record, Verdict
from cemverify.conformance.oracle.evidence import Compared, Evidence
from cemverify.conformance.oracle.remembering import remembering
from cemverify.conformance.properties import Offer, Property, by_id
from cemverify.conformance.properties.base import CONTROLS
from cemverify.conformance.questions.black_boxes import Question
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.saving import Saved, Values
from cemverify.conformance.source.reach.summary import Trail
from cemverify.conformance.source.reading.code import OwnCode
from cemverify.conformance.source.reading.functions import places_of
from cemverify.processes.time_limits import CoreBudget

# properties of calls, whatever these return: no wrong part of a formula explains why one is violated
_NO_ANSWERS = ("inputs-unchanged", "settings-unchanged", "settings", "dtype")
_CLOSE = 1e-7  # a solver's tolerance at which differences of its answers are telling
_DRAWN = 8  # questions that are drawn to compare the lines that they run
_MOST_WEIGHTS = 2**22  # attention weights times features, in cases with which the wrong part is looked for


def judge_property(
    subject: Subject,
    property_: Property,
    effort: Effort,
    layer_process: LayerProcess | None = None,
    aiming: Aiming | None = None,
    explaining: Explaining | None = None,
    ran: Callable[[], Trail] | None = None,
    code: OwnCode = OwnCode(),  # noqa: B008 - it is frozen
) -> Record:
    """Searches for a counterexample to one property and returns the record.

    If fewer examples than usual are requested and too few of them are telling, it is tested again with twice as many.

    Args:
        explaining: the time left for explaining violations, of which it takes some; unlimited by default.
        layer_process: the process in which the subject's functions are, if that is not this one.
        aiming: what is known about its code, if questions around the numbers in it are wanted.
        ran: returns what ran of its code since the last call of `ran`, if calls are recorded. code: the code itself.
    """
    started = time.monotonic()
    caller = Caller(subject, property_.dtype or effort.dtype, effort.device, layer_process)
    budget, explaining = CoreBudget(effort.seconds, lambda: caller.processes), explaining or Explaining()
    search = PropertySearch(caller, property_, budget, aiming, explaining)
    record = unanswered(property_)
    try:
        with remembering():  # for the controls, and for questions that are judged again while a violation is shrunk
            record = _asked(search, effort)
            while _too_little_told(record, search.tally) and effort.examples < Effort.examples:
                effort = replace(effort, examples=min(2 * effort.examples, Effort.examples))
                search.tally = SearchTally()
                record = _asked(search, effort)
            if record.verdict == Verdict.HOLDS:
                record = _against_mutants(record, search, effort)
            elif record.verdict == Verdict.INCONCLUSIVE:
                record = _advised(record, subject)
            elif record.verdict == Verdict.VIOLATED and effort.shrink and search.tally.violation is not None:
                record = _explained(_or_meant(record, subject), search, search.tally.violation)
                if ran is not None:
                    record = _with_lines(record, search, search.tally.violation, ran, code)
    except SuiteBroke as broke:
        record = replace(record, reason=str(broke))
    except Exception as error:  # while drawing, shrinking or trying the controls: the suite's fault
        verdict = Verdict.VIOLATED if record.verdict == Verdict.VIOLATED else Verdict.SUITE_ERROR
        record = replace(record, verdict=verdict, reason=f"the suite itself failed: {words(error)}")
    explaining.left -= 0.0 if search.after is None else search.after.spent()
    return replace(record, seconds=time.monotonic() - started)


def _asked(search: PropertySearch, effort: Effort) -> Record:
    """The record after one search, and after the trivial controls."""
    search.look(effort)
    record = conclude(search.property, search.tally, effort.seconds)
    return _against_controls(record, search) if record.verdict == Verdict.HOLDS else record


def _too_little_told(record: Record, tally: SearchTally) -> bool:
    """Whether a property is undecided only because too few examples could have exposed a wrong layer."""
    return record.verdict == Verdict.INCONCLUSIVE and not (tally.violation or tally.flaky or tally.cut_short)


def judge_again(
    subject: Subject,
    property_: Property,
    question: Any,
    dtype: torch.dtype,
    device: str,
    layer_process: LayerProcess | None = None,
) -> Record:
    """Judges one saved question: violated, holds, or inconclusive, for instance if it is another property's."""
    started = time.monotonic()
    if (misfit := _misfit(property_, question, dtype)) is not None:
        return replace(unanswered(property_), verdict=Verdict.INCONCLUSIVE, reason=misfit)
    search = PropertySearch(Caller(subject, dtype, device, layer_process), property_, CoreBudget(math.inf))
    record = unanswered(property_)
    try:
        search.look_at(question)
    except SuiteBroke as broke:
        if property_.stated_in is not None:
            return replace(record, reason=str(broke))
        return replace(record, verdict=Verdict.INCONCLUSIVE, reason=f"{_MISFIT} ({broke})")
    search.tally.telling = search.tally.examples  # nothing is more telling than that it was violated once
    return replace(conclude(property_, search.tally), seconds=time.monotonic() - started)


_MISFIT = "what was saved is no question of this property: its file was edited, or saved by another version"


def _misfit(property_: Property, question: Any, dtype: torch.dtype) -> str | None:
    """Why a saved question does not fit the property: the reference, which is right, returns nothing to compare.

    None if it does, or if the reference cannot be tested with the property.
    """
    if property_.stated_in is not None:  # its check may be the wrong one
        return None
    if property_.kind != "CEM implementation":
        return None if isinstance(question, Question) else f"{_MISFIT} (it holds a {type(question).__name__})"
    right = load("reference")
    if not_offered(property_, right.not_offered, dtype) is not None:
        return None
    try:
        property_.check(Caller(right, dtype), question)
    except Discard:
        return None
    except Exception as error:  # a fault of the reference, or of the check
        return f"{_MISFIT} ({words(error)})"
    return None


def _advised(record: Record, subject: Subject) -> Record:
    """The record, with what would make a solver's examples telling if too few are."""
    tolerance = subject.step.tolerance if isinstance(subject, EnergyLayer) else None
    if (
        tolerance is None
        or tolerance <= _CLOSE
        or not record.examples
        or record.telling >= record.floor * record.examples
    ):
        return record
    accuracy = f"its answers are known only to within its tolerance of {tolerance:g}"
    return replace(record, reason=f"{record.reason}; {accuracy}: let it stop at {_CLOSE:g}, and declare that")


def _or_meant(record: Record, subject: Subject) -> Record:
    """The record, with how to declare that tokens read each other, if a layer without memory was found to do it."""
    if record.name != "own-state" or not isinstance(subject, EnergyLayer) or subject.memories:
        return record
    meant = "tokens read each other: if that is meant, declare memory=PRESENT_STATE or coupled=True"
    return replace(record, reason=f"{record.reason}; {meant}")


def _against_controls(record: Record, search: PropertySearch) -> Record:
    """The record, inconclusive if a trivial implementation passes the latest telling examples: it proves nothing."""
    examples = list(search.tally.latest)[::-1]  # the scattered ones first, which are generic
    outcomes = {}
    try:
        for name in sorted(search.property.controls):
            failed = any(_control_fails(search.caller, search.property, name, question) for question in examples)
            outcomes[name] = "failed" if failed else "passed"
    except Lost as lost:
        if not isinstance(lost.fault, Hung):
            raise
        # a whole check runs there at once, and each of its calls may be slow
        search.tally.cut_short = True
        return replace(record, verdict=Verdict.INCONCLUSIVE, reason=f"trivial implementations: {lost.fault}")
    record = replace(record, controls=outcomes)
    if passed := [name for name, outcome in outcomes.items() if outcome == "passed"]:
        listed = ", ".join(f"{name} ({CONTROLS[name]})" for name in passed)
        reason = f"trivial implementations pass too, on {len(examples)} of these examples: {listed}"
        return replace(record, verdict=Verdict.INCONCLUSIVE, reason=reason)
    return record


def _against_mutants(record: Record, search: PropertySearch, effort: Effort) -> Record:
    """The record, inconclusive if a mutant that was given with the property does not violate it."""

    def checked(caller: Caller, question: Any) -> Evidence:
        if search.caller.layer_process is not None:
            # a sign of life: nothing else is heard from this process meanwhile
            search.caller.layer_process.asking(question)
        return search.property.check(caller, question)

    for name, mutant in search.property.mutants.items():
        caller = Caller(mutant, search.caller.dtype)
        absent = not_offered(search.property, mutant.not_offered, caller.dtype)
        if absent is not None:
            return _toothless(record, name, f"is not asked, as it does not offer {absent.reason}")
        tried = PropertySearch(caller, replace(search.property, check=checked), search.budget)
        try:
            tried.look(replace(effort, shrink=False))
        except SuiteBroke as broke:
            return _toothless(record, name, f"cannot be judged: {broke}")
        violation = tried.tally.violation
        if violation is None:
            cut = ", before the time was up" if tried.tally.cut_short else ""
            return _toothless(record, name, f"passes {tried.tally.examples} examples{cut}")
        if violation.fault is not None:
            return _toothless(record, name, f"gives no answer to compare: {violation.fault}")
        record = replace(record, controls={**record.controls, f"mutant: {name}": "failed"})
    return record


def _toothless(record: Record, name: str, outcome: str) -> Record:
    reason = f"its mutant {name!r} {outcome}; a property proves something only if its mutants violate it"
    controls = {**record.controls, f"mutant: {name}": "passed"}
    return replace(record, verdict=Verdict.INCONCLUSIVE, reason=reason, controls=controls)


def _control_fails(caller: Caller, property_: Property, name: str, question: Any) -> bool:
    if isinstance(caller.subject, EnergyLayer) and caller.layer_process is not None:
        # all functions but one stay its own
        return bool(_layers_control_fails(caller, property_.id, property_.stated_in, name, question))
    return _fails(control(name, replace(caller, layer_process=None)), property_, question)


@experiment(calls=2)
def _layers_control_fails(caller: Caller, property_id: str, stated_in: str | None, name: str, question: Any) -> bool:
    return _fails(control(name, caller), by_id(property_id, stated_in), question)


def _fails(caller: Caller, property_: Property, question: Any) -> bool:
    try:
        return not property_.check(caller, question).worst.margin <= 1
    except Fault:
        return True
    except Discard:
        return False


def _explained(record: Record, search: PropertySearch, violation: Violation) -> Record:
    """A violation with the part that is wrong, and with everything needed to repeat it."""
    try:
        part = _located(search, violation) if search.may_explain() else None
        beside = search.property.family == "rejection" or search.property.name in _NO_ANSWERS
        if part is not None and part.name in UNDEFINED and (others := search.tally.examples - 1):
            part = replace(part, because=f"{part.because}; at {others} other examples nothing is violated")
        if part is not None and (part.name == TWO_ANSWERS or not beside):
            record = replace(record, part=part.name, because=part.because)
    except (Exception, Lost) as error:  # what was found still stands
        record = replace(record, because=f"looking for the part failed: {words(error)}")
    with suppress(Lost):
        record = replace(record, saved=recorded(search.caller, search.property, violation.question))
    return record


def _with_lines(
    record: Record, search: PropertySearch, violation: Violation, ran: Callable[[], Trail], code: OwnCode
) -> Record:
    """The record with the functions that the smallest case runs, and the first line that only failing cases run.

    A line is named only if passing cases run other lines of its file, and if there is time to run such cases.
    """
    subject = search.caller.subject
    offer = Offer(frozenset(subject.not_offered), subject if isinstance(subject, EnergyLayer) else None)
    drawn = (search.property.questions.scattered(offer, seed) for seed in range(_DRAWN))
    trails: dict[bool, list[Trail]] = {True: [], False: []}
    ran()
    try:
        if search.caller.kind.compiles:
            traced_anew(search.caller)
        others = chain(search.tally.latest, (q for q in drawn if q is not None))
        alone = search.caller.kind.compiles or not search.may_explain()
        for question in (violation.question, *(() if alone else others)):
            trails[_fails(search.caller, search.property, question)].append(ran())
    except (Exception, Lost):
        return record
    if not trails[True]:
        return record
    smallest = trails[True][0].lines
    record = replace(record, ran=places_of(code, smallest))
    if search.caller.kind.compiles:  # code that is not traced anew shows no lines
        return record
    for path, lines in smallest.items():
        right = {line for trail in trails[False] for line in trail.lines.get(path, ())}
        wrong = lines.intersection(*(trail.lines.get(path, ()) for trail in trails[True]))
        if wrong & right and wrong - right:
            return replace(record, line=Place(display(path), min(wrong - right)))
    return record


def recorded(caller: Caller, property_: Property, question: Any) -> Saved | None:
    """The question with the calls that its check makes; None if that cannot be saved."""
    if caller.layer_process is None:
        return save(caller, property_.check, question)
    try:
        case = _recorded_case(caller, property_.id, property_.stated_in, question)  # where each call can be seen
        return None if case is None else from_plain(*case)
    except Exception:  # that process may send anything
        return None


@experiment(calls=2)
def _recorded_case(
    caller: Caller, property_id: str, stated_in: str | None, question: Any
) -> tuple[str, dict[str, Values]] | None:
    saved = save(caller, by_id(property_id, stated_in).check, question)
    return None if saved is None else to_plain(saved)


def _few_weights(case: Case) -> bool:
    """Whether dozens of experiments on the case take only seconds, judged by its attention weights times features."""
    J, D = case.h.shape[1:]
    return J * J * case.sizes.get("K", 1) * D <= _MOST_WEIGHTS


def _located(search: PropertySearch, failure: Violation) -> WrongPart | None:
    """The wrong part, from the smallest case, or from the worst one if the smallest does not show it.

    A call that raised, or returned no array of the right shape, shows by itself what is wrong.
    """
    if isinstance(failure.fault, Raised | NotAnArray | WrongShape):
        return None
    numbers = [] if search.aiming is None else [number.value for number in search.aiming.code.numbers]
    for violation in filter(None, (failure, search.tally.largest)):
        for case in (violation.tested, violation.question):
            part = None
            if isinstance(case, Case) and _few_weights(case):
                part = localise(search.caller, case) or _backward_of_weights(violation.evidence)
            elif isinstance(case, Question):
                part = localise_layer(search.caller, case, numbers)
            if part is not None:
                return part
            if isinstance(case, Question) and (beside := _BESIDE_THE_UPDATE.get(search.property.id)) is not None:
                return beside(search.caller, failure)
    return None


def _backward(caller: Caller, violation: Violation) -> WrongPart | None:
    """For a layer whose update is right: the arrays in which its derivatives are not those of its values."""
    agree = by_id(_AGREE)
    if agree.needs & caller.subject.not_offered.keys():
        return None
    several = range(1 + len(getattr(caller.subject, "parameters", ())) // 4)  # a question has only a few parameters
    questions = [replace(violation.question, seed=violation.question.seed + 4 * i) for i in several]
    with suppress(Fault, Discard):
        compared = [c for q in questions for c in agree.check(caller, q).comparisons]
        names = sorted({c.key.of for c in compared if not c.margin <= 1})
        told = "its values are not judged" if "energy" in caller.subject.not_offered else "the update is right"
        because = f"{told}, but its gradient with respect to {', '.join(names)} differs from finite differences"
        return WrongPart(BACKWARD, because) if names else None
    return None


def _backward_of_weights(evidence: Evidence | None) -> WrongPart | None:
    """For a layer whose output was right when gradients were recorded: the arguments whose gradient is wrong."""
    wrong = [] if evidence is None else [c.key for c in evidence.comparisons if not c.margin <= 1]
    names = sorted({key.of for key in wrong})
    if not names or any(key.kind != Compared.PRODUCT for key in wrong):
        return None
    return WrongPart(BACKWARD, f"the output is right, but its gradient with respect to {', '.join(names)} is wrong")


def _untied(caller: Caller, violation: Violation) -> WrongPart | None:
    """For a layer whose update is right: the parameter on which it depends in another way than its energy does."""
    if violation.evidence is None or {"energy", "gradient-step"} & caller.subject.not_offered.keys():
        return None
    if (part := _backward(caller, violation)) is not None:
        return part
    name = violation.evidence.worst.key.of
    because = (
        f"the update is right at these values, but depends on {name} differently from the energy's gradient: a "
        "weight may be stored twice instead of tied, or may be missing from the energy (for a learned step size a, "
        "declare step_size=a, the tensor itself)"
    )
    return WrongPart("untied parameters", because)


_AGREE = "training/layer/derivatives-agree"
# What is examined if the update itself is right.
_BESIDE_THE_UPDATE: Mapping[str, Callable[[Caller, Violation], WrongPart | None]] = {
    "structure/layer/mask": lambda caller, _: localise_mask(caller),
    "training/layer/parameters": _untied,
    "training/layer/states": _backward,
    "training/layer/reference": _backward,
    _AGREE: _backward,
}

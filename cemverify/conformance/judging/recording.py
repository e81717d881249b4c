"""The calls that a check made to an implementation, with the actual and the expected outputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.experiments import experiment
from cemverify.conformance.implementations.arrays import is_traced
from cemverify.conformance.implementations.contract import Subject
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.faults import Discard, Fault, NotAnArray, words
from cemverify.conformance.implementations.features import PREFILL
from cemverify.conformance.oracle.budgets import energy_budget, output_budget, unit_roundoff
from cemverify.conformance.oracle.evidence import Evidence
from cemverify.conformance.oracle.golden import energies_at, golden
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.saving import Packing, Saved, SavedCall, Values, restored

_MOST_CALLS = 64
_MOST_NUMBERS = 2_000_000
_MOST_WEIGHTS = 1_000


@dataclass(frozen=True)
class Recorded:
    """One call."""

    function: str  # its name
    arguments: Mapping[str, Any]  # by name, as before the call; x, h, weights or x, memory
    config: Any  # of a CEM implementation's call
    answer: Tensor | None  # None if there was none
    fault: str | None  # what it did instead
    changed: bool  # whether the call changed its arrays


def _traced(arguments: Sequence[Any]) -> bool:
    """Whether the arguments are stand-ins for arrays: mapped, differentiated by a transform, or compiled."""
    return torch.compiler.is_compiling() or is_traced(arguments[0])


@dataclass
class CallRecorder:
    """The calls of an implementation, and its answers."""

    calls: list[Recorded] = field(default_factory=list)
    in_words: bool = True  # whether a script can make the calls: not with named tuples, masks or noise

    def subject(self, subject: Subject) -> Subject:
        """An implementation whose calls are recorded."""
        if isinstance(subject, EnergyLayer):
            energy = None if subject.energy is None else self._noting_layer("energy", subject.energy)
            return replace(subject, update=self._noting_layer("update", subject.update), energy=energy)
        functions = {name: self._noting(name, function) for name, function in subject.functions.items()}
        if PREFILL in functions:
            functions[PREFILL] = self._unwritten(subject.functions[PREFILL])
        return replace(subject, functions=functions)

    def _unwritten(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function whose arguments a script cannot write down: a cache may be anything."""

        def called(*arguments: Any) -> Any:
            self.in_words = False
            return function(*arguments)

        return called

    def _noting_layer(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        plain = self._noting(name, function)

        def noted(*arguments: Any, **more: Any) -> Any:
            if more or any(isinstance(argument, tuple) for argument in arguments):
                self.in_words = False  # a script calls with plain positional arrays
                return function(*arguments, **more)
            return plain(*arguments)

        return noted

    def _noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            if _traced(arguments):  # these have no numbers to write down
                return function(*arguments)
            config = None if name in ("update", "energy") else arguments[-1]
            before = _named(name, arguments)
            try:
                returned = function(*arguments)
            except BaseException as error:
                self.calls.append(Recorded(name, before, config, None, words(error), changed=False))
                raise
            answer, fault = None, None
            try:
                answer = as_tensor(returned)
            except Fault as wrong:
                fault = str(wrong)
            changed = not _same(before, _named(name, arguments))
            self.calls.append(Recorded(name, before, config, answer, fault, changed))
            return returned

        return noted


def expected_answer(call: Recorded, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
    """The right answer to a call of a CEM implementation, and how far off roundoff may be; None if unknown.

    A property may call in another dtype than the one given: then the roundoff of the call's arrays counts if greater.
    """
    if call.function in ("update", "energy"):
        return None
    try:
        h = call.arguments["h"]
        dtype, h = max(dtype, h.dtype, key=unit_roundoff), h.to(torch.float64)
        x = call.arguments["x"].to(torch.float64) if "x" in call.arguments else h
        case = Case(call.config, x, h, {name: w.to(torch.float64) for name, w in call.arguments["weights"].items()})
        if call.function.endswith("_energy"):
            expected, budget = energies_at(case, x), energy_budget(case, x, dtype)
        else:
            expected, budget = golden(case), output_budget(case, dtype)
    except Exception:  # bad input, which some properties give, has no right answer
        return None
    return (expected, budget) if bool(budget.isfinite().all() and expected.isfinite().all()) else None


def save(caller: Caller, check: Callable[[Caller, Any], Evidence], question: Any) -> Saved | None:
    """The question with the calls that its check makes, or None if it cannot be saved."""
    packing = Packing()
    try:
        tree, linear = packing.tree(question), None
        if isinstance(caller.subject, EnergyLayer):
            recorded, linear = _of_a_layer(caller, check, question, packing)
        else:
            recorder = _recorded(caller, check, question)[0]
            recorded = recorder.calls if recorder.in_words else []
        calls = [_packed(call, packing, caller.dtype) for call in recorded[:_MOST_CALLS]]
        parameters = _parameters(caller, packing)
    except TypeError:
        return None
    if sum(array.size for array in packing.arrays.values()) > _MOST_NUMBERS:
        return None
    dtype = str(caller.dtype).removeprefix("torch.")
    return Saved(
        tree, dtype, caller.device, caller.subject.arrays, packing.arrays, calls, linear, parameters=parameters
    )


def _parameters(caller: Caller, packing: Packing) -> dict[str, str]:
    """The numbers of a layer's parameters: another process may draw others."""
    declared = caller.subject.parameters if isinstance(caller.subject, EnergyLayer) else {}
    held = {name: value for name, value in declared.items() if isinstance(value, Tensor)}
    return {name: packing.add(f"parameter.{name}", value.detach()) for name, value in held.items()}


@experiment()
def restore_parameters(caller: Caller, values: dict[str, Tensor]) -> None:
    """Gives a layer's parameters the saved numbers, in place.

    Raises:
        NotAnArray: it has no parameter of that name and shape.
    """
    declared = caller.subject.parameters if isinstance(caller.subject, EnergyLayer) else {}
    for name, value in values.items():
        held = declared.get(name)
        if not isinstance(held, Tensor) or held.shape != value.shape:
            raise NotAnArray(f"it has no parameter {name} of shape {tuple(value.shape)}, as when the case was saved")
        with torch.no_grad():
            held.copy_(value)


def to_plain(saved: Saved) -> tuple[str, dict[str, Values]]:
    """A saved case as JSON and arrays, which travel between processes."""
    rest = {f.name: getattr(saved, f.name) for f in fields(saved) if f.name not in ("arrays", "calls")}
    return json.dumps({**rest, "calls": [asdict(call) for call in saved.calls]}), dict(saved.arrays)


def from_plain(words_: str, arrays: Mapping[str, Values]) -> Saved:
    """The saved case.

    Raises:
        Exception: of some kind, if it is damaged.
    """
    rest = json.loads(words_)
    calls = [SavedCall(**call) for call in rest.pop("calls")]
    for tree in (rest["question"], *(call.arguments for call in calls), *(call.config for call in calls)):
        restored(tree, arrays)
    return Saved(**rest, arrays=arrays, calls=calls)


def _recorded(
    caller: Caller, check: Callable[[Caller, Any], Evidence], question: Any
) -> tuple[CallRecorder, Evidence | None]:
    recorder, evidence = CallRecorder(), None
    with suppress(Fault, Discard, AssertionError):
        evidence = check(replace(caller, subject=recorder.subject(caller.subject)), question)
    return recorder, evidence


def _of_a_layer(
    caller: Caller, check: Callable[[Caller, Any], Evidence], question: Any, packing: Packing
) -> tuple[list[Recorded], dict[str, Any] | None]:
    """The calls of a check of an energy layer, and the relation between their answers that fails, if it is linear.

    Taken by differences, derivatives of the energy are sums of its values, so the check is made with differences. If
    that takes too many calls or finds nothing, only the update is called.
    """
    layer = caller.subject
    assert isinstance(layer, EnergyLayer)
    absent = {**layer.not_offered, "autograd": "a script has the energy's values alone"}
    by_values = replace(caller, subject=replace(layer, not_offered=absent))
    for asking, of_both in ((by_values, True), (caller, False)):
        recorder, evidence = _recorded(asking, check, question)
        if not recorder.in_words:
            return [], None  # a script cannot make the calls
        updates = [call for call in recorder.calls if call.function == "update"]
        recorded = recorder.calls if of_both or not updates else updates
        if evidence is None:
            return recorded, None
        if not evidence.worst.margin <= 1 and len(recorded) <= _MOST_CALLS:
            linear = _linear(asking, check, question, recorded, evidence, packing)
            if linear is not None:
                return recorded, linear
    return recorded, None


def _linear(
    caller: Caller,
    check: Callable[[Caller, Any], Evidence],
    question: Any,
    calls: Sequence[Recorded],
    evidence: Evidence,
    packing: Packing,
) -> dict[str, Any] | None:
    """The worst residual as a sum of answers times weights, found by giving the check other answers.

    None if it is no such sum because the questions themselves depend on the answers.
    """
    answers = [call.answer for call in calls if call.answer is not None]
    if len(answers) < len(calls) or sum(answer.numel() for answer in answers) > _MOST_WEIGHTS:
        return None
    number = max(range(len(evidence.comparisons)), key=lambda i: evidence.comparisons[i].margin)
    comparison = evidence.comparisons[number]
    at = int(comparison.margins().argmax())
    played = _Played(calls)

    def residual(replayed: Sequence[Tensor]) -> float | None:
        played.answers, played.next, played.astray = replayed, 0, False
        try:
            compared = check(replace(caller, subject=played.subject(caller.subject)), question).comparisons[number]
        except (Fault, Discard, IndexError):
            return None
        return None if played.astray else float((compared.got - compared.expected).flatten()[at])

    here = residual(answers)
    if here is None:
        return None
    weights = _weights(answers, residual, here)
    if weights is None:
        return None
    constant = here - sum(float((w * a).sum()) for w, a in zip(weights, answers, strict=True))
    names = [packing.add("weight", weight) for weight in weights]
    budget = float(comparison.budget.expand_as(comparison.got).flatten()[at])
    # the sum has another order than in the check, and its weights are differences
    budget += 1e-9 * sum(float((w * a).abs().sum()) for w, a in zip(weights, answers, strict=True))
    name = comparison.claim
    return {"what": name, "weights": names, "constant": constant, "budget": budget, "relation": comparison.relation}


def _weights(
    answers: Sequence[Tensor], residual: Callable[[Sequence[Tensor]], float | None], here: float
) -> list[Tensor] | None:
    """How much the residual changes with each number of the answers; None if that cannot be told.

    Most numbers do not matter, so many are moved at once, by amounts that do not cancel: if the residual stays to the
    last bit, none of them matters. If it changes, halves are moved, down to single numbers.
    """
    flat = torch.cat([answer.flatten() for answer in answers])  # (N,)
    weights = torch.zeros_like(flat)
    amounts = 0.5 + torch.rand(flat.shape, generator=torch.Generator().manual_seed(0), dtype=flat.dtype)

    def pieces(numbers: Tensor) -> list[Tensor]:
        parts = torch.split(numbers, [answer.numel() for answer in answers])
        return [part.reshape(a.shape).to(a.dtype) for part, a in zip(parts, answers, strict=True)]

    groups = [(0, len(flat))] if len(flat) else []
    while groups:
        start, stop = groups.pop()
        moved = flat.clone()
        moved[start:stop] += 1.0 if stop - start == 1 else amounts[start:stop]
        there = residual(pieces(moved))
        if there == here:
            continue
        if stop - start > 1:
            middle = (start + stop) // 2
            groups += [(start, middle), (middle, stop)]
        elif there is None:
            return None
        else:
            weights[start] = there - here
    return pieces(weights)


@dataclass
class _Played:
    """A black box that replays recorded outputs, and notices if a question differs."""

    calls: Sequence[Recorded]
    answers: Sequence[Tensor] = ()
    next: int = 0
    astray: bool = False

    def subject(self, subject: Subject) -> Subject:
        assert isinstance(subject, EnergyLayer)
        functions = {call.function for call in self.calls}
        if "update" in functions:
            subject = replace(subject, update=partial(self._answer, "update"))
        if "energy" in functions:
            subject = replace(subject, energy=partial(self._answer, "energy"))
        return subject

    def _answer(self, name: str, *arguments: Any) -> Tensor:
        if self.next >= len(self.calls):
            raise NotAnArray("it was asked more than was recorded")
        call = self.calls[self.next]
        self.astray |= call.function != name or not _same(call.arguments, _named(name, arguments))
        self.next += 1
        return self.answers[self.next - 1]


def _packed(call: Recorded, packing: Packing, dtype: torch.dtype) -> SavedCall:
    names: list[str | None] = [None, None, None]
    right = expected_answer(call, dtype)
    if call.answer is not None:
        names[0] = packing.add("answer", call.answer)
    if right is not None:
        names[1], names[2] = packing.add("expected", right[0]), packing.add("budget", right[1])
    return SavedCall(
        call.function,
        packing.tree(call.arguments),
        packing.tree(call.config),
        call.changed,
        call.fault,
        *names,
    )


def _named(name: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Copies of the arrays as torch's, by name."""
    if name in ("update", "energy"):
        return dict(zip(("x", "memory"), map(_copy, arguments), strict=False))
    *states, weights, _ = arguments
    named: dict[str, Any] = dict(zip(("x", "h")[-len(states) :], map(_copy, states), strict=True))
    if len(states) == 2 and states[0] is states[1]:
        named["x"] = named["h"]
    return named | {"weights": {key: _copy(w) for key, w in weights.items()}}


def _copy(array: Any) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach().cpu().clone(memory_format=torch.preserve_format)
    return as_tensor(array)


def _same(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    if before.keys() != after.keys():
        return False
    return all(
        _same(a, after[name])
        if isinstance(a, Mapping)
        else a.shape == after[name].shape and torch.equal(a.nan_to_num(), after[name].nan_to_num())
        for name, a in before.items()
    )

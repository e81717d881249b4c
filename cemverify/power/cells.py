"""The cells of `cemverify power`: what can be tested in an implementation, and measurements of detection power.

A cell is a frozen specification of plain values. Its result consists of plain values too, and depends on the
specification alone, not on the clock or the machine, so any process may compute it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cemverify.conformance.implementations.contract import Implementation, Subject, kind_of, load
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.offered import not_offered
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import Property, by_id, catalogue
from cemverify.console.errors import UsageError
from cemverify.power.code import Code
from cemverify.power.injection import falling_short, inject
from cemverify.power.mutants import Mutant, mutants
from cemverify.power.mutants.base import sound
from cemverify.runs import Cell, algorithm

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
SECONDS = 600.0  # for one property; so long that no run is cut short, which would make results depend on the machine

# relative sizes of faults, descending: 1e-1, 5e-2, 2e-2, 1e-2, ... 1e-15
EPSILONS = (1e-1, *(float(f"{digit}e-{k}") for k in range(2, 16) for digit in (5, 2, 1)))
_BISECTIONS = 6  # about how many runs of a property the search for the smallest takes, for each seed


@dataclass(frozen=True)
class IntroductionCell:
    """What can be tested in an implementation, or, if None, in the mutants as they are."""

    implementation: str | None
    code: Code


@dataclass(frozen=True)
class DetectionCell:
    """How often its property kills a mutant: one run for each seed, with this many examples."""

    mutant: str
    property_id: str
    examples: int
    seeds: tuple[int, ...]
    implementation: str | None
    code: Code


@dataclass(frozen=True)
class FalseAlarmCell:
    """Whether a correct implementation is called wrong: each property with each seed."""

    implementation: str
    properties: tuple[str, ...]
    examples: int
    seeds: tuple[int, ...]
    costly: bool  # whether it runs through a compiler, which takes seconds for each shape
    code: Code


@dataclass(frozen=True)
class SmallestFaultCell:
    """The smallest fault in one place that a property detects with every seed."""

    property_id: str
    dtype: str
    place: str  # "feature", "position" or "row": the update falls short in the last of them
    examples: int
    seeds: tuple[int, ...]
    implementation: str | None
    code: Code


Measurement = DetectionCell | FalseAlarmCell | SmallestFaultCell


def cell_of(measurement: IntroductionCell | Measurement) -> Cell:
    """The cell that computes a measurement."""
    label, seconds = _expected(measurement)
    if isinstance(measurement, IntroductionCell):
        return introduce.cell(measurement, cost=seconds, label=label)
    return measure.cell(measurement, cost=seconds, label=label)


def _expected(measurement: IntroductionCell | Measurement) -> tuple[str, float]:
    """The label of a measurement in progress lines, and its rough time in seconds."""
    match measurement:
        case IntroductionCell():
            return f"{measurement.implementation or 'the mutants'}: what can be asked", 2.0
        case DetectionCell():
            return f"{measurement.mutant}, {measurement.examples} examples", 0.1 * len(measurement.seeds)
        case FalseAlarmCell():
            first, *more = measurement.properties
            seconds = (5.0 if measurement.costly else 0.1) * (1 + len(more)) * len(measurement.seeds)
            return f"{measurement.implementation}: {first} and {len(more)} more", seconds
        case SmallestFaultCell():
            where = f"in {measurement.dtype}, in a {measurement.place}"
            label = f"smallest fault that {measurement.property_id} detects {where}"
            return label, 0.2 * _BISECTIONS * len(measurement.seeds)


@algorithm("cemverify.power.cells:introduce", introduction=1)
def introduce(cell: IntroductionCell) -> dict[str, Any]:
    """Finds out what can be tested.

    Returns:
        inapplicable: by mutant id, why the fault cannot be measured here. properties: the ids that apply.
    """
    cell.code.check(cell.implementation)
    try:
        subject = _correct(cell.implementation)
    except LoadError as error:
        raise UsageError(str(error)) from error
    reasons = ((m.id, _inapplicable(m, subject, as_it_is=cell.implementation is None)) for m in mutants())
    return {
        "inapplicable": {id_: reason for id_, reason in reasons if reason is not None},
        "properties": [p.id for p in offered_to(subject)],
    }


@algorithm("cemverify.power.cells:measure", measurement=1)
def measure(cell: Measurement) -> dict[str, Any]:
    """Takes one measurement of detection power."""
    cell.code.check(cell.implementation)
    match cell:
        case DetectionCell():
            return {"runs": _detection(cell)}
        case FalseAlarmCell():
            return {"runs": _false_alarms(cell)}
        case SmallestFaultCell():
            return {"epsilon": _smallest(cell)}


def offered_to(subject: Subject) -> list[Property]:
    """The properties that apply to an implementation."""
    kind = kind_of(subject)
    return [p for p in catalogue() if p.kind == kind and not_offered(p, subject.not_offered, torch.float64) is None]


def _inapplicable(mutant: Mutant, subject: Subject, *, as_it_is: bool) -> str | None:
    """Why a mutant's fault cannot be measured; None if it can."""
    property_ = by_id(mutant.property)
    if as_it_is:
        try:
            absent = not_offered(property_, mutant.subject().not_offered, torch.float64)
        except LoadError as error:
            return str(error)
        return None if absent is None else absent.reason or ""
    if property_.kind != kind_of(subject):
        return "the fault belongs to another kind of implementation"
    if missing := sorted(mutant.needs & subject.not_offered.keys()):
        return f"not offered: {', '.join(missing)}"
    if (absent := not_offered(property_, subject.not_offered, torch.float64)) is not None:
        return absent.reason or ""
    try:
        inject(mutant, subject)
    except (ValueError, LoadError) as error:
        return str(error)
    return None


def _detection(cell: DetectionCell) -> list[dict[str, Any]]:
    """Per seed: whether the mutant was killed for its cause, after how many examples, and the reason given."""
    property_, mutant = by_id(cell.property_id), next(m for m in mutants() if m.id == cell.mutant)
    runs = []
    for seed in cell.seeds:
        # new each time, because some faults remember earlier calls
        faulty = mutant.subject() if cell.implementation is None else inject(mutant, load(cell.implementation))
        record = _judge(faulty, property_, cell.examples, seed)
        killed = mutant.is_killed(record)
        runs.append({"seed": seed, "killed": killed, "examples": record.examples, **_outcome(record)})
    return runs


def _false_alarms(cell: FalseAlarmCell) -> list[dict[str, Any]]:
    """Per property and seed: whether a correct implementation was called wrong."""
    subject = load(cell.implementation)
    return [
        {"property": id_, "seed": seed, **_outcome(_judge(subject, by_id(id_), cell.examples, seed))}
        for id_ in cell.properties
        for seed in cell.seeds
    ]


def _smallest(cell: SmallestFaultCell) -> float | None:
    """The smallest epsilon of the grid that every seed detects, by bisection; None if the largest is not detected."""
    subject, property_ = _correct(cell.implementation), by_id(cell.property_id)
    assert isinstance(subject, Implementation)

    def detected(epsilon: float) -> bool:
        faulty = falling_short(subject, cell.place, epsilon)
        return all(
            _judge(faulty, property_, cell.examples, seed, DTYPES[cell.dtype]).verdict == Verdict.VIOLATED
            for seed in cell.seeds
        )

    if not detected(EPSILONS[0]):
        return None
    seen, unseen = 0, len(EPSILONS)
    while unseen - seen > 1:
        middle = (seen + unseen) // 2
        seen, unseen = (middle, unseen) if detected(EPSILONS[middle]) else (seen, middle)
    return EPSILONS[seen]


def _judge(
    subject: Subject, property_: Property, examples: int, seed: int, dtype: torch.dtype = torch.float64
) -> Record:
    effort = Effort(examples=examples, seed=seed, seconds=SECONDS, dtype=dtype, shrink=False)
    return judge_property(subject, property_, effort)


def _outcome(record: Record) -> dict[str, Any]:
    outcome = {"verdict": str(record.verdict)}
    return outcome | ({"cause": record.cause} if record.cause is not None else {"reason": record.reason})


def _correct(implementation: str | None) -> Subject:
    return sound() if implementation is None else load(implementation)

"""One measurement of detection power: pure functions of a specification, so that any process may take them.

A specification is a mapping of plain values. What is measured is a mapping too, and holds no time, so that the same
specification always gives the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from cemverify.conformance.implementations.contract import Implementation, Subject, load
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property, not_offered
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import Property, catalogue
from cemverify.power.injection import door_of, falling_short, inject
from cemverify.power.mutants import Mutant, mutants
from cemverify.power.mutants.base import sound

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
PLACES = {"structure": ("row", "position")}  # where a family can see it; else in a feature and a position
SECONDS = 600.0  # of one property: a cut-short run would make the measurement depend on the machine

# relative sizes of faults, descending: 1e-1, 5e-2, 2e-2, 1e-2, ... 1e-15
EPSILONS = (1e-1, *(float(f"{digit}e-{k}") for k in range(2, 16) for digit in (5, 2, 1)))

Spec = Mapping[str, Any]


def measure(spec: Spec) -> dict[str, Any]:
    """Takes the measurement that a specification describes."""
    match spec["kind"]:
        case "detection":
            return {"runs": _detection(spec)}
        case "false alarms":
            return {"runs": _false_alarms(spec)}
        case "smallest":
            return {"epsilon": _smallest(spec)}
        case "matrix":
            return {"detected": _matrix(spec)}
    raise ValueError(f"no measurement {spec['kind']!r}")


def introduction(name: str | None) -> dict[str, Any]:
    """What can be asked of an implementation, or of the mutants as they are.

    Returns:
        inapplicable: why a mutant's fault cannot be measured in it, by id. properties: ids that it can be asked.

    Raises:
        LoadError: it cannot be loaded.
    """
    subject = sound() if name is None else load(name)
    inapplicable = {}
    for mutant in mutants():
        property_ = by_id()[mutant.property]
        if name is None:
            unasked = not_offered(property_, mutant.subject().not_offered, torch.float64)
            if unasked is not None:
                inapplicable[mutant.id] = unasked.reason or ""
            continue
        missing = sorted(mutant.needs & subject.not_offered.keys())
        absent = not_offered(property_, subject.not_offered, torch.float64)
        if property_.door != door_of(subject):
            inapplicable[mutant.id] = "the fault is one of another kind of implementation"
        elif missing or absent is not None:
            inapplicable[mutant.id] = _missing(missing, absent)
        else:
            try:
                inject(mutant, subject)
            except ValueError as error:
                inapplicable[mutant.id] = str(error)
    return {"inapplicable": inapplicable, "properties": [p.id for p in offered_to(subject)]}


def _missing(features: Sequence[str], absent: Record | None) -> str:
    if features or absent is None:
        return f"not offered: {', '.join(features)}"
    return absent.reason or ""


def offered_to(subject: Subject, dtype: torch.dtype = torch.float64) -> list[Property]:
    """The properties that it can be asked."""
    door = door_of(subject)
    return [p for p in catalogue() if p.door == door and not_offered(p, subject.not_offered, dtype) is None]


@lru_cache(maxsize=1)
def by_id() -> Mapping[str, Property]:
    """The catalogue by id."""
    return {p.id: p for p in catalogue()}


def _detection(spec: Spec) -> list[dict[str, Any]]:
    """Per seed: whether the mutant was killed for its cause, after how many examples, and what was said."""
    mutant, property_ = _mutant(spec["mutant"]), by_id()[spec["property"]]
    runs = []
    for seed in spec["seeds"]:
        record = _judge(_faulty(mutant, spec["implementation"]), property_, spec["examples"], seed)
        killed = mutant.is_killed(record)
        runs.append({"seed": seed, "killed": killed, "examples": record.examples, **_said(record)})
    return runs


def _false_alarms(spec: Spec) -> list[dict[str, Any]]:
    """Per property and seed: whether a correct implementation was called wrong."""
    subject = load(spec["implementation"])
    return [
        {"property": id_, "seed": seed, **_said(_judge(subject, by_id()[id_], spec["examples"], seed))}
        for id_ in spec["properties"]
        for seed in spec["seeds"]
    ]


def _smallest(spec: Spec) -> float | None:
    """The smallest epsilon of the grid that every seed detects, by bisection; None if not even the largest."""
    subject, property_ = _correct(spec["implementation"]), by_id()[spec["property"]]
    assert isinstance(subject, Implementation)

    def detected(epsilon: float) -> bool:
        faulty = falling_short(subject, spec["place"], epsilon)
        return all(
            _judge(faulty, property_, spec["examples"], seed, DTYPES[spec["dtype"]]).verdict == Verdict.VIOLATED
            for seed in spec["seeds"]
        )

    if not detected(EPSILONS[0]):
        return None
    seen, unseen = 0, len(EPSILONS)
    while unseen - seen > 1:
        middle = (seen + unseen) // 2
        seen, unseen = (middle, unseen) if detected(EPSILONS[middle]) else (seen, middle)
    return EPSILONS[seen]


def _matrix(spec: Spec) -> dict[str, int]:
    """By property: how many of the seeds it called the mutant wrong, for whatever cause."""
    mutant = _mutant(spec["mutant"])
    subject = _faulty(mutant, spec["implementation"])
    return {
        property_.id: sum(
            _judge(_faulty(mutant, spec["implementation"]), property_, spec["examples"], seed).verdict
            == Verdict.VIOLATED
            for seed in spec["seeds"]
        )
        for property_ in offered_to(subject)
    }


def _judge(
    subject: Subject, property_: Property, examples: int, seed: int, dtype: torch.dtype = torch.float64
) -> Record:
    effort = Effort(examples=examples, seed=seed, seconds=SECONDS, dtype=dtype, shrink=False)
    return judge_property(subject, property_, effort)


def _said(record: Record) -> dict[str, Any]:
    said = {"verdict": str(record.verdict)}
    return said | ({"cause": record.cause} if record.cause is not None else {"reason": record.reason})


def _faulty(mutant: Mutant, implementation: str | None) -> Subject:
    """A fresh one each time: some faults remember earlier calls."""
    return mutant.subject() if implementation is None else inject(mutant, load(implementation))


def _correct(implementation: str | None) -> Subject:
    return sound() if implementation is None else load(implementation)


def _mutant(id_: str) -> Mutant:
    return next(mutant for mutant in mutants() if mutant.id == id_)


def chunks(seeds: Sequence[int], size: int) -> Iterator[list[int]]:
    """The seeds, so many at a time."""
    for i in range(0, len(seeds), size):
        yield list(seeds[i : i + size])

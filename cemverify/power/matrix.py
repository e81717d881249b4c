"""The matrix of mutants and properties: which property detects which mutant, from how many examples, with few seeds.

A mutant is put to every property of the functions that its fault may reach. What is known of each pair is a word for
each seed, such as "row4": the fourth row, counted among all examples, was violated; "-" where the property held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from cemverify.catalogue.detection import NOT, Detects
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.contract import Subject, kind_of
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import not_offered
from cemverify.conformance.judging.search import PropertySearch
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.judging.wording import conclude, unanswered
from cemverify.conformance.oracle.remembering import remembering
from cemverify.conformance.properties import Property, catalogue
from cemverify.power.cells import SECONDS, by_id
from cemverify.power.code import Code
from cemverify.power.mutants import Mutant, mutants
from cemverify.processes.time_limits import CoreBudget
from cemverify.runs import Cell, algorithm

_SECONDS = 0.15  # of one property, on average


@dataclass(frozen=True)
class DetectorsCell:
    """Which properties detect a mutant with one seed."""

    mutant: str
    seed: int
    code: Code


def cells(chosen: Sequence[Mutant], seed: int) -> list[Cell]:
    """One cell for each mutant."""
    code = Code.here(None)
    return [
        detect.cell(
            DetectorsCell(mutant.id, seed, code),
            cost=_SECONDS * len(reached(mutant)),
            label=f"{mutant.id}, seed {seed}",
        )
        for mutant in chosen
    ]


@algorithm("cemverify.power.matrix:detect", detectors=1)
def detect(cell: DetectorsCell) -> dict[str, Any]:
    """The word of every property that calls the mutant wrong, by id."""
    cell.code.check(None)
    mutant = next(m for m in mutants() if m.id == cell.mutant)
    words = {property_.id: _word(mutant.subject(), property_, cell.seed) for property_ in reached(mutant)}
    return {"detectors": {id_: word for id_, word in words.items() if word != NOT}}


def there(mutant: Mutant) -> bool:
    """Whether the libraries that it needs are installed."""
    try:
        mutant.subject()
    except LoadError:
        return False
    return True


def reached(mutant: Mutant) -> list[Property]:
    """The properties that a mutant is put to: those of functions that its fault may reach.

    They are the functions of the properties that must kill it, and what is made of these. What is put around any
    implementation may be in each of its functions.
    """
    subject = mutant.subject()
    offered = [p for p in catalogue() if p.kind == kind_of(subject) and _is_asked(p, subject)]
    if mutant.wrap is not None:
        return offered
    named = {p.function for p in offered if mutant.kills(p.id)}
    made = {"block", "decode"} if "attention" in named else {"block"} if "mlp" in named else set()
    return [p for p in offered if p.function in named | made | {"all", "layer"}]


def merged(known: Mapping[str, Detects], payloads: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Detects]:
    """The rows of the catalogue's properties: what is known, but for the mutants that were measured now.

    Args:
        known: rows by id. payloads: of each measured mutant, for each seed in turn.
    """
    rows = []
    for property_ in catalogue():
        old, kills = known.get(property_.id), dict[str, str]()
        for mutant in mutants():
            if mutant.id in payloads:
                words = [payload["detectors"].get(property_.id, NOT) for payload in payloads[mutant.id]]
                if set(words) != {NOT}:
                    kills[mutant.id] = " ".join(words)
            elif old is not None and mutant.id in old.kills:
                kills[mutant.id] = old.kills[mutant.id]
        named = {m.id: sorted(m.needs) for m in mutants() if m.property == property_.id}
        rows.append(Detects(property_.id, 0.0 if old is None else old.seconds, named, kills))
    return rows


def seconds(rows: Sequence[Detects]) -> Iterator[tuple[str, float]]:
    """CPU seconds that each property takes where nothing is wrong, of what a mutant that it kills would be then.

    A property of a library that is not here has none.
    """
    by_name = {m.id: m for m in mutants() if there(m)}
    for row in rows:
        for mutant in (by_name[name] for name in (*row.named, *row.kills) if name in by_name):
            right, property_ = mutant.original(), by_id()[row.id]
            if kind_of(right) == property_.kind and _is_asked(property_, right):
                yield row.id, _search(right, property_, 0).budget.spent()
                break


def _is_asked(property_: Property, subject: Subject) -> bool:
    return not_offered(property_, subject.not_offered, torch.float64) is None


def _word(subject: Subject, property_: Property, seed: int) -> str:
    """Where the search found a violation, and after how many examples; `NOT` where it found none."""
    search = _search(subject, property_, seed)
    record = conclude(unanswered(property_), search.tally, once=property_.once)
    return f"{search.tally.source}{record.examples}" if record.verdict == Verdict.VIOLATED else NOT


def _search(subject: Subject, property_: Property, seed: int) -> PropertySearch:
    """A search without controls, which a known right or wrong implementation needs none of."""
    caller = Caller(subject, property_.dtype or torch.float64, "cpu")
    search = PropertySearch(caller, property_, CoreBudget(SECONDS, lambda: caller.processes))
    with remembering(), suppress(Exception):  # where the suite itself fails, the tally holds no violation
        search.look(Effort(seed=seed, shrink=False))
    return search

"""The matrix of mutants and properties: which property detects which mutant, from how many examples, with few seeds.

A mutant is put to every property of the functions that its fault may reach. What is known of each pair is a word for
each seed, such as "row4": the fourth example was violated, and was a row of the covering array.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cemverify.conformance.implementations.contract import Implementation, Subject, kind_of
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import not_offered
from cemverify.conformance.judging.search import search_alone
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.judging.wording import conclude, unanswered
from cemverify.conformance.properties import Property, catalogue
from cemverify.power.cells import SECONDS
from cemverify.power.code import Code
from cemverify.power.mutants import Mutant, mutants
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
    return {"detectors": {id_: word for id_, word in words.items() if word is not None}}


def there(mutant: Mutant) -> bool:
    """Whether the libraries that it needs are installed."""
    try:
        mutant.subject()
    except LoadError:
        return False
    return True


def reached(mutant: Mutant) -> list[Property]:
    """The properties that a mutant is put to: those of functions that its fault may reach.

    They are the functions that it wraps, or those of the properties that must kill it, and what is made of these.
    """
    subject = mutant.subject()
    offered = [p for p in catalogue() if p.kind == kind_of(subject) and _is_asked(p, subject)]
    faulty = {p.function for p in offered if mutant.kills(p.id)} | _wrapped(mutant)
    if mutant.wrap is None:
        faulty |= {"block", "decode"} if "attention" in faulty else {"block"} if "mlp" in faulty else set()
    # what is said of a stated energy stands in the name of its layer, too
    faulty |= {name.removesuffix("-energy") for name in faulty} | {"all", "layer"}
    return [p for p in offered if p.function in faulty]


def _wrapped(mutant: Mutant) -> set[str]:
    """The functions of which a mutant's are others than those of what it wraps."""
    right = mutant.original()
    if mutant.wrap is None or not isinstance(right, Implementation):
        return set()
    functions = mutant.wrap(right).functions
    return {name.replace("_", "-") for name in functions if functions[name] is not right.functions.get(name)}


def seconds(property_: Property, killed: Iterable[Mutant]) -> float:
    """CPU seconds that a property takes where nothing is wrong: of what a mutant that it kills would be then.

    It is 0 where none of them is of a kind that it can be asked, for want of a library say.
    """
    for mutant in filter(there, killed):
        right = mutant.original()
        if kind_of(right) == property_.kind and _is_asked(property_, right):
            return search_alone(right, property_, _effort(0)).budget.spent()
    return 0.0


def _is_asked(property_: Property, subject: Subject) -> bool:
    return not_offered(property_, subject.not_offered, torch.float64) is None


def _word(subject: Subject, property_: Property, seed: int) -> str | None:
    """Where the search found a violation, and after how many examples; None where it found none."""
    tally = search_alone(subject, property_, _effort(seed)).tally
    record = conclude(unanswered(property_), tally, once=property_.once)
    return f"{tally.source}{record.examples}" if record.verdict == Verdict.VIOLATED else None


def _effort(seed: int) -> Effort:
    return Effort(seed=seed, seconds=SECONDS, shrink=False)

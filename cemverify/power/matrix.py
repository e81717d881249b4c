"""Which property detects which mutant, after how many examples, with each of a few seeds.

A mutant is put to the properties that must kill it, and to all others of the functions that its fault may reach. What
is known of a pair is a word for each seed, such as "row4": its fourth example was violated, and was a row of the
covering array.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cemverify.conformance.implementations.contract import Implementation, Subject, kind_of
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property, not_offered
from cemverify.conformance.judging.search import search_alone
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.judging.wording import conclude
from cemverify.conformance.properties import Property, by_id, catalogue
from cemverify.power.cells import SECONDS
from cemverify.power.code import Code
from cemverify.power.mutants import Mutant, mutants
from cemverify.runs import Cell, algorithm

_SECONDS = 0.3  # of one property, on average
_MADE_OF = {"attention": {"block", "decode"}, "mlp": {"block"}}  # a layer; what is made of it


@dataclass(frozen=True)
class PairsCell:
    """A mutant, and properties that it is put to with one seed."""

    mutant: str
    properties: tuple[str, ...]
    seed: int
    code: Code


def cells(asked: Sequence[tuple[Mutant, Sequence[str]]], seed: int) -> list[Cell]:
    """One cell for each mutant and the properties that it is put to."""
    code = Code.here(None)
    return [
        detect.cell(
            PairsCell(mutant.id, tuple(ids), seed, code),
            cost=_SECONDS * len(ids),
            label=f"{mutant.id}, {len(ids)} properties, seed {seed}",
        )
        for mutant, ids in asked
    ]


@algorithm("cemverify.power.matrix:detect", detectors=2)
def detect(cell: PairsCell) -> dict[str, Any]:
    """The word of every property that calls the mutant wrong, by id."""
    cell.code.check(None)
    mutant = next(m for m in mutants() if m.id == cell.mutant)
    words = {id_: _word(mutant.subject(), by_id(id_), cell.seed) for id_ in cell.properties}
    return {"words": {id_: word for id_, word in words.items() if word is not None}}


def there(mutant: Mutant) -> bool:
    """Whether the libraries that it needs are installed."""
    try:
        mutant.subject()
    except LoadError:
        return False
    return True


def reached(mutant: Mutant) -> tuple[list[str], list[str]]:
    """The ids of the properties that must kill a mutant, and of all others that its fault may reach.

    Those are of the functions that it wraps, or else of those that its properties ask and of what is made of them.
    """
    subject = mutant.subject()
    offered = [p for p in catalogue() if p.kind == kind_of(subject) and _is_asked(p, subject)]
    named = [p for p in offered if mutant.kills(p.id)]
    faulty = {p.function for p in named} | _wrapped(mutant)
    if mutant.wrap is None:
        faulty = faulty.union(*(_MADE_OF.get(name, ()) for name in faulty))
    # what is said of a stated energy stands in the name of its layer, too
    faulty |= {name.removesuffix("-energy") for name in faulty} | {"all", "layer"}
    others = [p.id for p in offered if p.function in faulty and p not in named]
    return [p.id for p in named], others


def _wrapped(mutant: Mutant) -> set[str]:
    """The functions of which a mutant's are others than those of what it wraps."""
    right = mutant.original()
    if mutant.wrap is None or not isinstance(right, Implementation):
        return set()
    functions = mutant.wrap(right).functions
    return {name.replace("_", "-") for name in functions if functions[name] is not right.functions.get(name)}


def seconds(property_: Property, killed: Iterable[Mutant]) -> float:
    """CPU seconds that a property takes of a right implementation, which a mutant that it kills is without its fault.

    It is 0 where none of them can be asked here.
    """
    for mutant in filter(there, killed):
        right = mutant.original()
        if kind_of(right) == property_.kind and _is_asked(property_, right):
            began = time.process_time()
            judge_property(right, property_, _effort(0))
            return time.process_time() - began
    return 0.0


def _is_asked(property_: Property, subject: Subject) -> bool:
    """Whether it can be, here: on a device that is not there every call fails, whatever the subject."""
    there = "cuda" not in property_.needs or torch.cuda.is_available()
    return there and not_offered(property_, subject.not_offered, torch.float64) is None


def _word(subject: Subject, property_: Property, seed: int) -> str | None:
    """Where the search found a violation, and after how many examples; None where it found none."""
    tally = search_alone(subject, property_, _effort(seed)).tally
    record = conclude(property_, tally)
    return f"{tally.source}{record.examples}" if record.verdict == Verdict.VIOLATED else None


def _effort(seed: int) -> Effort:
    return Effort(seed=seed, seconds=SECONDS, shrink=False)

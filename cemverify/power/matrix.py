"""Which property detects which mutant, after how many examples, with each of a few seeds.

A mutant is tested by the properties that must kill it, and by all other properties of the functions that its fault
may affect. The result for a pair is a word for each seed, such as "row4": the fourth row of the covering array was
violated.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from cemverify.conformance.asking.process_state import ProcessState
from cemverify.conformance.implementations.contract import Implementation, Subject, load
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.judging.conclusion import conclude
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.search import search_alone
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.oracle.remembering import remembering
from cemverify.conformance.properties import Property, by_id
from cemverify.power.cells import SECONDS, offered_to
from cemverify.power.code import Code
from cemverify.power.mutants import Mutant, mutants
from cemverify.runs import Cell, algorithm

Pair = tuple[str, str]  # the name of a mutant; the id of a property

_SECONDS = 0.1  # for one pair, on average
_TOGETHER = 40  # mutants tested one after the other in one process
_MADE_OF = {"attention": {"block", "decode"}, "mlp": {"block"}}  # a layer, and the functions that contain it


@dataclass(frozen=True)
class PairsCell:
    """A property and what it tests with one seed: mutants by id, others by module:attribute."""

    property: str
    subjects: tuple[str, ...]
    seed: int
    harder: int  # multiplies the number of rows of a check
    code: Code


def cells(pairs: Iterable[Pair], seed: int, harder: int = 1) -> list[Cell]:
    """Cells of one property each; its mutants share the questions, so correct answers are computed once for all."""
    code, by_property = Code.here(None), dict[str, list[str]]()
    for subject, id_ in pairs:
        by_property.setdefault(id_, []).append(subject)
    return [
        detect.cell(
            PairsCell(id_, names, seed, harder, code),
            cost=_SECONDS * len(names),
            label=f"{id_}, {len(names)} mutants, seed {seed}",
        )
        for id_, subjects in by_property.items()
        for names in (tuple(subjects[i : i + _TOGETHER]) for i in range(0, len(subjects), _TOGETHER))
    ]


@algorithm("cemverify.power.matrix:detect", detectors=3)
def detect(cell: PairsCell) -> dict[str, Any]:
    """The word of every subject that violates the property, by name."""
    cell.code.check(None)
    by_name, usual = {mutant.id: mutant for mutant in mutants()}, by_id(cell.property)
    property_ = replace(usual, asked=replace(usual.asked, rows=cell.harder * usual.asked.rows))
    words, before = dict[str, str](), ProcessState.now()
    with remembering():
        for name in cell.subjects:
            subject = by_name[name].subject() if name in by_name else load(name)
            if (found := word(subject, property_, cell.seed)) is not None:
                words[name] = found
            before.restore()
    return {"words": words}


def there(mutant: Mutant) -> bool:
    """Whether the libraries that a mutant needs are installed."""
    try:
        mutant.subject()
    except LoadError:
        return False
    return True


def offered(subject: Subject) -> list[Property]:
    """The properties that can be tested here: without a CUDA device, every call on one would fail."""
    return [p for p in offered_to(subject) if "cuda" not in p.needs or torch.cuda.is_available()]


def reached(mutant: Mutant) -> tuple[list[str], list[str]]:
    """The ids of the properties that must kill a mutant, and of all others that its fault may affect.

    The others are of the functions it wraps; if it wraps none, of those its properties test or that contain these.
    """
    properties = offered(mutant.subject())
    named = [p for p in properties if mutant.kills(p.id)]
    faulty = {p.function for p in named} | _wrapped(mutant)
    if mutant.wrap is None:
        faulty = faulty.union(*(_MADE_OF.get(name, ()) for name in faulty))
    # properties of a stated energy are also found under its layer's name
    faulty |= {name.removesuffix("-energy") for name in faulty} | {"all", "layer"}
    others = [p.id for p in properties if p.function in faulty and p not in named]
    return [p.id for p in named], others


def _wrapped(mutant: Mutant) -> set[str]:
    """The functions that a mutant replaces in what it wraps."""
    right = mutant.original()
    if mutant.wrap is None or not isinstance(right, Implementation):
        return set()
    functions = mutant.wrap(right).functions
    return {name.replace("_", "-") for name in functions if functions[name] is not right.functions.get(name)}


def seconds(property_: Property, killed: Iterable[Mutant]) -> float:
    """CPU seconds of a property on a correct implementation: the original of a mutant that it kills.

    It is 0 if the property can be tested on none of them here.
    """
    for mutant in filter(there, killed):
        right = mutant.original()
        if property_ in offered(right):
            began = time.process_time()
            judge_property(right, property_, _effort(0))
            return time.process_time() - began
    return 0.0


def word(subject: Subject, property_: Property, seed: int) -> str | None:
    """Where the search found a violation; None if it found none."""
    tally = search_alone(subject, property_, _effort(seed)).tally
    violated = conclude(property_, tally, SECONDS).verdict == Verdict.VIOLATED
    return f"{tally.source}{tally.number}" if violated else None


def _effort(seed: int) -> Effort:
    return Effort(seed=seed, seconds=SECONDS, shrink=False)

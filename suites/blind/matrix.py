"""Which properties find the faults of blind rounds, after how many questions; budgets must preserve this.

Each fault is tested by the properties in the order of a check, first by the one that killed it before, until one
kills it with every seed and with rows to spare.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cemverify.catalogue import budgets
from cemverify.catalogue.detection import HELD, SEEDS
from cemverify.conformance.implementations.contract import load
from cemverify.power import matrix
from cemverify.power.code import Code
from cemverify.processes.atomic_files import replacing
from cemverify.runs import Cell, RunOptions, algorithm, payloads, run_cells
from suites.blind.asking import in_order
from suites.blind.rounds import DATA, answers, rounds

FILE = DATA / "matrix.jsonl"


@dataclass(frozen=True)
class FaultCell:
    """A fault of a blind round, and the property that killed it last time."""

    name: str
    first: str
    code: Code


@algorithm("suites.blind.matrix:detect", detectors=1)
def detect(cell: FaultCell) -> dict[str, Any]:
    """The words of properties that kill it, one for each seed, by id."""
    cell.code.check(None)
    subject = load(f"suites.blind.faults:{cell.name}")
    words: dict[str, str] = {}
    for property_ in (p for p in in_order(subject, cell.first) if not p.first):
        if (first := matrix.word(subject, property_, 0)) is not None:
            others = (matrix.word(subject, property_, seed) or HELD for seed in range(1, SEEDS))
            words[property_.id] = " ".join((first, *others))
            if HELD not in words[property_.id] and not _lacking(property_.id, words[property_.id]):
                break
    return {"words": words}


def measure(where: RunOptions) -> None:
    """Tests all torch and NumPy faults that are known to be found; writes the file, and the budgets.

    Raises:
        ShardFinished: where.shard is set, and its part is done. Interrupted: Ctrl-C.
    """
    cells = list(_cells())
    found = payloads(run_cells(cells, where), where.store)
    kills = {str(cell.spec["name"]): each["words"] for cell, each in zip(cells, found, strict=True)}
    for file, content in ((FILE, text(kills)), (budgets.FILE, budgets.text("faults", needed(kills.values())))):
        with replacing(file) as aside:
            aside.write_text(content)


def needed(kills: Iterable[Mapping[str, str]]) -> budgets.Budgets:
    """The rows that properties need: for each fault the one that kills it with every seed and lacks least, or all."""
    words: dict[str, list[str]] = {}
    for of_fault in kills:
        surely = [id_ for id_, of in of_fault.items() if HELD not in of]
        best = min(surely, key=lambda id_: _lacking(id_, of_fault[id_]), default=None)
        for id_ in of_fault if best is None else (best,):
            words.setdefault(id_, []).extend(of_fault[id_].split())
    return budgets.needed(words)


def _lacking(id_: str, words: str) -> float:
    """How many more rows a property needs than it gets without this file."""
    enough = budgets.asked(id_, "mutants").rows
    return max(0.0, budgets.needed({id_: words.split()}).get(id_, 0) - enough)


def text(kills: Mapping[str, Mapping[str, str]]) -> str:
    """The text of the file, a line for each fault."""
    return "".join(f"{json.dumps({'fault': name, 'kills': kills[name]})}\n" for name in sorted(kills))


def _cells() -> Iterator[Cell]:
    code = Code.here(None)
    for round_ in rounds():
        known = answers(round_.number)
        for fault in round_.faults:
            by = str(known.get(fault.name, {}).get("by", ""))
            if fault.framework != "jax" and "/" in by:
                yield detect.cell(FaultCell(fault.name, by, code), label=fault.name)

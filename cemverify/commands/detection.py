"""Writes `cemverify/catalogue/detection.jsonl`, which properties detect which mutants, and how long each takes.

    python -m cemverify.commands.detection               # every pair, with three seeds: a day or two, resumable
    python -m cemverify.commands.detection --missing     # mutants that the file lacks, and what must kill them

What must kill a mutant is asked first, which takes minutes, and then all else that its fault may reach.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace

import torch

from cemverify.catalogue import detection
from cemverify.catalogue.detection import HELD, Detects
from cemverify.conformance.properties import by_id, catalogue
from cemverify.console.guard import Run, enter
from cemverify.console.parsing import count
from cemverify.console.streams import note
from cemverify.power import matrix
from cemverify.power.mutants import Mutant, mutants
from cemverify.processes.atomic_files import replacing
from cemverify.runs import (
    Cell,
    CellStore,
    CorruptCell,
    RunOptions,
    ShardFinished,
    add_run_arguments,
    payloads,
    run_cells,
    run_options,
)

Asked = Sequence[tuple[Mutant, Sequence[str]]]  # mutants, and the ids of properties that they are put to
Measured = tuple[str, Mapping[str, str]]  # the id of a mutant, and the words of each property


def text(rows: Iterable[Detects]) -> str:
    """The text of detection.jsonl, a line of JSON for each property."""
    return "".join(f"{json.dumps(asdict(row))}\n" for row in rows)


def lacking(known: Mapping[str, Detects]) -> list[Mutant]:
    """The mutants of which the property that is named for them is not known to kill them."""
    return [m for m in mutants() if m.property not in known or m.id not in known[m.property].kills]


def measure(asked: Asked, seeds: int, known: Mapping[str, Detects], where: RunOptions) -> list[Detects]:
    """Puts mutants to properties; what is known then is written, at Ctrl-C too.

    Raises:
        ShardFinished: where.shard is set, and its part is computed. Interrupted: Ctrl-C.
    """
    by_seed = [matrix.cells(asked, seed) for seed in range(seeds)]
    try:
        payloads(run_cells([cell for cells in by_seed for cell in cells], where), where.store)  # none failed
    finally:
        rows = merged(known, list(_stored(asked, by_seed, where)))
        _write(rows)
    return rows


def _stored(asked: Asked, by_seed: Sequence[Sequence[Cell]], where: RunOptions) -> Iterator[Measured]:
    """What is stored of mutants, where every seed is."""
    store = CellStore(where.store)
    for (mutant, ids), *cells in zip(asked, *by_seed, strict=True):
        with suppress(CorruptCell):  # which is computed again next time
            stored = [record.payload for cell in cells if (record := store.get(cell.key)) is not None]
            if len(stored) == len(cells) and None not in stored:
                words = [payload["words"] for payload in stored if payload is not None]
                yield mutant.id, {id_: " ".join(of.get(id_, HELD) for of in words) for id_ in ids}


def merged(known: Mapping[str, Detects], measured: Sequence[Measured]) -> list[Detects]:
    """The rows of the catalogue's properties: what is known, but for the pairs that were measured now.

    Args:
        known: rows by id. measured: mutants, with the words of each property that they were put to.
    """
    rows, now = [], {(mutant, id_): words for mutant, of in measured for id_, words in of.items()}
    for property_ in catalogue():
        old = known.get(property_.id) or Detects(property_.id, 0.0, {}, {})
        words = {m.id: now.get((m.id, property_.id), old.kills.get(m.id, HELD)) for m in mutants()}
        named = {m.id: sorted(m.needs) for m in mutants() if m.property == property_.id}
        kills = {mutant: each for mutant, each in words.items() if {*each.split()} != {HELD}}
        rows.append(Detects(property_.id, old.seconds, named, kills))
    return rows


def _timed(rows: Sequence[Detects], *, missing: bool) -> Iterator[Detects]:
    """The rows with the seconds of each property; with `missing`, only those are measured that are not known."""
    by_name = {mutant.id: mutant for mutant in mutants()}
    for row in rows:
        killed = [by_name[name] for name in (*row.named, *row.kills)]
        spent = 0.0 if missing and row.seconds else matrix.seconds(by_id(row.id), killed)
        yield replace(row, seconds=round(spent or row.seconds, 3))


def _chosen(arguments: list[str]) -> Run:
    parser = argparse.ArgumentParser(
        prog="python -m cemverify.commands.detection",
        description="Measures which properties detect which mutants, for the order in which `cemverify check` asks.",
    )
    parser.add_argument(
        "--missing", action="store_true", help="put mutants that the file lacks to the properties that must kill them"
    )
    parser.add_argument("--seeds", type=count, default=3, metavar="N", help="use seeds 0 to N-1 (default: 3)")
    add_run_arguments(parser)
    options = parser.parse_args(arguments)

    def run() -> int:
        torch.set_num_threads(1)
        known = detection.detected() if detection.FILE.exists() else {}
        where, chosen = run_options(options), lacking(known) if options.missing else mutants()
        reached = {mutant: matrix.reached(mutant) for mutant in chosen if matrix.there(mutant)}
        try:
            rows = measure([(m, killers) for m, (killers, _) in reached.items()], options.seeds, known, where)
            rows = list(_timed(rows, missing=options.missing))
            _write(rows)
            if not options.missing:
                others, known = [(m, ids) for m, (_, ids) in reached.items()], {row.id: row for row in rows}
                rows = measure(others, options.seeds, known, where)
        except ShardFinished as told:
            note(str(told))
            return 0
        note(f"{sum(len(row.kills) for row in rows)} pairs of a property and a mutant that it kills")
        return 0

    return run


def _write(rows: Sequence[Detects]) -> None:
    with replacing(detection.FILE) as aside:
        aside.write_text(text(rows), encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(enter(_chosen))

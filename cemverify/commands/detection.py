"""Writes `cemverify/catalogue/detection.jsonl`, which properties detect which mutants, and how long each takes.

python -m cemverify.commands.detection               # every mutant, with three seeds: hours, resumable
python -m cemverify.commands.detection --missing     # keeps what is known, and measures what the file lacks
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import takewhile
from typing import Any

import torch

from cemverify.catalogue import detection
from cemverify.catalogue.detection import NOT, Detects
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
    RunOptions,
    ShardFinished,
    add_run_arguments,
    payloads,
    run_cells,
    run_options,
)


def text(rows: Iterable[Detects]) -> str:
    """The text of detection.jsonl, a line of JSON for each property."""
    return "".join(f"{json.dumps(asdict(row))}\n" for row in rows)


def lacking(known: Mapping[str, Detects]) -> list[Mutant]:
    """The mutants of which the property that is named for them is not known to kill them."""
    return [m for m in mutants() if m.property not in known or m.id not in known[m.property].kills]


def measure(chosen: Sequence[Mutant], seeds: int, known: Mapping[str, Detects], where: RunOptions) -> list[Detects]:
    """Puts mutants to properties, with one seed after the other; what is known is written after each, and at Ctrl-C.

    Raises:
        ShardFinished: where.shard is set, and its part is computed. Interrupted: Ctrl-C.
    """
    by_seed = [matrix.cells(chosen, seed) for seed in range(seeds)]
    if where.shard is not None:
        run_cells([cell for cells in by_seed for cell in cells], where)
    rows = merged(known, {})
    for seed, cells in enumerate(by_seed, 1):
        try:
            payloads(run_cells(cells, where), where.store)  # none failed
        finally:
            rows = merged(known, dict(_stored(chosen, by_seed[:seed], where)))
            _write(rows)
    return rows


def _stored(
    chosen: Sequence[Mutant], by_seed: Sequence[Sequence[Cell]], where: RunOptions
) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """What is stored of each mutant for each seed in turn, as far as it is; of those of which anything is."""
    store = CellStore(where.store)
    for mutant, *cells in zip(chosen, *by_seed, strict=True):
        records = (store.get(cell.key) for cell in cells)
        there = takewhile(bool, (None if record is None else record.payload for record in records))
        if stored := [payload for payload in there if payload is not None]:
            yield mutant.id, stored


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


def _timed(rows: Sequence[Detects], *, missing: bool) -> Iterator[Detects]:
    """The rows with the seconds of each property; where `missing`, those stay that are known."""
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
    parser.add_argument("--missing", action="store_true", help="keep what is known, measure what the file lacks")
    parser.add_argument("--seeds", type=count, default=3, metavar="N", help="use seeds 0 to N-1 (default: 3)")
    add_run_arguments(parser)
    options = parser.parse_args(arguments)

    def run() -> int:
        torch.set_num_threads(1)
        known = detection.detected() if detection.FILE.exists() else {}
        chosen = [m for m in (lacking(known) if options.missing else mutants()) if matrix.there(m)]
        try:
            rows = measure(chosen, options.seeds, known, run_options(options))
        except ShardFinished as told:
            note(str(told))
            return 0
        _write(list(_timed(rows, missing=options.missing)))
        note(f"{sum(len(row.kills) for row in rows)} pairs of a property and a mutant that it kills")
        return 0

    return run


def _write(rows: Sequence[Detects]) -> None:
    with replacing(detection.FILE) as aside:
        aside.write_text(text(rows), encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(enter(_chosen))

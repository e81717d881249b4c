"""Writes which properties detect which mutants, how long each property takes, and how many rows it needs.

These are `detection.jsonl` and `budgets.json` of `cemverify/catalogue`.

    python -m docs.making.detection               # every pair; three hours on two cores; resumable
    python -m docs.making.detection --named       # only what must kill a mutant; a quarter of an hour
    python -m docs.making.detection --missing     # the same, only for mutants that the file lacks

A mutant is tested first by the properties that must kill it, with many seeds and twice as many rows as in a check;
then by all other properties that its fault may affect, with one seed, and if that kills it, with two more. It can be
stopped at any time: what is known by then is written.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from types import MappingProxyType

import torch

from cemverify.catalogue import budgets, detection
from cemverify.catalogue.detection import HELD, SEEDS, Detects
from cemverify.conformance.properties import by_id, catalogue
from cemverify.console.guard import Run, enter
from cemverify.console.parsing import count
from cemverify.console.streams import note
from cemverify.power import matrix
from cemverify.power.matrix import Pair
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

Words = Mapping[Pair, Sequence[str]]  # of each pair, one for each seed, from 0 on

_HARDER = 2  # times as many rows as in a check where a mutant must die, to see how many rows that takes


def text(rows: Iterable[Detects]) -> str:
    """The text of detection.jsonl, a line of JSON for each property."""
    return "".join(f"{json.dumps(asdict(row))}\n" for row in rows)


def lacking(known: Mapping[str, Detects]) -> list[Mutant]:
    """The mutants that their named property is not known to kill."""
    return [m for m in mutants() if m.property not in known or m.id not in known[m.property].kills]


def measure(
    pairs: Sequence[Pair],
    seeds: Sequence[int],
    known: Mapping[str, Detects],
    where: RunOptions,
    before: Words = MappingProxyType({}),
    *,
    harder: int = 1,
) -> Words:
    """The words of pairs with these seeds, appended to those of earlier seeds; then writes what is known.

    Args:
        known: rows by id, with what is known of other pairs. before: the words with earlier seeds.
        harder: multiplies the number of rows of a check.

    Raises:
        ShardFinished: where.shard is set, and its part is computed. Interrupted: Ctrl-C, after writing.
    """
    by_seed = {seed: matrix.cells(pairs, seed, harder) for seed in seeds}
    try:
        payloads(run_cells([cell for cells in by_seed.values() for cell in cells], where), where.store)  # none failed
    finally:
        words = {**before, **_stored(by_seed, CellStore(where.store), before)}
        _write(merged(known, words))
    return words


def _stored(by_seed: Mapping[int, Sequence[Cell]], store: CellStore, before: Words) -> Words:
    """The stored words of pairs, up to the first seed that is missing."""
    words: dict[Pair, list[str]] = {}
    for seed, cells in by_seed.items():
        for cell in cells:
            with suppress(CorruptCell):  # it is computed again next time
                record = store.get(cell.key)
                if record is not None and record.payload is not None:
                    for subject in cell.spec["subjects"]:
                        pair = subject, cell.spec["property"]
                        of = words.setdefault(pair, [*before.get(pair, ())])
                        of += [record.payload["words"].get(subject, HELD)] * (len(of) == seed)
    return words


def merged(known: Mapping[str, Detects], measured: Words) -> list[Detects]:
    """The rows of the catalogue's properties: what is known by id, updated with the pairs measured now."""
    rows = []
    for property_ in catalogue():
        old = known.get(property_.id) or Detects(property_.id, 0.0, {}, {})
        words = {
            m.id: " ".join(measured.get((m.id, property_.id), ())) or old.kills.get(m.id, HELD) for m in mutants()
        }
        named = {m.id: sorted(m.needs) for m in mutants() if m.property == property_.id}
        kills = {mutant: each for mutant, each in words.items() if {*each.split()} != {HELD}}
        rows.append(Detects(property_.id, old.seconds, named, kills))
    return rows


def _timed(rows: Sequence[Detects], *, missing: bool) -> Iterator[Detects]:
    """The rows with the seconds of each property; with `missing`, only unknown ones are measured."""
    by_name = {mutant.id: mutant for mutant in mutants()}
    for row in rows:
        killed = [by_name[name] for name in (*row.named, *row.kills)]
        spent = 0.0 if missing and row.seconds else matrix.seconds(by_id(row.id), killed)
        yield replace(row, seconds=round(spent or row.seconds, 3))


def _chosen(arguments: list[str]) -> Run:
    parser = argparse.ArgumentParser(
        prog="python -m docs.making.detection",
        description="Measures which properties detect which mutants, for the order in which `cemverify check` asks.",
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--named", action="store_true", help="put mutants only to the properties that must kill them")
    only.add_argument("--missing", action="store_true", help="only that, and of the mutants that the file lacks")
    parser.add_argument(
        "--seeds", type=count, default=20, metavar="N", help="put what must die to the seeds 0 to N-1 (default: 20)"
    )
    add_run_arguments(parser)
    options = parser.parse_args(arguments)
    if options.seeds < SEEDS:
        parser.error(f"--seeds must be {SEEDS} at least: a pair that was tried with fewer counts for nothing")

    def run() -> int:
        torch.set_num_threads(1)
        known = detection.detected() if detection.FILE.exists() else {}
        where, chosen = run_options(options), lacking(known) if options.missing else mutants()
        reached = {mutant.id: matrix.reached(mutant) for mutant in chosen if matrix.there(mutant)}
        named, others = ([(name, id_) for name, ids in reached.items() for id_ in ids[i]] for i in range(2))
        try:
            rows = merged(known, measure(named, range(options.seeds), known, where, harder=_HARDER))
            _write(rows := list(_timed(rows, missing=options.missing)))
            if not (options.missing or options.named):
                known = {row.id: row for row in rows}
                first = measure(others, [0], known, where)
                killing = [pair for pair in others if first[pair] != [HELD]]
                rows = merged(known, measure(killing, range(1, SEEDS), known, where, first))
        except ShardFinished as told:
            note(str(told))
            return 0
        note(f"{sum(len(row.kills) for row in rows)} pairs of a property and a mutant that it kills")
        kills = {row.id: row.kills for row in rows}
        for name, id_ in named:
            if HELD in (words := kills[id_].get(name, HELD)).split():
                note(f"{id_} must kill {name}, and does not with every seed: {words}")
        return 0

    return run


def _write(rows: Sequence[Detects]) -> None:
    rows_needed = budgets.needed({row.id: _must(row) for row in rows})
    for file, content in ((detection.FILE, text(rows)), (budgets.FILE, budgets.text("mutants", rows_needed))):
        with replacing(file) as aside:
            aside.write_text(content, encoding="utf-8")


def _must(row: Detects) -> list[str]:
    """The words of the mutants that name a property, or, if none does, of the mutant that it finds soonest."""
    if row.named:
        return [word for name in row.named for word in row.kills.get(name, HELD).split()]
    others = (row.kills[m.id].split() for m in mutants() if m.kills(row.id) and m.id in row.surely)
    return min(others, key=lambda words: budgets.needed({row.id: words}).get(row.id, 0), default=[])


if __name__ == "__main__":
    raise SystemExit(enter(_chosen))

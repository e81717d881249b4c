"""Runs cells: those that the store lacks are computed, longest first, and stored at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cemverify.console.errors import UsageError
from cemverify.console.streams import note
from cemverify.results.provenance import commit_of
from cemverify.runs.cells import Cell
from cemverify.runs.executors import Crew, cluster, compute_all, here, processes
from cemverify.runs.options import RunOptions
from cemverify.runs.progress import CellProgress
from cemverify.runs.store import CellStore, CorruptCell, StoredCell
from cemverify.runs.work import CellOutcome


class ShardFinished(Exception):
    """A shard has computed its part; there is no table yet. The message says what is missing."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; the message says what is kept and how to go on."""


def run_cells(
    cells: Sequence[Cell], options: RunOptions, later: Sequence[Cell] | None = (), earlier: int = 0
) -> list[StoredCell]:
    """What is stored for all cells, in their order, after computing what was missing; progress goes to stderr.

    Cells with the same key are computed once.

    Args:
        later: cells that are needed next, None if these decide them: to estimate the time left.
        earlier: how many further cells the study already has: for the message after Ctrl-C.

    Raises:
        ShardFinished: options.shard is set, and its part is computed. Interrupted: Ctrl-C.
    """
    store = CellStore(options.store)
    by_key = {cell.key: cell for cell in cells}
    stored = _stored(store, by_key)
    done = {key for key, record in stored.items() if record.failure is None or not options.retry_failed}
    asked = {key: cell for key, cell in by_key.items() if options.shard is None or key in options.shard}
    todo = [cell for key, cell in asked.items() if key not in done or not options.resume]
    todo.sort(key=lambda cell: -cell.cost)
    if todo:
        store.require_writable()
        store.sweep()
        if options.cluster is not None:
            crew = cluster(options.cluster)
        elif not options.workers:
            crew = here()
        else:
            crew = processes(min(options.workers, len(todo)), sorted({cell.home for cell in todo}))
        due = [c for c in later or () if not (options.resume and store.path(c.key).exists())]
        then = "; what follows depends on them" if later is None else f", then {len(due)} more" if due else ""
        part = "" if options.shard is None else f" (shard {options.shard.number} of {options.shard.of})"
        note(f"{len(stored)} of {_cells(len(by_key))} in {store.folder}; computing {len(todo)}{then}{part}")
        after = None if later is None else sum(c.cost for c in due)
        progress = CellProgress(len(todo), sum(c.cost for c in todo), later=after)
        stored |= _compute(todo, store, crew, stored, options, progress, earlier)
    if options.shard is not None:
        raise ShardFinished(_tell_shard(store, by_key, stored, len(todo), options))
    return [stored[cell.key] for cell in cells]


def payloads(records: Sequence[StoredCell], store: Path = RunOptions.store) -> list[Mapping[str, Any]]:
    """The payloads of cells, none of which may have failed.

    Args:
        store: where they are stored.
    """
    failed = [(record, record.failure) for record in records if record.failure is not None]
    if failed:
        first, failure = failed[0]
        name = first.made_by.get("label") or first.cell.algorithm
        raise UsageError(
            f"{len(failed)} of {_cells(len(records))} failed, {name} with {failure.cause!r}; "
            f"{CellStore.path_in(store, first.key)} tells more, and --retry-failed tries them again"
        )
    return [record.payload for record in records if record.payload is not None]


def _stored(store: CellStore, by_key: Mapping[str, Cell]) -> dict[str, StoredCell]:
    """The stored ones of these cells; a damaged file counts as missing, and is reported."""
    stored = {}
    for key in by_key:
        try:
            record = store.get(key)
        except CorruptCell as error:
            note(f"repaired store: {error}; its cell is computed again")
            continue
        if record is not None:
            stored[key] = record
    return stored


def _compute(
    todo: Sequence[Cell],
    store: CellStore,
    crew: Crew,
    stored: Mapping[str, StoredCell],
    options: RunOptions,
    progress: CellProgress,
    earlier: int,
) -> dict[str, StoredCell]:
    fresh: dict[str, StoredCell] = {}
    now = commit()

    def keep(cell: Cell, outcome: CellOutcome) -> None:
        made_by = {**outcome.made_by, "label": cell.label, "commit": now}
        record = fresh[cell.key] = store.put(cell, outcome.content, made_by)
        progress.finished(cell.label, cell.cost, None if record.failure is None else record.failure.cause)
        before = stored.get(cell.key)
        if before is not None and before.failure is None and before.payload != record.payload:
            progress.note(f"cell {cell.key[:12]} ({cell.label}) is not what it was: other code, or another machine")

    try:
        compute_all(todo, crew, keep, progress.tick)
    except KeyboardInterrupt:
        command = "the same command" if options.resume else "the command without --no-resume"
        raise Interrupted(
            f"interrupted; {len(fresh) + earlier} of {_cells(len(todo) + earlier)} finished and kept in"
            f" {store.folder}, {command} goes on from there"
        ) from None
    finally:
        progress.close()
    return fresh


def _tell_shard(
    store: CellStore, by_key: Mapping[str, Cell], stored: Mapping[str, StoredCell], computed: int, options: RunOptions
) -> str:
    missing = sum(not store.path(key).exists() for key in by_key)
    failed = sum(record.failure is not None for record in stored.values())
    assert options.shard is not None
    text = f"shard {options.shard.number} of {options.shard.of} is finished, {_cells(computed)} computed"
    if failed:
        text += f", {failed} of those it knows have failed (--retry-failed tries them again)"
    if missing:
        return f"{text}; {missing} of {_cells(len(by_key))} still missing in {store.folder}"
    return f"{text}; all {_cells(len(by_key))} there: the same command without --shard prints the table"


def _cells(count: int) -> str:
    return f"{count} cell{'' if count == 1 else 's'}"


def commit() -> str | None:
    """The commit of the clone that runs, with "+changes" if files were edited since; None if it is installed."""
    clone = Path(__file__).parents[2]
    # an installed package may be inside somebody else's repository
    return commit_of(clone) if (clone / ".git").exists() else None

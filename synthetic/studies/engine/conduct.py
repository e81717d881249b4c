"""The course of a study: it yields the cells that it wants next, and is sent their payloads.

    functions = yield WantedCells(cells_of_functions)
    models = yield WantedCells(cells_of_models)
    return assemble(functions, models)

What comes next depends on payloads alone. So a run that was stopped at any point starts its study again, finds the
finished cells in the store, and goes on as if it had not been stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from cemverify.runs import Alarm, Cell, CellStore, CorruptCell, RunOptions, ctrl_c_after, payloads, run_cells

Payload = Mapping[str, Any]
Result = TypeVar("Result")


@dataclass(frozen=True)
class WantedCells:
    """The cells that a study asks for."""

    # it is sent their payloads in this order; None for a cell that is missing because time is up
    cells: Sequence[Cell]
    computed: bool = True  # whether to compute those that the store lacks
    later: Sequence[Cell] | None = ()  # those that it wants next; None if they depend on these


Course = Generator[WantedCells, Sequence[Payload | None], Result]


@dataclass(frozen=True)
class StudyRun(Generic[Result]):
    """How far a study has come."""

    result: Result  # what it returned
    todo: tuple[Cell, ...]  # the cells to compute next; () if all is done
    computed: tuple[Cell, ...]  # those that have a payload


def follow(course: Course[Result], fetch: Callable[[WantedCells], Sequence[Payload | None]]) -> StudyRun[Result]:
    """Sends a study what it wants until it ends.

    Args:
        fetch: returns the payloads of the wanted cells.
    """
    todo: list[Cell] = []
    computed: list[Cell] = []
    try:
        wanted = next(course)
        while True:
            sent = fetch(wanted)
            computed += [cell for cell, payload in zip(wanted.cells, sent, strict=True) if payload is not None]
            if wanted.computed:
                todo += [cell for cell, payload in zip(wanted.cells, sent, strict=True) if payload is None]
            wanted = course.send(sent)
    except StopIteration as end:
        return StudyRun(end.value, tuple(todo), tuple(computed))


def together(courses: Iterable[Course[None]]) -> Course[None]:
    """Several studies in parallel, as one: it wants at once what each of them wants next."""
    waiting = [(course, wanted) for course in courses if (wanted := _send(course, None)) is not None]
    while waiting:
        sent = iter((yield WantedCells([cell for _, wanted in waiting for cell in wanted.cells], later=None)))
        after = [(course, _send(course, list(islice(sent, len(wanted.cells))))) for course, wanted in waiting]
        waiting = [(course, wanted) for course, wanted in after if wanted is not None]


def _send(course: Course[None], sent: Any) -> WantedCells | None:
    """What a study wants after these payloads; None if it has ended."""
    try:
        return course.send(sent)
    except StopIteration:
        return None


def conduct(begin: Callable[[], Course[Result]], where: RunOptions, until: float | None = None) -> StudyRun[Result]:
    """Computes what a study wants and the store lacks, within a time limit, and returns how far the study has come.

    Args:
        begin: the study, from its beginning. until: minutes; 0 only reads the store, None sets no limit.

    Raises:
        KeyboardInterrupt: Ctrl-C, and not the time limit. ShardFinished: this machine's part of the cells that the
            study wants first is computed.
    """
    store = CellStore(where.store)
    read: dict[str, Payload] = {}
    computed: set[str] = set()

    def look(wanted: WantedCells) -> list[Payload | None]:
        for cell in wanted.cells:
            if cell.key not in read and (where.resume or cell.key in computed):
                try:
                    stored = store.get(cell.key)
                except CorruptCell:  # the run reports it, and computes it again
                    continue
                if stored is not None and stored.payload is not None:  # the run reports failures
                    read[cell.key] = stored.payload
        return [read.get(cell.key) for cell in wanted.cells]

    def compute(wanted: WantedCells) -> list[Payload | None]:
        missing = [cell for cell, payload in zip(wanted.cells, look(wanted), strict=True) if payload is None]
        if wanted.computed and (missing or where.shard is not None):
            # a shard ends here, and reports how much of the whole is missing
            cells = missing if where.shard is None else wanted.cells
            payloads(run_cells(cells, where, wanted.later, len(read)), where.store)
            computed.update(cell.key for cell in missing)
        return look(wanted)

    if until != 0:
        alarm = Alarm()
        try:
            with ctrl_c_after(until) as alarm:
                return follow(begin(), compute)
        except KeyboardInterrupt:
            if not alarm.rang:
                raise
    return follow(begin(), look)

"""A study step by step: what the store holds of it, what is to be computed next, until nothing is.

What comes next follows from what is stored alone, so a run that was stopped anywhere goes on as if it had not been. A
study whose cells are all known from the start is the case in which nothing new is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from cemverify.runs import Alarm, Cell, CellStore, CorruptCell, RunOptions, ctrl_c_after, payloads, run_cells

# The payload of a cell; None if it is not computed yet.
Look = Callable[[Cell], Mapping[str, Any] | None]


class Unfinished(Protocol):
    """How far a study is: the cells that it has, and those that it wants next."""

    @property
    def todo(self) -> Sequence[Cell]:
        """The cells that are wanted next; () if all is done."""

    @property
    def known(self) -> Sequence[Cell]:
        """All cells that have a payload."""


State = TypeVar("State", bound=Unfinished)


def conduct(state: Callable[[Look], State], where: RunOptions, until: float | None = None) -> State:
    """Computes what the store lacks, for so many minutes at most, and says how far the study is.

    Args:
        state: says how far it is, from what it can look up. until: minutes; 0 only reads the store. None goes on to
            the end.

    Raises:
        UsageError: a cell failed. KeyboardInterrupt: of somebody, not of the clock.
    """
    store = CellStore(where.store)
    found: dict[str, Mapping[str, Any]] = {}
    computed: set[str] = set()

    def look(cell: Cell) -> Mapping[str, Any] | None:
        key = cell.key
        if not where.resume and key not in computed:
            return None
        if key not in found:
            try:
                stored = store.get(key)
            except CorruptCell:  # the run names it, and computes it again
                return None
            if stored is None or stored.payload is None:  # the run says why it failed, or tries it again
                return None
            found[key] = stored.payload
        return found[key]

    now = state(look)
    if until == 0:
        return now
    alarm = Alarm()
    try:
        with ctrl_c_after(until) as alarm:
            while now.todo or where.shard is not None:
                # a shard ends here, and says how much of the whole is missing
                cells = now.todo if where.shard is None else [*now.known, *now.todo]
                payloads(run_cells(cells, where), where.store)
                computed.update(cell.key for cell in now.todo)
                now = state(look)
    except KeyboardInterrupt:
        if not alarm.rang:
            raise
    return state(look)

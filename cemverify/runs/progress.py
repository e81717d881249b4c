"""Progress on stderr: one line that is rewritten on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from cemverify.console.escaping import visible
from cemverify.console.streams import columns, is_live

# Not on a terminal, there are at most about this many lines.
MOST_LINES = 200


class CellProgress:
    """How far a run has come, and how long it may still take.

    Args:
        total: number of cells to compute. cost: that of all of them. stream, clock: for tests.
        later: the cost of what is computed after them; None if they decide what that is.
    """

    def __init__(
        self,
        total: int,
        cost: float,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        later: float | None = 0.0,
    ) -> None:
        self.total, self.cost, self.later, self.open_ended = total, cost, later or 0.0, later is None
        self.done, self.failed, self.spent = 0, 0, 0.0
        self._stream = sys.stderr if stream is None else stream
        self._clock, self._started = clock, clock()
        self._live = is_live(self._stream)
        self._blank = "\r\033[K" if self._live else ""
        self._said, self._latest = 0, ""

    def finished(self, label: str, cost: float, failure: str | None = None) -> None:
        """One more cell is done; a failure gets a line of its own."""
        self.done += 1
        self.spent += cost
        self._latest = label
        if failure is not None:
            self.failed += 1
            self.note(f"failed: {label}: {failure}")
        if self._live:
            self._rewrite()
        elif self.done == self.total or (self.done - self._said) * MOST_LINES >= self.total:
            self._said = self.done
            print(self.line(), file=self._stream, flush=True)

    def tick(self, running: int) -> None:
        """Makes the display show that time has passed."""
        if self._live:
            self._rewrite(running)

    def note(self, text: str) -> None:
        """Prints a line that stays above the progress."""
        print(f"{self._blank}{visible(text)}", file=self._stream, flush=True)

    def close(self) -> None:
        """Leaves the terminal as a person wants to find it."""
        if self._live:
            print(self._blank, end="", file=self._stream, flush=True)

    def line(self) -> str:
        """How far the run has come, in one line."""
        width = len(str(self.total))
        failed = f", {self.failed} failed" if self.failed else ""
        # assumes that what is done was typical for its cost
        cost = self.cost - self.spent + self.later
        left = (self._clock() - self._started) * cost / self.spent if self.spent > 0 else None
        of = " of this round" if self.open_ended else ""
        about = f"; about {duration(left)} left{of}" if left and (self.done < self.total or self.later) else ""
        return f"[{self.done:{width}}/{self.total}{failed}] {self._latest or 'started'}{about}"

    def _rewrite(self, running: int = 0) -> None:
        text = self.line() + (f" ({running} being computed)" if running else "")
        width = columns(self._stream) or len(text) + 1
        print(f"{self._blank}{visible(text)[: width - 1]}", end="", file=self._stream, flush=True)


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"

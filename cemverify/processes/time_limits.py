"""Limits on the time that processes take, which other load on the machine does not change.

What a process spends ready to run, without a core to run on, is no time of its own. The rest is: what it computes,
and what it sleeps. Linux says how long each thread has waited so far. Elsewhere all time counts.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_MOST_WAITED = 9  # times the limit: a process can make itself wait
_RESOLUTION = 0.02  # of the limit: what is left then is not waited for


def waited_for_core(pid: int) -> float:
    """Seconds for which the threads of a process were ready to run and had no core; 0 where that is not known."""
    return sum(waited for _, waited in _threads(pid))


def busy(pid: int) -> float:
    """Seconds for which the main thread of a process ran, or waited for a core; 0 where that is not known."""
    return sum(sum(both) for both in _threads(pid, f"{pid}"))


def _threads(pid: int, which: str = "*") -> list[tuple[float, float]]:
    """Seconds on a core and seconds of waiting for one, of threads that are there."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob(f"{which}/schedstat"):
        try:
            ran, waited, *_ = path.read_text().split()
            found.append((int(ran) / 1e9, int(waited) / 1e9))
        except (OSError, ValueError):  # it has ended since
            continue
    return found


class TimeLimit:
    """So many seconds of some processes, from now on.

    Args:
        seconds: infinite for no limit. processes: their ids now, as another one may take the place of one of them.
    """

    def __init__(self, seconds: float, processes: Callable[[], Iterable[int]] = lambda: (os.getpid(),)) -> None:
        self.seconds, self._processes = seconds, processes
        self._began, self._before = time.monotonic(), self._waited()
        self.until = self._began + seconds
        """A time of the monotonic clock before which the limit is not reached."""

    def _waited(self) -> float:
        return sum(map(waited_for_core, self._processes())) if self.seconds < math.inf else 0.0

    def spent(self) -> float:
        """The seconds so far that count towards the limit."""
        granted = min(max(self._waited() - self._before, 0.0), _MOST_WAITED * self.seconds)
        return time.monotonic() - self._began - granted

    def passed(self) -> bool:
        """Whether they are spent; cheap to ask again and again."""
        now = time.monotonic()
        if now < self.until:
            return False
        left = self.seconds - self.spent()
        self.until = now + max(left, 0.0)
        return left <= _RESOLUTION * self.seconds

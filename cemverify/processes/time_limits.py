"""Limits on the time that processes take, which other load on the machine does not change.

    TimeLimit     for what hangs: all time, but for that in which a thread was ready to run and had no core
    CoreBudget    for work: as much of that time as was computed in, at least

Two processes that answer each other wait for a core at the same time. Their work is more than what is left of the
time without their waiting, which is nothing at a load of 10. Linux says how long each thread ran and waited.
Elsewhere all time counts.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from cemverify.processes.system import LINUX

_MOST_WAITED = 9  # times the limit: a process can make itself wait
_RESOLUTION = 0.02  # of the limit: what is left then is not waited for


def waited_for_core(pid: int) -> float:
    """Seconds for which the threads of a process were ready to run and had no core; 0 where that is not known."""
    return sum(waited for _, waited in _threads(pid))


def computed(pids: Iterable[int]) -> float:
    """Seconds for which processes ran on cores, with their threads that have ended; 0 where that is not known."""
    seconds = 0.0
    for pid in pids if LINUX else ():
        with contextlib.suppress(OSError):  # it has ended
            ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            exact = sum(ran for ran, _ in _threads(pid))  # of the threads that are there
            seconds += max(sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), exact)
    return seconds


def busy(pid: int) -> float:
    """Seconds for which the main thread of a process ran, or waited for a core; 0 where that is not known."""
    return sum(sum(both) for both in _threads(pid, pid))


def _threads(pid: int, only: int | None = None) -> list[tuple[float, float]]:
    """Seconds on a core and seconds of waiting for one, of threads that are there, or of one of them."""
    threads: list[tuple[float, float]] = []
    if not LINUX:
        return threads
    with contextlib.suppress(OSError):  # it has ended since
        for thread in os.listdir(f"/proc/{pid}/task") if only is None else (only,):
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                ran, waited, *_ = file.read().split()
                threads.append((int(ran) / 1e9, int(waited) / 1e9))
    return threads


class TimeLimit:
    """So many seconds in which some processes compute or sleep, from now on.

    Args:
        seconds: infinite for no limit. processes: their ids now, as another one may take the place of one of them.
    """

    def __init__(self, seconds: float, processes: Callable[[], Iterable[int]] = lambda: (os.getpid(),)) -> None:
        self.seconds, self._processes = seconds, processes
        self.began, self._before = time.monotonic(), self._waited()
        self.until = self.began + seconds
        """A time of the monotonic clock before which the limit is not reached."""

    def _waited(self) -> float:
        return sum(map(waited_for_core, self._processes())) if self.seconds < math.inf else 0.0

    def spent(self) -> float:
        """The seconds so far that count towards the limit."""
        granted = min(max(self._waited() - self._before, 0.0), _MOST_WAITED * self.seconds)
        return time.monotonic() - self.began - granted

    def passed(self) -> bool:
        """Whether they are spent; cheap to ask again and again."""
        now = time.monotonic()
        if now < self.until:
            return False
        left = self.seconds - self.spent()
        self.until = now + max(left, 0.0)
        return left <= _RESOLUTION * self.seconds


class CoreBudget:
    """So many seconds of work of some processes, from now on. Sleep counts as work does, as far as it can be told.

    Args:
        seconds: infinite for no budget. processes: their ids now.
    """

    def __init__(self, seconds: float, processes: Callable[[], Iterable[int]] = lambda: (os.getpid(),)) -> None:
        self.seconds, self._processes = seconds, processes
        self._limit, self._before = TimeLimit(seconds, processes), computed(processes())

    def spent(self) -> float:
        """The seconds so far: those on a core, or those that were not waited for one, whichever are more."""
        return max(computed(self._processes()) - self._before, self._limit.spent())

    def passed(self, share: float = 1.0) -> bool:
        """Whether they are spent, or that share of them; cheap to ask again and again."""
        seconds = share * self.seconds
        if time.monotonic() < self._limit.began + seconds / (os.cpu_count() or 1):  # no more can be spent so far
            return False
        return self.spent() >= seconds

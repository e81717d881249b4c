"""Limits on the time that processes take, independent of other load on the machine.

    TimeLimit     for what may hang: all time, except when a thread was ready to run and had no core
    CoreBudget    for work: that time, but at least the time spent computing

Two processes that answer each other wait for a core at the same time. Subtracting both waits can leave less time
than their work took, and at a load of 10 nothing. Linux says how long each thread ran and waited.
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

_MOST_WAITED = 9  # times the limit: no more waiting is granted, since a process can make itself wait
_RESOLUTION = 0.02  # fraction of the limit: a smaller rest is not waited for


def waited_for_core(pid: int) -> float:
    """Seconds for which the threads of a process were ready to run and had no core; 0 if unknown."""
    return sum(waited for _, waited in _threads(pid))


def computed(pids: Iterable[int]) -> float:
    """Seconds for which processes ran on cores, including threads that have ended; 0 if unknown."""
    seconds = 0.0
    for pid in pids if LINUX else ():
        with contextlib.suppress(OSError):  # it has ended
            ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            exact = sum(ran for ran, _ in _threads(pid))  # only of existing threads
            seconds += max(sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), exact)
    return seconds


def busy(pid: int) -> float:
    """Seconds for which the main thread of a process ran or waited for a core; 0 if unknown."""
    return sum(sum(both) for both in _threads(pid, pid))


def _threads(pid: int, only: int | None = None) -> list[tuple[float, float]]:
    """Seconds on a core and seconds of waiting for one, for all existing threads or only one."""
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
    """A number of seconds, from now on, in which some processes compute or sleep.

    Args:
        seconds: infinite for no limit. processes: their current ids, as one may be replaced by another.
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
        """Whether they are used up; cheap to call repeatedly."""
        now = time.monotonic()
        if now < self.until:
            return False
        left = self.seconds - self.spent()
        self.until = now + max(left, 0.0)
        return left <= _RESOLUTION * self.seconds


class CoreBudget:
    """A number of seconds of work by some processes, from now on. Sleep counts as work, as far as it can be told.

    Args:
        seconds: infinite for no budget. processes: their current ids.
    """

    def __init__(self, seconds: float, processes: Callable[[], Iterable[int]] = lambda: (os.getpid(),)) -> None:
        self.seconds, self._processes = seconds, processes
        self._limit, self._before = TimeLimit(seconds, processes), computed(processes())

    def spent(self) -> float:
        """The seconds so far: those on a core, or those not spent waiting for one, whichever is more."""
        return max(computed(self._processes()) - self._before, self._limit.spent())

    def passed(self, share: float = 1.0) -> bool:
        """Whether they, or that share of them, are used up; cheap to call repeatedly."""
        seconds = share * self.seconds
        if time.monotonic() < self._limit.began + seconds / (os.cpu_count() or 1):  # no more can be used up by then
            return False
        return self.spent() >= seconds

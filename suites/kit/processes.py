"""Processes that can be interrupted wherever the tests run, and those that are left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from cemverify.conformance.workers.limits import is_gone
from cemverify.console.interrupts import WORDS


def heed() -> None:
    """For `preexec_fn`: restores signals, which children of a background shell or of `nohup` would ignore."""
    for name in WORDS:
        signal.signal(signal.Signals[name], signal.SIG_DFL)


def left(session: int, seconds: float = 10.0) -> list[int]:
    """The processes of a session that still exist after this many seconds.

    A zombie counts as gone: the first process of a container may take seconds to reap it.
    """
    soon(lambda: not _alive(session), seconds)
    return _alive(session)


def soon(happened: Callable[[], bool], within: float) -> bool:
    """Whether it happens within this many seconds."""
    until = time.monotonic() + within
    while not happened() and time.monotonic() < until:
        time.sleep(0.02)
    return happened()


def _alive(session: int) -> list[int]:
    alive = []
    for number in [int(path.name) for path in Path("/proc").glob("[0-9]*")]:
        try:
            if os.getsid(number) == session and not is_gone(number):
                alive.append(number)
        except OSError:
            continue
    return alive


def catches(process: int, number: int) -> bool:
    """Whether a process has installed its handler for a signal, which it does at startup."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt")), 0)
    return bool(caught >> (number - 1) & 1)

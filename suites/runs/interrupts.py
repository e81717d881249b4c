"""Processes that can be interrupted, wherever the tests run, and what is left of them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from cemverify.conformance.workers.limits import is_gone
from cemverify.console.interrupts import WORDS
from cemverify.processes.system import LINUX


def heed() -> None:
    """For `preexec_fn`: in the background of a shell, or by `nohup`, signals are ignored by all that is started."""
    for name in WORDS:
        signal.signal(signal.Signals[name], signal.SIG_DFL)


def left(session: int, seconds: float = 10.0) -> list[int]:
    """The processes of a session that are still there after so many seconds; where /proc is not, its leader for all.

    One that has ended and waits for its parent to hear of it is gone: the first process of a container may take
    seconds for that.
    """
    until = time.monotonic() + seconds
    while (alive := _alive(session)) and time.monotonic() < until:
        time.sleep(0.1)
    return alive


def _alive(session: int) -> list[int]:
    if not LINUX:
        try:
            os.killpg(session, 0)
        except ProcessLookupError:
            return []
        return [session]
    found = []
    for number in [int(path.name) for path in Path("/proc").glob("[0-9]*")]:
        try:
            if os.getsid(number) == session and not is_gone(number):
                found.append(number)
        except OSError:
            continue
    return found

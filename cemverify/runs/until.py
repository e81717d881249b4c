"""Ctrl-C by the clock: a run that is given so many minutes stops as if somebody had stopped it, and goes on later."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Alarm:
    """Whether the time is up."""

    rang: bool = False

    def ring(self) -> None:
        """Interrupts the main thread."""
        self.rang = True
        _thread.interrupt_main()


@contextmanager
def ctrl_c_after(minutes: float | None) -> Iterator[Alarm]:
    """Raises KeyboardInterrupt in the main thread after so many minutes, unless the block ends before; None: never."""
    alarm = Alarm()
    if minutes is None:
        yield alarm
        return
    timer = threading.Timer(60 * minutes, alarm.ring)
    timer.daemon = True
    timer.start()
    try:
        yield alarm
    finally:
        timer.cancel()

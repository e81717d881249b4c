"""--until: after a number of minutes a run stops as it does at Ctrl-C, and can be resumed later."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cemverify.console.interrupts import dealt_with


@dataclass
class Alarm:
    """Tells whether the time given with --until is up."""

    rang: bool = False

    def ring(self) -> None:
        """Interrupts the main thread."""
        self.rang = True
        if hasattr(signal, "pthread_kill"):  # this also wakes a thread that sleeps
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        else:
            _thread.interrupt_main()


@contextmanager
def ctrl_c_after(minutes: float | None) -> Iterator[Alarm]:
    """Raises KeyboardInterrupt in the main thread after so many minutes, if the block lasts so long; None: never."""
    alarm = Alarm()
    if minutes is None:
        yield alarm
        return
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:  # as in a process that a shell started in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(min(60 * minutes, threading.TIMEOUT_MAX), alarm.ring)
    timer.daemon = True
    try:
        timer.start()
        yield alarm
    finally:
        timer.cancel()
        if alarm.rang:
            dealt_with()
        if before is signal.SIG_IGN:
            signal.signal(signal.SIGINT, before)

"""Ctrl-C and the other signals that end a command: a flag, and a KeyboardInterrupt where one does no harm.

A KeyboardInterrupt that a handler raises comes out wherever Python happens to be. Inside an import it may pass
through C++, which aborts the process, or be swallowed by an `except`. In a callback of the garbage collector it is
printed and lost. So a signal sets a flag first. While something is imported, the exception waits until that is done.
One that was lost is raised again. One that a library swallowed is noticed by the next loop that calls `heed`, and in
the end by the guard, whose exit code says which signal it was.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

WORDS = {
    name: word
    for name, word in (
        ("SIGINT", "interrupted"),
        ("SIGTERM", "terminated"),
        ("SIGHUP", "ended, as its terminal was closed"),
        ("SIGQUIT", "ended by Ctrl-\\"),
    )
    if hasattr(signal, name)  # Windows lacks some
}
_AGAIN = 0.02  # seconds between looks whether the exception can be raised now
_LONGEST = 30.0  # seconds for which an import puts it off
_UNWINDING = 1.0  # seconds in which a second signal adds nothing: what is open is being closed
_LEAVING = 5.0  # seconds that the interpreter may take to end, undisturbed

_now: Ended | None = None


class Ended:
    """Which signal asked this process to end, if one did.

    Attributes:
        by: the first of them.
    """

    def __init__(self) -> None:
        self.by: signal.Signals | None = None
        self._since = 0.0  # when the first one came
        self._raised: float | None = None  # when the exception was raised last
        self._waiting = self._resent = self._over = False

    @contextmanager
    def heeded(self, *, to_the_end: bool = False) -> Iterator[None]:
        """Signals raise KeyboardInterrupt, so that what is open is closed and removed.

        Args:
            to_the_end: whether the process ends after the block, so that no signal shall disturb its end.
        """
        global _now
        before: dict[int, Any] = {}
        for name in WORDS:
            try:
                number = signal.Signals[name]
                # what a shell starts in the background ignores Ctrl-C, and a host program has handlers of its own
                if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
                    before[number] = signal.signal(number, self._heed)
            except ValueError:  # not the main thread
                break
        if to_the_end:
            atexit.register(_ignore)  # before all others, so that it is called after them
        others, hook = _now, sys.unraisablehook
        if before:
            _now, sys.unraisablehook = self, self._lost(hook)
        try:
            yield
        finally:
            self._over = True
            _now, sys.unraisablehook = others, hook
            for each, handler in before.items():
                signal.signal(each, self._leaving() if to_the_end else handler)

    def heed(self) -> None:
        """Raises KeyboardInterrupt if a signal came and its exception was swallowed."""
        if self.by is not None and not self._is_unwinding():
            self._raise()

    def over(self) -> None:
        """From now on no signal raises anything: the end is being told."""
        self._over = True

    def dealt_with(self) -> None:
        """The signal was somebody's who wanted no more than the exception."""
        self.by = self._raised = None

    def _heed(self, number: int, frame: FrameType | None) -> None:
        resent, self._resent = self._resent, False
        if self._over or self._is_unwinding() or (resent and self._raised is not None):
            return
        if self.by is None:
            self.by, self._since = signal.Signals(number), time.monotonic()
        if _imports(frame) and time.monotonic() - self._since < _LONGEST:
            self._try_again()
        else:
            self._raise()

    def _raise(self) -> None:
        self._raised = time.monotonic()
        raise KeyboardInterrupt

    def _is_unwinding(self) -> bool:
        return self._raised is not None and time.monotonic() - self._raised < _UNWINDING

    def _try_again(self) -> None:
        if not self._waiting:
            self._waiting = True
            _thread.start_new_thread(self._wait, ())  # takes no lock that the main thread may hold

    def _wait(self) -> None:
        """Sends the signal once more, until its exception is raised."""
        while self._raised is None and not self._over and self.by is not None:
            time.sleep(_AGAIN)
            self._resent = True
            if hasattr(signal, "pthread_kill"):  # it wakes a thread that sleeps, too
                signal.pthread_kill(threading.main_thread().ident or 0, self.by)
            else:
                _thread.interrupt_main(self.by)
        self._waiting = False

    def _lost(self, hook: Any) -> Any:
        """A hook for exceptions that nobody gets, as of the garbage collector's callbacks: ours is raised again."""

        def unraisable(told: Any) -> None:
            if self.by is not None and issubclass(told.exc_type, KeyboardInterrupt):
                self._raised = None
                self._try_again()
            else:
                hook(told)

        return unraisable

    def _leaving(self) -> Any:
        started = time.monotonic()

        def leave(number: int, _: FrameType | None) -> None:
            if time.monotonic() - started > _LEAVING:  # something hangs, and all that matters is done
                os._exit(128 + number)

        return leave


def _ignore() -> None:
    """The interpreter's own end is left alone; it would give each signal its usual effect again."""
    for name in WORDS:
        signal.signal(signal.Signals[name], signal.SIG_IGN)


def heed() -> None:
    """For loops: raises KeyboardInterrupt if a signal asked for the end and its exception was swallowed."""
    if _now is not None:
        _now.heed()


def dealt_with() -> None:
    """For who raised the signal himself, and caught the exception."""
    if _now is not None:
        _now.dealt_with()


def _imports(frame: FrameType | None) -> bool:
    """Whether something is being imported where a frame stands."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False

"""Ctrl-C and the other signals that end a command: a flag, and a KeyboardInterrupt at a moment when it does no harm.

A KeyboardInterrupt that a handler raises comes out wherever Python happens to be. Inside an import it may pass
through C++, which aborts the process, or be swallowed by an `except`. In a callback of the garbage collector it is
printed and lost. Just after a temporary folder is created, before its path is noted, the folder is left behind. So a
signal first sets a flag, and is sent again until the command ends. The exception is raised once the end would be
reported, nothing is being imported, and nobody postpones it (`put_off`). It is raised again if it was swallowed, that
is, if it is not being handled a second later. If even that fails, the guard's exit code says which signal it was.
"""

from __future__ import annotations

import _thread
import atexit
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
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
_AGAIN = 0.02  # seconds between checks whether the exception can be raised
_LONGEST = 30.0  # seconds for which it may be postponed
_UNWINDING = 1.0  # seconds in which a second signal adds nothing: open resources are being closed
_LEAVING = 5.0  # seconds that the interpreter may take to end undisturbed

_now: Ended | None = None


class Ended:
    """Which signal asked this process to end, if one did.

    Args:
        function: the exception is only raised during a call of this function, which reports the end.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.by: signal.Signals | None = None  # the first signal
        self._told, self._process = function.__code__, os.getpid()
        self._since = 0.0  # when that arrived
        self._raised: float | None = None  # when the exception was last raised
        self._resent = self._over = False
        self._put_off = 0  # how many such blocks are open
        self._sending = _thread.allocate_lock()  # the handler does not acquire it

    @contextmanager
    def heeded(self, *, to_the_end: bool = False) -> Iterator[None]:
        """Within, signals raise KeyboardInterrupt, so that open resources are closed and removed.

        Args:
            to_the_end: whether the process ends after the block, so that signals must not disturb its end.
        """
        global _now
        before: dict[int, Any] = {}
        for name in WORDS:
            try:
                number = signal.Signals[name]
                # a shell's background processes ignore Ctrl-C, and a host program may have its own handlers
                if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
                    before[number] = signal.signal(number, self._heed)
            except ValueError:  # not the main thread
                break
        if to_the_end:
            atexit.register(_ignore)  # registered before all others, so that it is called after them
        outer, hook = _now, sys.unraisablehook
        if before:
            _now, sys.unraisablehook = self, self._lost(hook)
        try:
            yield
        finally:
            self.over()
            _now, sys.unraisablehook = outer, hook
            for each, handler in before.items():
                signal.signal(each, self._leaving() if to_the_end else handler)

    def over(self) -> None:
        """From now on signals raise nothing: the end is being reported."""
        with self._sending:  # otherwise a signal sent again could meet the earlier handlers
            self._over = True

    def dealt_with(self) -> None:
        """The signal's sender wanted only the exception."""
        self.by = self._raised = None

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Within, nothing is raised."""
        self._put_off += 1
        try:
            yield
        finally:
            self._put_off -= 1

    def _heed(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a fork that has not set its handlers yet
            os._exit(128 + number)
        resent, self._resent = self._resent, False
        if self._over or (resent and self.by is None):
            return
        if self.by is None:
            self.by, self._since = signal.Signals(number), time.monotonic()
            try:
                _thread.start_new_thread(self._send_again, ())  # does not acquire locks that the main thread may hold
            except RuntimeError:  # no more threads are allowed, so nothing can be postponed
                self._since = -math.inf
        if self._may_raise(frame) and not (resent and _is_handled()):
            self._raised = time.monotonic()
            raise KeyboardInterrupt

    def _may_raise(self, frame: FrameType | None) -> bool:
        now = time.monotonic()
        if self._raised is not None and now - self._raised < _UNWINDING:
            return False
        frames = []
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        if not any(each.f_code is self._told for each in frames):
            return False
        # it does harm during imports and while temporary files are created
        importing = any(each.f_code.co_filename.startswith("<frozen importlib") for each in frames)
        in_tempfile = any(each.f_globals.get("__name__") == "tempfile" for each in frames)
        return now - self._since > _LONGEST or not (self._put_off or importing or in_tempfile)

    def _send_again(self) -> None:
        """Sends the signal again and again, until the end is being reported."""
        last = -math.inf
        while True:
            time.sleep(_AGAIN)
            with self._sending:
                if self._over or self.by is None:
                    return
                if self._raised is not None and time.monotonic() - max(self._raised, last) < _UNWINDING:
                    continue
                last, self._resent = time.monotonic(), True
                if hasattr(signal, "pthread_kill"):  # this also wakes a thread that sleeps
                    signal.pthread_kill(threading.main_thread().ident or 0, self.by)
                else:
                    _thread.interrupt_main(self.by)

    def _lost(self, hook: Any) -> Any:
        """A hook for exceptions that nobody catches, as in garbage collector callbacks: ours is raised again."""

        def unraisable(report: Any) -> None:
            if self.by is not None and issubclass(report.exc_type, KeyboardInterrupt):
                self._raised = None
            else:
                hook(report)

        return unraisable

    def _leaving(self) -> Any:
        started = time.monotonic()

        def leave(number: int, _: FrameType | None) -> None:
            if time.monotonic() - started > _LEAVING:  # something hangs, and all important work is done
                os._exit(128 + number)

        return leave


def _ignore() -> None:
    """Leaves the interpreter's own end alone, in which each signal would have its usual effect again."""
    for name in WORDS:
        signal.signal(signal.Signals[name], signal.SIG_IGN)


@contextmanager
def put_off() -> Iterator[None]:
    """Postpones the exception while it would leave something behind, such as a process that nobody knows of."""
    with nullcontext() if _now is None else _now.put_off():
        yield


def dealt_with() -> None:
    """For those who sent the signal themselves, and caught the exception."""
    if _now is not None:
        _now.dealt_with()


def exit_code() -> int:
    """128 plus the number of the signal that asked for the end; Ctrl-C's if none did."""
    return 128 + (signal.SIGINT if _now is None or _now.by is None else _now.by)


def _is_handled() -> bool:
    """Whether a KeyboardInterrupt, or an exception made of it, is being handled: open resources are being closed."""
    error = sys.exception()
    met: set[int] = set()
    while error is not None and id(error) not in met:
        if isinstance(error, KeyboardInterrupt):
            return True
        met.add(id(error))
        error = error.__context__
    return False

"""Ctrl-C and the other signals that end a command: a flag, and a KeyboardInterrupt where one does no harm.

A KeyboardInterrupt that a handler raises comes out wherever Python happens to be. Inside an import it may pass
through C++, which aborts the process, or be swallowed by an `except`. In a callback of the garbage collector it is
printed and lost. Between the making of a temporary folder and the note of it, the folder stays. So a signal sets a
flag first, and is sent again until the command ends. The exception is raised where its end would be told, nothing is
being imported, and nobody puts it off (`put_off`). It is raised once more if somebody swallowed it, which is so if it
is not being handled a second later. If it comes to nothing even so, the guard's exit code says which signal it was.
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
_AGAIN = 0.02  # seconds between looks whether the exception can be raised now
_LONGEST = 30.0  # seconds for which it is put off
_UNWINDING = 1.0  # seconds in which a second signal adds nothing: what is open is being closed
_LEAVING = 5.0  # seconds that the interpreter may take to end, undisturbed

_now: Ended | None = None


class Ended:
    """Which signal asked this process to end, if one did.

    Args:
        function: whatever is raised in a call of this function is told at the end; nothing is raised elsewhere.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.by: signal.Signals | None = None  # the first of them
        self._told, self._process = function.__code__, os.getpid()
        self._since = 0.0  # when the first one came
        self._raised: float | None = None  # when the exception was raised last
        self._resent = self._over = False
        self._put_off = 0  # blocks that are open
        self._sending = _thread.allocate_lock()  # the handler does not take it

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
        """From now on no signal raises anything: the end is being told."""
        with self._sending:  # or one that is sent again would meet the handlers of before
            self._over = True

    def dealt_with(self) -> None:
        """The signal was somebody's who wanted no more than the exception."""
        self.by = self._raised = None

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Nothing is raised until the block is over."""
        self._put_off += 1
        try:
            yield
        finally:
            self._put_off -= 1

    def _heed(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a fork that has not chosen yet what it heeds
            os._exit(128 + number)
        resent, self._resent = self._resent, False
        if self._over or (resent and self.by is None):
            return
        if self.by is None:
            self.by, self._since = signal.Signals(number), time.monotonic()
            try:
                _thread.start_new_thread(self._send_again, ())  # takes no lock that the main thread may hold
            except RuntimeError:  # no more threads are allowed, so nothing can be put off
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
        # in an import, or in the making of temporary files, it does harm
        importing = any(each.f_code.co_filename.startswith("<frozen importlib") for each in frames)
        in_tempfile = any(each.f_globals.get("__name__") == "tempfile" for each in frames)
        return now - self._since > _LONGEST or not (self._put_off or importing or in_tempfile)

    def _send_again(self) -> None:
        """Sends the signal once more, until its end is being told."""
        last = -math.inf
        while True:
            time.sleep(_AGAIN)
            with self._sending:
                if self._over or self.by is None:
                    return
                if self._raised is not None and time.monotonic() - max(self._raised, last) < _UNWINDING:
                    continue
                last, self._resent = time.monotonic(), True
                if hasattr(signal, "pthread_kill"):  # it wakes a thread that sleeps, too
                    signal.pthread_kill(threading.main_thread().ident or 0, self.by)
                else:
                    _thread.interrupt_main(self.by)

    def _lost(self, hook: Any) -> Any:
        """A hook for exceptions that nobody gets, as of the garbage collector's callbacks: ours is raised again."""

        def unraisable(report: Any) -> None:
            if self.by is not None and issubclass(report.exc_type, KeyboardInterrupt):
                self._raised = None
            else:
                hook(report)

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


@contextmanager
def put_off() -> Iterator[None]:
    """For what an exception in its midst would leave behind, such as a process that nobody knows: it comes later."""
    with nullcontext() if _now is None else _now.put_off():
        yield


def dealt_with() -> None:
    """For who raised the signal himself, and caught the exception."""
    if _now is not None:
        _now.dealt_with()


def exit_code() -> int:
    """128 and the number of the signal that asked for the end; Ctrl-C's if none did."""
    return 128 + (signal.SIGINT if _now is None or _now.by is None else _now.by)


def _is_handled() -> bool:
    """Whether a KeyboardInterrupt, or what was made of one, is being handled: what is open is being closed."""
    error = sys.exception()
    met: set[int] = set()
    while error is not None and id(error) not in met:
        if isinstance(error, KeyboardInterrupt):
            return True
        met.add(id(error))
        error = error.__context__
    return False

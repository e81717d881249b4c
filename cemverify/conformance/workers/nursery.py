"""Starts and ends worker processes, even if the implementation stops or kills the server that forks them.

Linux forks them from a server that has imported torch and the judge (see `preloaded`), and nothing of the
implementation: that takes 50 ms rather than the seconds of an import, which counts where one worker after another is
lost. A command that will need workers has the server start first of all (`get_ready`), and imports torch itself
meanwhile. Code under test can stop or kill that server. So every wait for it has a deadline: a server that does not
answer is killed, and the next process starts another.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

from cemverify.conformance.workers.limits import is_gone

_IMPORTING = 300.0  # seconds that a new server may take, the import of torch included
_STARTING = 30.0  # seconds that a server that is there may take to fork
_ENDING = 2.0  # seconds in which the server tells of the end of a process that was killed


_tried: set[int | None] = set()  # servers that have forked, so that they have imported everything


@cache
def _context() -> Any:
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    context.set_forkserver_preload(["cemverify.conformance.workers.preloaded"])
    return context


def get_ready() -> None:
    """Has the server start, without waiting until it has imported everything; does nothing where there is none."""
    if sys.platform == "linux":
        _ensure_server()
        atexit.unregister(_kill_server)
        atexit.register(_kill_server)  # for a command that is refused since: the server would import to the end


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """What is started meanwhile computes with one thread, as it has to know before it imports torch.

    With more, small tensors crawl.
    """
    before = {key: os.environ.get(key) for key in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    os.environ.update(dict.fromkeys(before, "1"))
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


def start(life: Callable[..., None], *arguments: Any) -> tuple[Any, Connection]:
    """A new process that runs this function on its end of a connection and the arguments; and our end."""
    for attempt in (1, 2):
        ours, theirs = _context().Pipe()
        process = _context().Process(target=life, args=(theirs, *arguments))
        try:
            _ensure_server()
            with _patience(_STARTING if _server() in _tried else _IMPORTING):
                process.start()
        except (EOFError, OSError):
            if attempt == 2:
                raise
        else:
            _tried.add(_server())
            return process, ours
        finally:
            theirs.close()
    raise AssertionError("the second attempt returns or raises")


def _ensure_server() -> None:
    """Starts a server if there is none; it ignores Ctrl-C, which goes to every process of a terminal."""
    if sys.platform != "linux":
        return
    _context()
    before = signal.getsignal(signal.SIGINT)
    heeds = before is not None and threading.current_thread() is threading.main_thread()
    if heeds:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # which is inherited; `preloaded` takes it back
    try:
        with one_thread():
            forkserver.ensure_running()
    finally:
        if heeds:
            signal.signal(signal.SIGINT, before)


def end(process: Any) -> None:
    """Kills a process and waits for its end, with a deadline."""
    _wake_server()  # which tells of the end, and may be stopped
    with contextlib.suppress(OSError):
        process.kill()
    process.join(_ENDING)
    if process.is_alive():
        _kill_server()
        process.join(_ENDING)


@contextlib.contextmanager
def _patience(seconds: float) -> Iterator[None]:
    """Kills a server that takes longer; whoever waits for it then reads the end of the file."""
    _wake_server()
    timer = threading.Timer(seconds, _kill_server)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _server() -> int | None:
    found: int | None = getattr(forkserver._forkserver, "_forkserver_pid", None)
    return found


def _wake_server() -> None:
    _signal_server("SIGCONT")


def _kill_server() -> None:
    _signal_server("SIGKILL")
    pid, until = _server(), time.monotonic() + _ENDING
    while pid is not None and not is_gone(pid) and time.monotonic() < until:  # or it would still be connected to
        time.sleep(0.01)


def _signal_server(name: str) -> None:
    pid = _server()
    if pid is not None and hasattr(signal, name):
        with contextlib.suppress(OSError):
            os.kill(pid, getattr(signal, name))

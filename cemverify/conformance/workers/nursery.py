"""Starts and ends worker processes, even if the implementation stops or kills the server that forks them.

Linux forks them from a server that has imported torch and the judge (see `server_imports`), and nothing of the
implementation. That takes 50 ms instead of the seconds of an import, which matters when many workers are
lost. A command that has imported torch forks the server itself (`get_ready`). Code under test can stop or kill that
server. So every wait for it has a deadline: a server that does not answer is killed, and the next new process starts
another.

A process that nobody has ended is ended with this one, which would otherwise wait for it: an interrupt may come
between the start of a process and the block that ensures its end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from cemverify.conformance.implementations.naming import parts
from cemverify.conformance.workers.limits import end_all, is_gone
from cemverify.console.errors import Refusal
from cemverify.console.interrupts import put_off
from cemverify.processes import forkserver

_IMPORTING = 300.0  # seconds that a new server may take, including the import of torch
_STARTING = 30.0  # seconds that an existing server may take to fork
_ENDING = 2.0  # seconds in which the server must report the end of a killed process


PRELOADED = "cemverify.conformance.workers.server_imports"

_tried: set[int | None] = set()  # servers that have forked, and so have imported everything
_not_ended: dict[Any, Connection] = {}  # processes that were started here, with our end of each connection
_is_seen_to: Callable[[], bool] | None = None  # whether the rest will be ended at exit


def get_ready(name: str) -> None:
    """Makes the server start from this process, before anything looks for a GPU; does nothing without a server.

    Args:
        name: the implementation's. If its package has been imported here, the server starts afresh, because only the
            implementation's process is to import it.
    """
    if forkserver.FORKS:
        package = parts(name)[0].partition(".")[0]
        ours = package == __name__.partition(".")[0]
        start = forkserver.fork_server if ours or package not in sys.modules else forkserver.ensure_server
        start(PRELOADED)


def start(life: Callable[..., None], *arguments: Any) -> tuple[Any, Connection]:
    """A new process that runs this function with its end of a connection and the arguments; and our end."""
    context = forkserver.context(PRELOADED)
    for attempt in (1, 2):
        with put_off():
            _see_to_the_rest()
            ours, theirs = context.Pipe()
            process = context.Process(target=life, args=(theirs, *arguments))
            _not_ended[process] = ours
        try:
            forkserver.ensure_server(PRELOADED)
            with _patience(_STARTING if forkserver.server() in _tried else _IMPORTING):
                process.start()
        except (EOFError, OSError) as error:
            end(process, ours)
            if attempt == 2:
                raise Refusal(
                    f"no worker process can be started ({type(error).__name__}); are too few files or processes "
                    "allowed here (`ulimit -n`, `ulimit -u`)?"
                ) from error
        else:
            _tried.add(forkserver.server())
            return process, ours
        finally:
            with put_off():
                theirs.close()
    raise AssertionError("the second attempt returns or raises")


def end(process: Any, connection: Connection) -> None:
    """Kills a process and all below it, and waits for its end, with a deadline; repeating it does nothing."""
    with put_off():
        if process not in _not_ended:
            return
        if process.pid is not None:
            end_all(process.pid)
        connection.close()
        if process.pid is not None:
            _wake_server()  # the server reports the end, and may be stopped
            with contextlib.suppress(OSError):
                process.kill()
            process.join(_ENDING)
            if process.is_alive():
                _kill_server()
                process.join(_ENDING)
        del _not_ended[process]


def _see_to_the_rest() -> None:
    """Registers the remaining processes to be ended at exit, before Python waits for them."""
    global _is_seen_to
    if _is_seen_to is None or not _is_seen_to():  # as in a fork
        _is_seen_to = forkserver.at_the_end(_end_the_rest)


def _end_the_rest() -> None:
    for process, connection in list(_not_ended.items()):
        end(process, connection)


@contextlib.contextmanager
def _patience(seconds: float) -> Iterator[None]:
    """Kills a server that takes longer; whoever waits for it then reads end of file."""
    _wake_server()
    timer = threading.Timer(seconds, _kill_server)
    timer.daemon = True  # an interrupt may come during its start
    try:
        timer.start()
        yield
    finally:
        timer.cancel()


def _wake_server() -> None:
    _signal_server("SIGCONT")


def _kill_server() -> None:
    _signal_server("SIGKILL")
    pid, until = forkserver.server(), time.monotonic() + _ENDING
    while pid is not None and not is_gone(pid) and time.monotonic() < until:  # or this would still be connected to
        time.sleep(0.01)


def _signal_server(name: str) -> None:
    pid = forkserver.server()
    if pid is not None and hasattr(signal, name):
        with contextlib.suppress(OSError):
            os.kill(pid, getattr(signal, name))

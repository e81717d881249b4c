"""The server from which worker processes are forked: torch is imported there once, and not by each of them.

A command that has imported torch itself forks even the server (`fork_server`), which then imports it no second time.
The server ignores Ctrl-C and what else goes to every process of a terminal, and so do its children until they choose
to heed it. Until it has begun, these wait: a program that ignored them meanwhile for it would miss its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing import forkserver, resource_tracker, util
from typing import Any

from cemverify.console.interrupts import put_off
from cemverify.processes.cores import one_thread
from cemverify.processes.system import LINUX

FORKS = LINUX
# what a terminal sends to all its processes
OF_A_TERMINAL = [signal.Signals[name] for name in ("SIGINT", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]

_imported: dict[str, None] = {"cemverify.processes.server_start": None}  # by the next server, in this order


def context(*modules: str) -> Any:
    """The multiprocessing context of workers: forked from the server on Linux, or started one by one.

    Args:
        modules: what the server imports, with those named before, if it has not been started yet.
    """
    if not FORKS:
        return multiprocessing.get_context("spawn")
    forked = multiprocessing.get_context("forkserver")
    _imported.update(dict.fromkeys(modules))
    forked.set_forkserver_preload(list(_imported))
    return forked


def fork_server(*modules: str) -> None:
    """Has the server start as a fork of this process, with all that it has imported, where a fork is safe.

    That is where no other thread runs, not even one of a library: a lock that it holds would stay locked in the fork.
    Call it before anything looks for a GPU, because CUDA does not survive a fork. Elsewhere as `ensure_server`.
    A server that starts afresh and imports torch once more costs 2.7 seconds of a core at the start of each check.
    """
    if not FORKS or server() is not None or _threads() != 1:
        ensure_server(*modules)
        return
    starting: Any = util
    with put_off():
        _ensure_tracker()  # or it would be forked, too
        executed = starting.spawnv_passfds
        starting.spawnv_passfds = _forked
        try:
            ensure_server(*modules)
        finally:
            starting.spawnv_passfds = executed


def _threads() -> int:
    """How many threads this process has, those of libraries too; 0 where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


def _forked(_: str, arguments: Sequence[Any], descriptors: Sequence[int]) -> int:
    """Starts a program of Python's as a fork: the last argument is what `python -c` would run. Returns its id."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # as where it was closed
            stream.flush()  # or the fork would write what waits once more
    child = os.fork()
    if child:
        return child
    try:
        # as after an exec: no handlers, no descriptors but those that are passed, streams of its own
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ignore_terminal()
        edges = [2, *sorted(descriptors), os.sysconf("SC_OPEN_MAX")]
        for last, following in pairwise(edges):
            os.closerange(last + 1, following)
        sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.__stdout__, sys.__stderr__))  # noqa: SIM115
        exec(arguments[-1], {})  # noqa: S102
    except BaseException:  # noqa: S110
        pass  # no descriptor is left, say; whoever would have a process forked finds no server, and tells it
    finally:
        os._exit(0)


def ensure_server(*modules: str) -> None:
    """Starts the server if there is none, without waiting until it has imported everything."""
    if not FORKS:
        return
    context(*modules)
    with put_off(), one_thread():
        if (running := server()) is not None:
            with contextlib.suppress(OSError):
                os.kill(running, signal.SIGCONT)  # a cell or an implementation may have stopped it
        _shorten_the_temporary_folder()
        _ensure_tracker()
        with _waiting():
            forkserver.ensure_running()
        if server() != running:  # it would go on importing after the end, before it looks whether it is wanted
            util.Finalize(None, _end, (server(),), exitpriority=-50)


def _ensure_tracker() -> None:
    """Starts the process that clears away what processes share, if there is none. It ends after all of them."""
    with _waiting():  # for ever, where it does not choose otherwise
        resource_tracker.ensure_running()


@contextmanager
def _waiting() -> Iterator[None]:
    """What a terminal sends waits: for this thread until the block is over, for a process started in it for ever."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OF_A_TERMINAL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_terminal() -> None:
    """Ignores what a terminal sends, from the start of this process on; does nothing where that does not wait."""
    waiting = signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(OF_A_TERMINAL)
    for number in waiting:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, waiting)


def _end(pid: int | None) -> None:
    """Ends a server; at the end of the command, whose workers have ended."""
    if pid is not None and pid == server():  # or it may be another process by now
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _shorten_the_temporary_folder() -> None:
    """Has the server's socket lie in /tmp where the path would be too long: a socket's has 107 bytes at most."""
    config: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    longest = os.path.join(tempfile.gettempdir(), "pymp-12345678", "listener-12345678")
    if config.get("tempdir") is None and len(os.fsencode(longest)) > 107:
        folder = tempfile.mkdtemp(prefix="pymp-", dir="/tmp")
        util.Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=-100)
        config["tempdir"] = folder


def at_the_end(last: Callable[[], object]) -> Callable[[], bool]:
    """Has a function called at the end of this process, before children that are left are waited for; not in forks.

    Returns:
        Whether it is still to be called: no more in a fork, nor after the end began.
    """
    return util.Finalize(None, last, exitpriority=0).still_active


def server() -> int | None:
    """The process id of the server; None before it was started."""
    pid: int | None = getattr(forkserver._forkserver, "_forkserver_pid", None)
    return pid

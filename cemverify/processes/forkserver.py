"""The server from which worker processes are forked: it imports torch once, so that they need not.

A command that has imported torch itself forks even the server (`fork_server`), so that it need not import it again.
The server ignores Ctrl-C and other signals to all processes of a terminal, and so do its children until they choose
to heed them. Until it has begun, these signals wait: if the program ignored them for it, it would miss its own.
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
# signals that a terminal sends to all its processes
OF_A_TERMINAL = [signal.Signals[name] for name in ("SIGINT", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]

_imported: dict[str, None] = {"cemverify.processes.server_start": None}  # what the next server imports, in this order


def context(*modules: str) -> Any:
    """The multiprocessing context of workers: forked from the server on Linux, elsewhere started one by one.

    Args:
        modules: what the server imports, with those named before, unless it has started.
    """
    if not FORKS:
        return multiprocessing.get_context("spawn")
    forked = multiprocessing.get_context("forkserver")
    _imported.update(dict.fromkeys(modules))
    forked.set_forkserver_preload(list(_imported))
    return forked


def fork_server(*modules: str) -> None:
    """Starts the server as a fork of this process, with all that it has imported, if a fork is safe.

    It is if no other thread runs, not even a library's: a lock that one holds would stay locked in the fork.
    Call it before anything looks for a GPU, because CUDA does not survive a fork. Otherwise as `ensure_server`.
    A server that imports torch again costs 2.7 seconds of a core at the start of each check.
    """
    if not FORKS or server() is not None or _threads() != 1:
        ensure_server(*modules)
        return
    starting: Any = util
    with put_off():
        _ensure_tracker()  # otherwise it would be forked too
        executed = starting.spawnv_passfds
        starting.spawnv_passfds = _forked
        try:
            ensure_server(*modules)
        finally:
            starting.spawnv_passfds = executed


def _threads() -> int:
    """How many threads this process has, including those of libraries; 0 if the system does not say."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


def _forked(_: str, arguments: Sequence[Any], descriptors: Sequence[int]) -> int:
    """Starts a Python program as a fork: the last argument is what `python -c` would run. Returns its id."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it is None if it was closed
            stream.flush()  # otherwise the fork would write the buffer again
    child = os.fork()
    if child:
        return child
    try:
        # as after an exec: no handlers, no descriptors except those passed, streams of its own
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ignore_terminal()
        edges = [2, *sorted(descriptors), os.sysconf("SC_OPEN_MAX")]
        for last, following in pairwise(edges):
            os.closerange(last + 1, following)
        sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.__stdout__, sys.__stderr__))  # noqa: SIM115
        exec(arguments[-1], {})  # noqa: S102
    except BaseException:  # noqa: S110
        pass  # such as no free descriptor; whoever wants a fork finds no server, and reports that
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
        if server() != running:  # it would keep importing after the end, before it checks whether it is needed
            util.Finalize(None, _end, (server(),), exitpriority=-50)


def _ensure_tracker() -> None:
    """Starts the process that cleans up what processes share, if there is none. It ends after all of them."""
    with _waiting():  # it inherits the block, for ever unless it changes that
        resource_tracker.ensure_running()


@contextmanager
def _waiting() -> Iterator[None]:
    """Blocks a terminal's signals: for this thread until the block ends, for processes started in it for ever."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OF_A_TERMINAL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_terminal() -> None:
    """Ignores a terminal's signals that have been blocked since this process started, and unblocks them."""
    waiting = signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(OF_A_TERMINAL)
    for number in waiting:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, waiting)


def _end(pid: int | None) -> None:
    """Ends a server at the end of the command, whose workers have ended."""
    if pid is not None and pid == server():  # by now the id may be another process's
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _shorten_the_temporary_folder() -> None:
    """Puts the server's socket in /tmp if its path would be too long: at most 107 bytes are allowed."""
    config: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    longest = os.path.join(tempfile.gettempdir(), "pymp-12345678", "listener-12345678")
    if config.get("tempdir") is None and len(os.fsencode(longest)) > 107:
        folder = tempfile.mkdtemp(prefix="pymp-", dir="/tmp")
        util.Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=-100)
        config["tempdir"] = folder


def at_the_end(last: Callable[[], object]) -> Callable[[], bool]:
    """Registers a function to call when this process ends, before remaining children are waited for; not in forks.

    Returns:
        A function that says whether it will still be called; false in a fork, and once the end has begun.
    """
    return util.Finalize(None, last, exitpriority=0).still_active


def server() -> int | None:
    """The server's process id; None before it was started."""
    pid: int | None = getattr(forkserver._forkserver, "_forkserver_pid", None)
    return pid

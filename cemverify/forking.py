"""The server from which worker processes are forked: torch is imported there once, and not by each of them.

It ignores Ctrl-C, which goes to every process of a terminal, and so do its children until they choose to heed it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing import forkserver, util
from typing import Any

FORKS = sys.platform == "linux"

_imported: dict[str, None] = {}  # by the next server, in this order


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


def ensure_server(*modules: str) -> None:
    """Starts the server if there is none, without waiting until it has imported everything."""
    if not FORKS:
        return
    context(*modules)
    before = signal.getsignal(signal.SIGINT)
    heeds = before is not None and threading.current_thread() is threading.main_thread()
    if heeds:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # which is inherited
    try:
        with one_thread():
            if (running := server()) is not None:
                with contextlib.suppress(OSError):
                    os.kill(running, signal.SIGCONT)  # a cell or an implementation may have stopped it
            _shorten_the_temporary_folder()
            forkserver.ensure_running()
    finally:
        if heeds:
            signal.signal(signal.SIGINT, before)


def _shorten_the_temporary_folder() -> None:
    """Has the server's socket lie in /tmp where the path would be too long: a socket's has 107 bytes at most."""
    config: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    longest = os.path.join(tempfile.gettempdir(), "pymp-12345678", "listener-12345678")
    if config.get("tempdir") is None and len(os.fsencode(longest)) > 107:
        folder = tempfile.mkdtemp(prefix="pymp-", dir="/tmp")
        util.Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=-100)
        config["tempdir"] = folder


def server() -> int | None:
    """The process id of the server; None before it was started."""
    found: int | None = getattr(forkserver._forkserver, "_forkserver_pid", None)
    return found


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

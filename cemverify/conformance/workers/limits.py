"""Limits on a worker process: how much memory it may hold, and how every process that it started is ended.

Linux limits the private memory of each process (RLIMIT_DATA). Limiting the address space would not do: a
worker that holds 300 MB with JAX imported has reserved 1900. Each child has the same limit again, and shared memory
does not count: malicious code needs a container.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from cemverify.processes.forkserver import OF_A_TERMINAL, ignore_terminal
from cemverify.processes.parent_death import end_with_parent
from cemverify.processes.system import LINUX

LEAST_MEMORY = 512  # MB; a worker needs 200 for itself, and 500 with JAX and transformers imported
USUAL_MEMORY = 4096

_SET_PDEATHSIG, _SET_DUMPABLE, _SET_CHILD_SUBREAPER = 1, 4, 36  # for prctl(2)
_ENDING = 2.0  # seconds until killed processes must be gone


def check_memory(limit: int | None) -> None:
    """Raises if a memory limit, in MB, is too low or cannot be enforced here.

    Raises:
        ValueError: what is wrong with it.
    """
    if limit is None:
        return
    if not limits_memory():
        here = "CEMVERIFY_PORTABLE is set" if sys.platform == "linux" else f"this is {sys.platform}"
        raise ValueError(f"memory can be limited on Linux only, and {here}: leave out --memory")
    if limit < LEAST_MEMORY:
        raise ValueError(f"a worker needs at least {LEAST_MEMORY} MB, and --memory is {limit}: give more")


def limits_memory() -> bool:
    """Whether this platform can limit the memory of a process."""
    return LINUX


def usual_memory(device: str) -> int | None:
    """The default limit in MB; None on devices other than the CPU, because drivers map large amounts of memory."""
    return USUAL_MEMORY if limits_memory() and device == "cpu" else None


def descendants(pid: int) -> list[int]:
    """All descendants of this process, as Linux lists them, including adopted orphans (see `adopt_orphans`)."""
    if not LINUX:
        return []
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [below for child in children for below in (int(child), *descendants(int(child)))]


def leave_terminal() -> None:
    """Puts this process into a session of its own, which Ctrl-C and Ctrl-Z do not reach, and silences it."""
    if LINUX:
        ignore_terminal()  # where the server could not do it
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server that forked it ignores SIGINT
    for number in OF_A_TERMINAL[1:]:
        signal.signal(number, signal.SIG_DFL)
    if LINUX:
        os.setsid()
    # otherwise, what an implementation prints could appear in the middle of a table
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)


def end_all(pid: int) -> None:
    """Kills every process below this one; the orphans that they leave are found where they are adopted."""
    until = time.monotonic() + _ENDING
    while (below := [child for child in descendants(pid) if not is_gone(child)]) and time.monotonic() < until:
        for child in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.002)


def is_gone(pid: int) -> bool:
    """Whether the process ended, whether or not it was waited for."""
    return not LINUX or _state(pid) in "ZX"


def is_stopped(pid: int) -> bool:
    """Whether the process is suspended until somebody resumes it, as by SIGSTOP."""
    return LINUX and _state(pid) == "T"


def _state(pid: int) -> str:
    """Linux's letter for the state of a process; X for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def adopt_orphans() -> None:
    """Makes this process the parent of its orphaned descendants, where the platform allows it."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Makes this process end when its parent does: by a signal on Linux, elsewhere by a thread."""
    if LINUX:
        _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    else:
        end_with_parent()


def guard_memory() -> None:
    """Keeps other processes of this user from accessing this one's memory, where the platform allows it."""
    _prctl(_SET_DUMPABLE, 0)


def _prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def limit(memory: int | None) -> None:
    """Limits the private memory of this process and of each child, in MB, and disables core dumps."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory * 2**20, memory * 2**20))

"""What a worker process may hold and leave behind: a limit on memory, and an end to whatever it started.

Linux keeps each process to an amount of private memory (RLIMIT_DATA). The address space would be the wrong measure:
a worker that holds 300 MB with JAX imported has reserved 1900. Children have the same limit each, and shared
memory does not count: whoever means harm needs a container.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

LEAST_MEMORY = 512  # MB; a worker holds 200 for itself, and 500 with JAX and transformers imported
USUAL_MEMORY = 4096

_SET_CHILD_SUBREAPER = 36  # of prctl(2)


def check_memory(limit: int | None) -> None:
    """Refuses a limit, in MB, that cannot be kept here.

    Raises:
        ValueError: what is wrong with it.
    """
    if limit is None:
        return
    if not limits_memory():
        raise ValueError(f"memory can be limited on Linux only, and this is {sys.platform}: leave --memory out")
    if limit < LEAST_MEMORY:
        raise ValueError(f"a worker needs {LEAST_MEMORY} MB to judge at all, and {limit} were given: give more")


def limits_memory() -> bool:
    """Whether this platform can keep a process to an amount of memory."""
    return sys.platform == "linux"


def usual_memory(device: str) -> int | None:
    """The limit where none is asked for, in MB: none off the CPU, whose drivers map what they please."""
    return USUAL_MEMORY if limits_memory() and device == "cpu" else None


def descendants(pid: int) -> list[int]:
    """Processes below one, as Linux tells; those whose parent ended are its own, see `adopt_orphans`."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [below for child in children for below in (int(child), *descendants(int(child)))]


def adopt_orphans() -> None:
    """Makes this process the parent of its orphaned descendants, where the platform can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def limit(memory: int | None) -> None:
    """Keeps this process, and each that it starts, to so many MB of private memory, and from dumping its core."""
    import resource  # Windows has none

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory * 2**20, memory * 2**20))

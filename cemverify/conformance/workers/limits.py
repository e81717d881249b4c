"""Limits on a worker process: how much memory it may hold, and an end to every process that it started.

Linux limits the private memory of each process (RLIMIT_DATA). The address space would be the wrong measure: a
worker that holds 300 MB with JAX imported has reserved 1900. Each child has the same limit again, and shared memory
does not count: code that means harm needs a container.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

LEAST_MEMORY = 512  # MB; a worker holds 200 for itself, and 500 with JAX and transformers imported
USUAL_MEMORY = 4096

_SET_CHILD_SUBREAPER = 36  # of prctl(2)


def check_memory(limit: int | None) -> None:
    """Raises if a limit, in MB, cannot be enforced here.

    Raises:
        ValueError: what is wrong with it.
    """
    if limit is None:
        return
    if not limits_memory():
        raise ValueError(f"memory can be limited on Linux only, and this is {sys.platform}: leave out --memory")
    if limit < LEAST_MEMORY:
        raise ValueError(f"a worker needs at least {LEAST_MEMORY} MB, and --memory is {limit}: give more")


def limits_memory() -> bool:
    """Whether this platform can limit the memory of a process."""
    return sys.platform == "linux"


def usual_memory(device: str) -> int | None:
    """The default limit in MB; None on devices other than the CPU, because drivers map large amounts of memory."""
    return USUAL_MEMORY if limits_memory() and device == "cpu" else None


def descendants(pid: int) -> list[int]:
    """The descendants of this process, as Linux lists them, including adopted orphans (see `adopt_orphans`)."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [below for child in children for below in (int(child), *descendants(int(child)))]


def adopt_orphans() -> None:
    """Makes this process the parent of its orphaned descendants, where the platform allows it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def limit(memory: int | None) -> None:
    """Limits the private memory of this process and of each child, in MB, and disables core dumps."""
    import resource  # Windows has none

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory * 2**20, memory * 2**20))

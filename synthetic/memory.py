"""How much memory there is, asked before it is used: a worker that is killed cannot report why."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cemverify.console.errors import UsageError


def require(needed: int, use: str, instead: str) -> None:
    """Refuses work that does not fit the memory.

    Args:
        needed: bytes. use: what needs them. instead: what to do.
    """
    if needed > (there := available()):
        raise UsageError(
            f"{use} needs about {needed / 1e9:.1f} GB of memory, but {there / 1e9:.1f} GB are free; {instead}"
        )


def available() -> int:
    """Free bytes: those of this machine, or of the container if that grants less."""
    free = [_of_the_machine()]
    group = Path("/sys/fs/cgroup")
    limit = group / "memory.max"
    if limit.exists() and (granted := limit.read_text().strip()) != "max":
        # cached files count as used memory, though the system frees them when it needs room
        gives_way = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())["inactive_file"]
        free.append(int(granted) - int((group / "memory.current").read_text()) + int(gives_way))
    return max(0, min(free))


def _of_the_machine() -> int:
    table = Path("/proc/meminfo")
    if table.exists():
        for line in table.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if not hasattr(os, "sysconf"):
        return sys.maxsize  # Windows has no such interface: nothing is refused
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # all memory, where free memory is unknown

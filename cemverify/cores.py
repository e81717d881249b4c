"""How many worker processes make sense here."""

from __future__ import annotations

import os


def cores() -> int:
    """The processor cores that this process may use, which a container or a scheduler may have limited."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

"""What a command imports when it runs, since it takes more than a second: torch, Hypothesis and the verifier."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cemverify.console.guard import importing
from cemverify.processes.cores import one_thread


@contextmanager
def slow_imports() -> Iterator[None]:
    """Imports without the garbage collector, and on one thread: NumPy's other threads would prevent a fork."""
    with importing(), one_thread():
        yield

"""The metrics of a run as JSON lines: one for each step, and one for each look inside the layers.

    {"step": 12, "bits": 4.41, "norm": 1.3, "learning_rate": 0.0019, "rate": 15400.0}
    {"step": 80, "layers": [{"layer": 1, "kind": "attention", "energies": [-30.8, -39.1], ...}]}

A run that goes on from a checkpoint first drops the lines behind it, so that each step has one line, and lines that
cannot be read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cemverify.console.errors import UsageError
from cemverify.results.envelope import ResultError, finite, write_text


class Metrics:
    """A metrics file that is being written; without a path, nothing is."""

    def __init__(self, path: Path | None, after: int = 0) -> None:
        """Opens it, with the lines up to step `after`."""
        self.path = path
        self._file = None
        if path is None:
            return
        with _refusals(path):
            before = path.read_bytes().splitlines() if after and path.exists() else []
            write_text(path, "".join(f"{line.decode()}\n" for line in before if _step_of(line) <= after))
            self._file = path.open("a", encoding="utf-8", buffering=1)  # a whole line at a time

    def add(self, line: Mapping[str, Any]) -> None:
        """Writes one line; numbers that are not finite become null."""
        if self._file is not None:
            with _refusals(self.path):
                self._file.write(json.dumps(finite(line), allow_nan=False) + "\n")

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            with _refusals(self.path):
                self._file.close()


def _step_of(line: bytes) -> float:
    """The step of a line; infinite if it cannot be read."""
    try:
        step = json.loads(line)["step"]
    except (LookupError, RecursionError, TypeError, ValueError):
        return math.inf
    return step if type(step) is int else math.inf


@contextmanager
def _refusals(path: Path | None) -> Iterator[None]:
    """What the system refuses becomes a sentence."""
    try:
        yield
    except (OSError, ResultError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot write the metrics {path}: {reason}") from error

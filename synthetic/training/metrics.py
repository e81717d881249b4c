"""The metrics of a run as JSON lines: one for each step, and one for each look inside the layers.

    {"step": 12, "bits": 4.41, "norm": 1.3, "learning_rate": 0.0019, "rate": 15400.0}
    {"step": 80, "layers": [{"layer": 1, "kind": "attention", "energies": [-30.8, -39.1], ...}]}

A run that goes on from a checkpoint first drops the lines behind it, so that each step has one line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cemverify.console.errors import UsageError
from cemverify.results.envelope import ResultError, finite, write_text


class Metrics:
    """A metrics file that is being written; without a path, nothing is."""

    def __init__(self, path: Path | None, after: int = 0) -> None:
        """Opens it, keeping the lines up to step `after`.

        Raises:
            UsageError: it cannot be written, or what is there is damaged.
        """
        self.path = path
        self._file = None
        if path is None:
            return
        before = [line for line in lines(path) if line["step"] <= after] if after else []
        with _refusals("write", path):
            write_text(path, "".join(json.dumps(line) + "\n" for line in before))
            self._file = path.open("a", encoding="utf-8", buffering=1)  # a whole line at a time

    def add(self, line: Mapping[str, Any]) -> None:
        """Writes one line; numbers that are not finite become null.

        Raises:
            UsageError: the disk is full.
        """
        if self._file is not None:
            with _refusals("write", self.path):
                self._file.write(json.dumps(finite(line), allow_nan=False) + "\n")

    def close(self) -> None:
        """Closes the file.

        Raises:
            UsageError: the disk is full.
        """
        if self._file is not None:
            with _refusals("write", self.path):
                self._file.close()


def lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; a last one that was cut off is left out.

    Raises:
        UsageError: it cannot be read, or a line before the last is not one of metrics.
    """
    with _refusals("read", path):
        text = path.read_bytes() if path.exists() else b""
    contents: list[dict[str, Any]] = []
    written = text.split(b"\n")
    for number, line in enumerate(written[:-1], 1):  # what stands behind the last line break was cut off
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict) or type(content.get("step")) is not int:
            raise UsageError(f"line {number} of the metrics {path} is damaged; remove the line, or start anew")
        contents.append(content)
    return contents


@contextmanager
def _refusals(act: str, path: Path | None) -> Iterator[None]:
    """What the system refuses becomes a sentence."""
    try:
        yield
    except (OSError, ResultError) as error:
        raise UsageError(f"cannot {act} the metrics {path}: {getattr(error, 'strerror', None) or error}") from error

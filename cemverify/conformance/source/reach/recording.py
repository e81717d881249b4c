"""Records, with coverage.py, which lines and branches of an implementation run while it answers.

It records in the process that holds the implementation, and only while that is called: what runs at import,
and what this package does between calls, is not recorded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coverage import Coverage
from coverage.exceptions import CoverageException

from cemverify.conformance.implementations.faults import is_library, words
from cemverify.conformance.source.reading.code import OwnCode
from cemverify.conformance.source.reading.own import text_of


class LineRecorder:
    """Records the files of one implementation, one property after another."""

    def __init__(self, code: OwnCode) -> None:
        self.code = code
        self.problem = ""  # why nothing is recorded any more, if that is so
        self._context = 0
        self._watches = False
        self._known = set(sys.modules)
        # patterns of coverage.py, where `?` stands for any character
        patterns = ["".join("?" if c in "[]{}*" else c for c in file.path) for file in code.files]
        self._coverage = Coverage(
            data_file=None, config_file=False, branch=True, include=patterns, messages=False, check_preimported=False
        )
        self._next()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context that records the lines and branches of the implementation that run."""
        if self.problem or self._watches or not self.code.files:  # a call may be made within another
            yield
            return
        self._watches = True
        self._tried(self._coverage.start)
        try:
            yield
        finally:
            self._watches = False
            self._tried(self._coverage.stop)

    def reached(self, *, finished: bool) -> dict[str, Any]:
        """What ran since the last time that something was finished, as plain data.

        Args:
            finished: whether to start afresh for what comes next.

        Returns:
            By path, the first lines of statements, and the branches taken; and a problem, if there is one.
        """
        files: dict[str, Any] = {}
        if not self.problem and self.code.files:
            data = self._tried(self._coverage.get_data)
            if data is not None:
                data.set_query_context(str(self._context))
                for file in self.code.files:
                    pairs = [(int(a), int(b)) for a, b in data.arcs(file.path) or ()]
                    lines = {abs(n) for pair in pairs for n in pair if n > 0}
                    exits = [list(pair) for pair in sorted(file.lines.exits(pairs))]
                    files[file.path] = [sorted(file.lines.statements(lines)), exits]
        if finished:
            self._next()
        return {"files": files, "problem": self.problem or self._changes()}

    def _next(self) -> None:
        self._context += 1
        if not self.code.files:
            return
        with self.watching():
            self._tried(self._coverage.switch_context, str(self._context))

    def _tried(self, call: Any, *arguments: Any) -> Any:
        """The result, unless the code under test has interfered; then nothing more is recorded."""
        if self.problem:
            return None
        try:
            return call(*arguments)
        except (CoverageException, ValueError, RuntimeError, AttributeError, OSError) as error:
            self.problem = f"recording its lines failed: {words(error)}"
            return None

    def _changes(self) -> str:
        """A sentence if its files have changed since they were imported."""
        for file in self.code.files:
            try:
                same = text_of(file.path) == file.text
            except (OSError, SyntaxError, ValueError):
                same = False
            if not same:
                return f"{file.label} changed while it was judged: what was imported is reported"
        folder = os.path.join(os.path.dirname(self.code.files[0].path), "") if self.code.files else None
        for name in sys.modules.keys() - self._known:
            path = getattr(sys.modules.get(name), "__file__", None)
            if folder and isinstance(path, str) and path.startswith(folder) and not is_library(path):
                return f"{os.path.basename(path)} was imported by a call, so its lines are not counted"
        return ""

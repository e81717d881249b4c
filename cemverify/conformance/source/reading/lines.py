"""The statements and branches of a file, as coverage.py sees them.

A statement is identified by its first line. One that runs when the file is imported (a `def`, a constant) is
distinguished from one that only a call reaches. What `# pragma: no cover` excludes is left out.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coverage.parser import PythonParser

from cemverify.conformance.source.reading.own import SourceFile

_EXCLUDED = r"#\s*(pragma|PRAGMA)[:\s]?\s*(no|NO)\s*(cover|COVER)"  # coverage.py's own rule

_DECORATED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Arc = tuple[int, int]


@dataclass(frozen=True)
class Lines:
    """The lines of a file."""

    called: frozenset[int]  # first lines of statements that only a call reaches
    imported: frozenset[int]  # first lines of statements that run at import
    # for each line with several successors, these lines; a negative one leaves a function
    branches: Mapping[int, frozenset[int]]
    first: Mapping[int, int]  # for each later line of a statement, its first

    def statements(self, lines: Iterable[int]) -> set[int]:
        """The statements of these lines that only a call reaches."""
        return {self.first.get(line, line) for line in lines} & self.called

    def exits(self, arcs: Iterable[Arc]) -> set[Arc]:
        """The branches among these transitions between lines, as transitions between statements."""
        pairs = {(self.first.get(a, a), self.first.get(b, b)) for a, b in arcs}
        return {(a, b) for a, b in pairs if b in self.branches.get(a, ())}


def lines_of(file: SourceFile) -> Lines:
    """The lines of a file.

    Raises:
        ValueError: coverage.py cannot parse it.
    """
    parser = PythonParser(text=file.text, filename=file.path, exclude=_EXCLUDED)
    try:
        parser.parse_source()
        arcs = parser.arcs()
    except Exception as error:  # coverage.py's own exception, or whatever an unusual file causes
        raise ValueError(f"coverage.py cannot read it ({type(error).__name__})") from error
    inside: set[int] = set()  # without signatures, which run where a function is defined
    for node in ast.walk(file.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            decorators = first.decorator_list if isinstance(first, _DECORATED) else []
            start = min([first.lineno, *(decorator.lineno for decorator in decorators)])
            inside.update(range(start, (node.end_lineno or node.lineno) + 1))
    statements = frozenset(parser.statements)
    called = statements & inside
    ways: defaultdict[int, set[int]] = defaultdict(set)
    for a, b in arcs:
        if a in called and a != b:
            ways[a].add(b)
    branches = {line: frozenset(to - parser.excluded) for line, to in ways.items() if len(to) > 1}
    starts = {line: start for line, start in parser.multiline_map.items() if line != start}
    return Lines(called, statements - called, branches, starts)

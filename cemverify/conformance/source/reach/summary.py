"""What a run reached of an implementation's code, altogether and property by property."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cemverify.conformance.implementations.faults import printable
from cemverify.conformance.source.reading.code import CodeFile, OwnCode
from cemverify.conformance.source.reading.own import source_lines

Branch = tuple[int, int]
_BY_A_LIBRARY = ("forward", "backward", "setup_context", "__init__", "__call__")  # methods that it calls


@dataclass(frozen=True)
class Trail:
    """What ran while one property was asked: statements by their first lines, and branches, by path."""

    lines: Mapping[str, frozenset[int]] = field(default_factory=dict)
    branches: Mapping[str, frozenset[Branch]] = field(default_factory=dict)
    problem: str = ""


def joined(trails: Iterable[Trail]) -> Trail:
    """What ran in any of them."""
    lines: dict[str, frozenset[int]] = {}
    branches: dict[str, frozenset[Branch]] = {}
    problem = ""
    for trail in trails:
        lines |= {path: lines.get(path, frozenset()) | more for path, more in trail.lines.items()}
        branches |= {path: branches.get(path, frozenset()) | more for path, more in trail.branches.items()}
        problem = problem or trail.problem
    return Trail(lines, branches, problem)


def trail_of(message: object) -> Trail:
    """What a process said that it reached; nothing if that cannot be read."""
    try:
        assert isinstance(message, Mapping)
        files: Mapping[str, Any] = message["files"]
        lines = {str(path): frozenset(map(int, file[0])) for path, file in files.items()}
        branches = {str(p): frozenset((int(a), int(b)) for a, b in file[1]) for p, file in files.items()}
        return Trail(lines, branches, printable(str(message["problem"])))
    except Exception:  # it comes from the implementation's process, and may be anything
        return Trail(problem="its process sent no account of what it reached")


@dataclass(frozen=True)
class FileReach:
    """What was reached of one file."""

    file: CodeFile
    by: Mapping[int, tuple[str, ...]]  # for each line that was reached, the ids of the properties
    # the lines of which not every branch was taken, with the lines to which nothing went; a negative one stands for
    # the end of the function
    branches: Mapping[int, tuple[int, ...]]
    # first lines of the statements that only a call reaches, in functions that were called or that these name
    statements: frozenset[int] = frozenset()

    @property
    def never(self) -> list[int]:
        """Those of them that no call reached."""
        return sorted(self.statements - self.by.keys())

    @property
    def counts(self) -> tuple[int, int]:
        """How many of them were reached, and how many there are."""
        return len(self.statements) - len(self.never), len(self.statements)

    def line(self, number: int) -> str:
        """The text of a line of the file, by its number from 1."""
        lines = source_lines(self.file.text)
        return lines[number - 1] if 0 < number <= len(lines) else ""


@dataclass(frozen=True)
class Reach:
    """What a run reached."""

    files: Sequence[FileReach]  # those with lines that only a call reaches
    problems: Sequence[str]  # what could not be read or recorded
    traced: bool = False  # whether functions run once for each trace, and not in every call
    looked_around: int = 0  # how many of its numbers questions were asked around

    @property
    def counts(self) -> tuple[int, int]:
        """How many statements were reached, and how many there are, of all files."""
        pairs = [file.counts for file in self.files]
        return sum(reached for reached, _ in pairs), sum(all_ for _, all_ in pairs)

    @property
    def percent(self) -> float | None:
        """The share of the statements that were reached; None if there are none."""
        reached, statements = self.counts
        return 100 * reached / statements if statements else None


def summed(code: OwnCode, trails: Mapping[str, Trail], lost: Iterable[str] = (), looked_around: int = 0) -> Reach:
    """What was reached altogether.

    Args:
        trails: by the id of the property. lost: ids of properties whose process ended before it could tell.
    """
    called = _called(code, trails)
    files = [_of_file(file, trails, called[file.path]) for file in code.files if called[file.path]]
    problems = [*code.problems, *(trail.problem for trail in trails.values() if trail.problem)]
    if ended := len(list(lost)):
        many = f"{ended} properties" if ended > 1 else "1 property"
        problems.append(f"what {many} reached is not known, as the process ended")
    return Reach(files, tuple(dict.fromkeys(problems)), code.traced, looked_around)


def _called(code: OwnCode, trails: Mapping[str, Trail]) -> dict[str, frozenset[int]]:
    """By file, the statements of functions of which something ran, or that such a function names, and so on.

    Not what the import alone runs, as a factory, nor the rest of an imported file. A method that a library calls by
    its name counts where its class is named. If nothing ran, nothing is known, and all count.
    """
    ran = joined(trails.values()).lines
    all_ = {file.path: file.lines.called for file in code.files}
    try:
        waiting = [(file.path, *function) for file in code.files for function in _functions(file)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the text comes from the implementation's process
        return all_
    if not any(ran.get(path, frozenset()) & lines for path, lines in all_.items()):
        return all_
    counted: dict[str, set[int]] = {path: set(ran.get(path, ())) & lines for path, lines in all_.items()}
    words: set[str] = set()
    while found := [each for each in waiting if counted[each[0]] & each[2] or each[1] & words]:
        waiting = [each for each in waiting if each not in found]
        for path, _, lines, own in found:
            counted[path] |= lines & all_[path]
            words |= own
    return {path: frozenset(lines) for path, lines in counted.items()}


def _functions(file: CodeFile) -> Iterator[tuple[set[str], set[int], set[str]]]:
    """The names by which each function is called, its lines without those of functions inside it, and their words."""
    texts = source_lines(file.text)

    def inside(node: ast.AST, of: str) -> Iterator[tuple[set[str], set[int], set[str]]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = [n for n in ast.walk(child) if n is not child and isinstance(n, ast.FunctionDef)]
                lines = set(range(child.body[0].lineno, (child.end_lineno or 0) + 1))
                lines -= {line for n in inner for line in range(n.lineno + 1, (n.end_lineno or 0) + 1)}
                names = {of} if of and child.name in _BY_A_LIBRARY else {child.name}
                yield names, lines, {word for line in lines for word in re.findall(r"\w+", texts[line - 1])}
            yield from inside(child, child.name if isinstance(child, ast.ClassDef) else "")

    return inside(ast.parse(file.text), "")


def _of_file(file: CodeFile, trails: Mapping[str, Trail], statements: frozenset[int]) -> FileReach:
    by: dict[int, list[str]] = {}
    taken: set[Branch] = set()
    for id_, trail in trails.items():
        for line in trail.lines.get(file.path, ()):
            by.setdefault(line, []).append(id_)
        taken |= trail.branches.get(file.path, frozenset())
    missing = {
        line: tuple(sorted(b for b in to if (line, b) not in taken))
        for line, to in sorted(file.lines.branches.items())
        if line in by
    }
    return FileReach(
        file, {n: tuple(ids) for n, ids in sorted(by.items())}, {n: to for n, to in missing.items() if to}, statements
    )


def ranges(lines: Iterable[int], between: Iterable[int] = ()) -> list[tuple[int, int]]:
    """Line numbers as ranges; lines that are no statements do not break one.

    Args:
        between: the statements that do.
    """
    wanted, ends = sorted(lines), sorted(set(between) - set(lines))
    pairs: list[tuple[int, int]] = []
    for line in wanted:
        if pairs and not any(pairs[-1][1] < other < line for other in ends):
            pairs[-1] = (pairs[-1][0], line)
        else:
            pairs.append((line, line))
    return pairs

"""What a run reached of an implementation's code, in total and by property."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cemverify.conformance.implementations.faults import printable
from cemverify.conformance.implementations.origin import Place
from cemverify.conformance.source.reading.code import CodeFile, OwnCode
from cemverify.conformance.source.reading.functions import Function, called_at_import, functions_in
from cemverify.conformance.source.reading.own import source_lines

Branch = tuple[int, int]
_At = tuple[str, Function]


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
    """What a process said that it reached; empty if that cannot be read."""
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
    """What was reached in one file."""

    file: CodeFile
    by: Mapping[int, tuple[str, ...]]  # for each line that was reached, the ids of the properties that reached it
    # lines with a branch that was not taken, and the lines to which it leads; a negative one stands for
    # the end of the function
    branches: Mapping[int, tuple[int, ...]]
    # first lines of statements that only calls reach, in functions that were called or that these name, and so on
    statements: frozenset[int] = frozenset()
    uncalled: Sequence[str] = ()  # names of the other functions, except those that are called at import

    @property
    def never(self) -> list[int]:
        """The lines of `statements` that no call reached."""
        return sorted(self.statements - self.by.keys())

    @property
    def counts(self) -> tuple[int, int]:
        """How many of `statements` were reached, and how many there are."""
        return len(self.statements) - len(self.never), len(self.statements)

    def line(self, number: int) -> str:
        """The text of a line of the file, counted from 1."""
        lines = source_lines(self.file.text)
        return lines[number - 1] if 0 < number <= len(lines) else ""


@dataclass(frozen=True)
class SharedFunction:
    """A function that runs in an energy layer's update and in other functions that it declares."""

    place: Place
    runs_in: tuple[str, ...]  # those others: "energy", "state map", "reference" ...


@dataclass(frozen=True)
class Reach:
    """What a run reached."""

    files: Sequence[FileReach]  # those with lines that only a call reaches
    problems: Sequence[str]  # what could not be read or recorded
    traced: bool = False  # whether functions run only while they are traced, and not in every call
    looked_around: Sequence[float] = ()  # those of its numbers that questions were asked around
    shared: Sequence[SharedFunction] = ()  # what comparing the update with the declaration cannot judge

    @property
    def counts(self) -> tuple[int, int]:
        """How many statements were reached, and how many there are, in all files."""
        pairs = [file.counts for file in self.files]
        return sum(reached for reached, _ in pairs), sum(all_ for _, all_ in pairs)

    @property
    def percent(self) -> float | None:
        """The percentage of the statements that were reached; None if there are none."""
        reached, statements = self.counts
        return 100 * reached / statements if statements else None


def summed(
    code: OwnCode, trails: Mapping[str, Trail], lost: Iterable[str] = (), looked_around: Iterable[float] = ()
) -> Reach:
    """What was reached in total.

    Args:
        trails: by the property's id. lost: ids of properties whose process ended before it could report.
    """
    called = _called(code, joined(trails.values()).lines)
    files = [_of_file(file, trails, *called[file.path]) for file in code.files if called[file.path][0]]
    problems = [*code.problems, *(trail.problem for trail in trails.values() if trail.problem)]
    if ended := len(list(lost)):
        many = f"{ended} properties" if ended > 1 else "1 property"
        problems.append(f"what {many} reached is not known, as the process ended")
    return Reach(files, tuple(dict.fromkeys(problems)), code.traced, sorted(looked_around))


def _called(code: OwnCode, ran: Mapping[str, frozenset[int]]) -> dict[str, tuple[frozenset[int], tuple[str, ...]]]:
    """By file, the statements of functions that were called, or named by such a function, and so on; and the names of
    the other functions, except those that are called at import, such as a factory.

    A method that a library calls by its name counts if its class is named. If nothing ran, nothing is known, and
    all count.
    """
    all_ = {file.path: file.lines.called for file in code.files}
    unknown: dict[str, tuple[frozenset[int], tuple[str, ...]]] = {path: (lines, ()) for path, lines in all_.items()}
    try:
        functions = [(file.path, each) for file in code.files for each in functions_in(file.text)]
        at_import = frozenset[str]().union(*(called_at_import(file.text) for file in code.files))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the text comes from the implementation's process
        return unknown
    if not any(ran.get(path, frozenset()) & lines for path, lines in all_.items()):
        return unknown
    began = {(path, f) for path, f in functions if f.began(all_[path], ran.get(path, ()))}
    plain = [(path, f) for path, f in functions if f.name.endswith(f.called)]
    outside = _named(plain, at_import, lambda f: f.calls) | {(path, f) for path, f in functions if f.is_constructor}
    words = frozenset[str]().union(*(f.words for _, f in began))
    led_to = began | _named(functions, words, lambda f: f.words) - outside
    counted = {}
    for path, lines in all_.items():
        of_calls = frozenset[int]().union(*(f.lines for at, f in led_to if at == path)) | ran.get(path, frozenset())
        others = [f.name for at, f in functions if at == path and (at, f) not in led_to | outside]
        counted[path] = of_calls & lines, tuple(others)
    return counted


def _named(
    functions: Collection[_At], words: frozenset[str], words_of: Callable[[Function], frozenset[str]]
) -> set[_At]:
    """The functions, each with its file, that these words name, or the words of such a function, and so on."""
    found: set[_At] = set()
    while more := {(path, f) for path, f in functions if f.called in words} - found:
        found |= more
        words = words.union(*(words_of(f) for _, f in more))
    return found


def _of_file(
    file: CodeFile, trails: Mapping[str, Trail], statements: frozenset[int], uncalled: Sequence[str]
) -> FileReach:
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
    reached = {n: tuple(ids) for n, ids in sorted(by.items())}
    return FileReach(file, reached, {n: to for n, to in missing.items() if to}, statements, uncalled)


def ranges(lines: Iterable[int], between: Iterable[int] = ()) -> list[tuple[int, int]]:
    """Line numbers as ranges; a gap without a line of `between` does not split one.

    Args:
        between: the statements that split ranges.
    """
    wanted, ends = sorted(lines), sorted(set(between) - set(lines))
    pairs: list[tuple[int, int]] = []
    for line in wanted:
        if pairs and not any(pairs[-1][1] < other < line for other in ends):
            pairs[-1] = (pairs[-1][0], line)
        else:
            pairs.append((line, line))
    return pairs

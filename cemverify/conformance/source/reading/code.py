"""What was read of an implementation's code, as plain data to send from the process that holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cemverify.conformance.implementations.contract import Subject
from cemverify.conformance.implementations.faults import printable, words
from cemverify.conformance.implementations.origin import functions_of
from cemverify.conformance.source.reading.lines import Lines, lines_of
from cemverify.conformance.source.reading.numbers import Number, numbers_in
from cemverify.conformance.source.reading.own import own_files

_MOST_TEXT = 2**21  # characters in all files together
_COMPILERS = ("torch.compile", "jax.jit", "@jit", "jit(", ".script(")


@dataclass(frozen=True)
class CodeFile:
    """One of the implementation's files."""

    path: str  # its path
    label: str  # its name in reports
    text: str  # its content when it was imported
    lines: Lines


@dataclass(frozen=True)
class OwnCode:
    """An implementation's own code."""

    files: tuple[CodeFile, ...] = ()  # its module first; none if there was nothing to read
    numbers: tuple[Number, ...] = ()  # the numbers in them
    problems: tuple[str, ...] = ()  # a sentence each: what could not be read, and why
    # whether some of its functions run only while they are traced for a compiler, and not in every call
    traced: bool = False


def read_code(module: str, subject: Subject) -> OwnCode:
    """The code of an implementation, whose module has been imported in this process."""
    own = own_files(module, subject)
    files: list[CodeFile] = []
    problems, read = list(own.problems), []
    for file in own.files:
        if sum(len(one.text) for one in files) + len(file.text) > _MOST_TEXT:
            problems.append(f"{file.label} is too long to read")
            continue
        try:
            files.append(CodeFile(file.path, file.label, file.text, lines_of(file)))
        except (ValueError, RecursionError, MemoryError) as error:
            problems.append(f"{file.label} could not be read: {words(error)}")
        else:
            read.append(file)
    try:
        numbers = numbers_in(read, dict(functions_of(subject)))
    except (RecursionError, MemoryError) as error:
        numbers, problems = (), [*problems, f"its numbers could not be read: {words(error)}"]
    traced = subject.arrays == "jax" or any(word in file.text for file in files for word in _COMPILERS)
    return OwnCode(tuple(files), numbers, tuple(problems), traced)


def as_plain(code: OwnCode) -> dict[str, Any]:
    """The code as lists, numbers and strings."""
    return {
        "files": [
            {
                "path": file.path,
                "shown": file.label,
                "text": file.text,
                "called": sorted(file.lines.called),
                "imported": sorted(file.lines.imported),
                "branches": [[line, sorted(to)] for line, to in sorted(file.lines.branches.items())],
                "first": [list(pair) for pair in sorted(file.lines.first.items())],
            }
            for file in code.files
        ],
        "numbers": [
            [n.value, n.telling, [list(guard) for guard in sorted(n.guards)], sorted(n.words)] for n in code.numbers
        ],
        "problems": list(code.problems),
        "traced": code.traced,
    }


def from_plain(content: object) -> OwnCode:
    """The code that `as_plain` wrote. It comes from the implementation's process, so it may be anything.

    In any case, strings are printable and numbers are numbers.
    """
    try:
        assert isinstance(content, Mapping)
        files = tuple(
            CodeFile(
                str(file["path"]),
                printable(str(file["shown"])),
                str(file["text"]),
                Lines(
                    frozenset(map(int, file["called"])),
                    frozenset(map(int, file["imported"])),
                    {int(line): frozenset(map(int, to)) for line, to in file["branches"]},
                    {int(line): int(first) for line, first in file["first"]},
                ),
            )
            for file in content["files"]
        )
        numbers = []
        for value, telling, guards, words in content["numbers"]:
            tests = frozenset((str(path), int(line)) for path, line in guards)
            numbers.append(Number(abs(float(value)), int(telling), tests, frozenset(map(str, words))))
        problems = tuple(printable(str(one)) for one in content["problems"])
        return OwnCode(files, tuple(numbers), problems, bool(content["traced"]))
    except Exception:
        return OwnCode(problems=("its process sent no account of its code",))

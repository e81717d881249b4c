"""An implementation's own files: its module, and what was imported from its folder or below.

Its functions may be written elsewhere; then the folders of their files count as well.
Libraries are not its own, whether installed (site-packages) or part of Python, and neither is this package. If
there is nothing to read, a sentence says why; the implementation is then only judged by its answers.
"""

from __future__ import annotations

import ast
import io
import os
import sys
import tokenize
from dataclasses import dataclass

from cemverify.conformance.implementations.contract import Subject
from cemverify.conformance.implementations.faults import is_library, printable, words
from cemverify.conformance.implementations.origin import code_of, display, folders_of, functions_of, own_modules

_MOST_FILES = 100
_MOST_LINES = 20_000  # in all files together


@dataclass(frozen=True)
class SourceFile:
    """One of its files."""

    path: str  # its absolute path
    label: str  # its name in reports
    text: str  # its content when it was read
    tree: ast.Module
    names: dict[str, int | float]  # the numbers that its module's names had when it was read


@dataclass(frozen=True)
class OwnFiles:
    """What can be read of an implementation."""

    folders: tuple[str, ...]  # files below these are its own
    files: tuple[SourceFile, ...]  # its own files that were imported, its module first
    problems: tuple[str, ...] = ()  # a sentence each: what could not be read


def own_files(module: str, subject: Subject) -> OwnFiles:
    """The files of the implementation in that module, which has been imported."""
    try:
        return _read(module, subject)
    except Exception as error:  # a module may be any object, and its attributes may do anything
        return OwnFiles((), (), (f"its code could not be read: {words(error)}",))


def _read(name: str, subject: Subject) -> OwnFiles:
    module_ = sys.modules.get(name)
    file_ = getattr(module_, "__file__", None)
    if not isinstance(file_, str):
        return OwnFiles((), (), (f"the module {printable(name)} has no file, so its code cannot be read",))
    path = os.path.abspath(file_)
    codes = {name: code_of(function) for name, function in functions_of(subject)}
    written = [os.path.abspath(code.co_filename) for code in codes.values() if code is not None]
    starts = [file for file in dict.fromkeys((path, *written)) if os.path.isfile(file) and not is_library(file)]
    if not any(file.endswith(".py") for file in starts):
        why = "is a library's or cemverify's: only your own files are read"
        why = why if is_library(path) else "has no lines of Python to read"
        return OwnFiles((), (), (f"{printable(os.path.basename(path))} {why}",))
    folders = folders_of(starts)
    modules = own_modules(folders)
    files: list[SourceFile] = []
    problems = [
        f"{name} was generated while the program ran ({printable(code.co_filename)}), so its lines are not seen"
        for name, code in codes.items()
        if code is not None and code.co_filename.startswith("<")
    ]
    lines = 0
    for file, (_, module) in sorted(modules.items(), key=lambda item: (item[0] not in starts, item[0])):
        try:
            text = text_of(file)
            names = {key: value for key, value in list(vars(module).items()) if type(value) in (int, float)}
            one = SourceFile(file, display(file), text, ast.parse(text), names)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            problems.append(f"{display(file)} could not be read: {words(error)}")
            continue
        lines += one.text.count("\n")
        if len(files) == _MOST_FILES or lines > _MOST_LINES:
            problems.append(f"only {len(files)} of {len(modules)} files were read, as there are so many lines")
            break
        files.append(one)
    return OwnFiles(folders, tuple(files), tuple(problems))


def text_of(path: str) -> str:
    """The text of a file of Python.

    Raises:
        OSError, SyntaxError, ValueError: it cannot be read in the encoding that it declares.
    """
    with tokenize.open(path) as stream:
        return stream.read()


def source_lines(text: str, *, with_ends: bool = False) -> list[str]:
    """The lines of a text as Python counts them: form feeds and Unicode line separators end none."""
    lines = io.StringIO(text, newline="").readlines()
    return lines if with_ends else [line.rstrip("\r\n") for line in lines]

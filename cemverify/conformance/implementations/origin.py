"""Where an implementation is written: the file and line of each of its functions, and a digest of its source."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from cemverify.conformance.implementations.contract import Subject
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.faults import is_library, printable
from cemverify.conformance.implementations.online import Recurrence

_PROGRAMS = ("__main__", "__mp_main__")  # whatever called the verifier
_DEEPEST = 16  # wrappers around a function that are looked through


@dataclass(frozen=True)
class Place:
    """A line of a file."""

    file: str  # its path, relative to the current folder where it lies below it
    line: int  # from 1
    name: str = ""  # of the function, with its class
    last: int = 0  # its last line, where that is known

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def lines(self) -> str:
        """All its lines, as far as known."""
        return f"{self}-{self.last}" if self.last > self.line else str(self)

    def holds(self, line: Place) -> bool:
        """Whether a line is one of them."""
        return self.file == line.file and self.line <= line.line <= self.last


@dataclass(frozen=True)
class Origin:
    """Where an implementation is written."""

    # SHA-256 of the files that it was imported from, libraries left out; None where there is no file
    digest: str | None = None
    # of its functions, by name, if they are written in Python
    places: Mapping[str, Place] = field(default_factory=dict)
    # SHA-256 of the numbers of an energy layer's parameters; None where it declares none
    parameters: str | None = None


def origin_of(subject: Subject) -> Origin:
    """Where the functions of an implementation in this process are written.

    The digest is of every file that one of them stands in, and of every imported module from the folders of these
    files; libraries are left out.
    """
    try:
        codes = {name: code for name, function in functions_of(subject) if (code := code_of(function)) is not None}
        places = {
            name: Place(
                display(code.co_filename), code.co_firstlineno, printable(code.co_qualname.rpartition("<locals>.")[2])
            )
            for name, code in codes.items()
            if not code.co_filename.startswith("<")
        }
        files = {os.path.abspath(code.co_filename) for code in codes.values()}
        return Origin(_digest(files), places, _of_parameters(subject))
    except Exception:  # they are the implementation's own objects, which may answer anything
        return Origin()


def display(path: str) -> str:
    """A path as a reader names it: relative to the current folder, if it lies below that."""
    here = os.path.join(os.getcwd(), "")
    return printable(os.path.abspath(path).removeprefix(here))


def functions_of(subject: Subject) -> Iterator[tuple[str, Any]]:
    """The functions of an implementation that are called, or that declare what it does, each with its name."""
    if not isinstance(subject, EnergyLayer):
        yield from subject.functions.items()
        return
    reference = subject.reference and subject.reference.update
    named = {
        "update": subject.update,
        "energy": subject.energy,
        "state map": subject.state_map,
        "Lagrangian": subject.lagrangian,
        "proximal map": subject.step.proximal,
        "update_packed": subject.ways.get("packed-rows"),
        "update_padded": subject.ways.get("left-padding"),
        **(reference.stated if isinstance(reference, Recurrence) else {"reference": reference}),
    }
    yield from ((name, function) for name, function in named.items() if function is not None)


def _name(code: CodeType) -> str:
    """The name of a function, with its class."""
    return printable(code.co_qualname.rpartition("<locals>.")[2])


def code_of(function: Any) -> Any:
    """The code object of a function; if a library wraps it, of the first function that the wrapper closes over."""
    first = _code(function)
    queue, seen = [function], 0
    while queue and seen < _DEEPEST:
        looked_at, seen = queue.pop(0), seen + 1
        code = _code(looked_at)
        if code is not None and not is_library(os.path.abspath(code.co_filename)):
            return _forward_of(looked_at) or code
        for cell in getattr(looked_at, "__closure__", None) or ():
            with contextlib.suppress(ValueError):  # it is still empty
                queue += [cell.cell_contents] if callable(cell.cell_contents) else []
    return first


def _forward_of(factory: Any) -> Any:
    """The forward method of the only module class that a builder, or a function that it calls, names; else None."""
    if not isinstance(factory, FunctionType) or factory.__code__.co_argcount != 1:
        return None
    named = list(_named(factory))
    named += [name for function in named if isinstance(function, FunctionType) for name in _named(function)]
    kinds = [kind for kind in named if isinstance(kind, type) and issubclass(kind, torch.nn.Module)]
    every = [code for kind in kinds if (code := _code(kind)) is not None]
    codes = {code for code in every if not is_library(code.co_filename)}
    return codes.pop() if len(codes) == 1 else None


def _named(function: FunctionType) -> Iterator[Any]:
    """The objects that a function names, in its own module and in the modules that it names."""
    names = function.__code__.co_names
    spaces = [
        function.__globals__,
        *(vars(m) for m in map(function.__globals__.get, names) if isinstance(m, ModuleType)),
    ]
    return (space[name] for space in spaces for name in names if name in space)


def _code(function: Any) -> Any:
    """The code object that is called in the end, behind partials, wrappers, methods and modules."""
    for _ in range(_DEEPEST):
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif callable(inner := getattr(function, "__wrapped__", None)):
            function = inner
        elif isinstance(function, FunctionType):
            return function.__code__
        else:  # an instance or a class
            kind = function if isinstance(function, type) else type(function)
            function = getattr(kind, "forward", None) or vars(kind).get("__call__")
    return None


def folders_of(files: Iterable[str]) -> tuple[str, ...]:
    """The folders of an implementation's files: what was imported from there or below is its own, but no library."""
    return tuple(dict.fromkeys(os.path.join(os.path.dirname(file), "") for file in files if not is_library(file)))


def own_modules(folders: tuple[str, ...]) -> dict[str, tuple[str, ModuleType]]:
    """The modules that were imported from these folders or below, without libraries: by file, each with its name."""
    own: dict[str, tuple[str, ModuleType]] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        # not the program itself; some modules of libraries have relative names, of files that are not there
        if name in _PROGRAMS or not isinstance(file, str) or not file.endswith(".py") or not os.path.isabs(file):
            continue
        file = os.path.abspath(file)
        if isinstance(module, ModuleType) and file.startswith(folders) and not is_library(file):
            own[file] = name, module
    return own


def _of_parameters(subject: Subject) -> str | None:
    held = subject.parameters if isinstance(subject, EnergyLayer) else {}
    digest = hashlib.sha256()
    for name, value in sorted(held.items()):
        values = torch.as_tensor(value).detach().cpu().double().contiguous()
        digest.update(f"{name}{tuple(values.shape)}\0".encode() + values.numpy().tobytes())
    return digest.hexdigest() if held else None


def _digest(files: set[str]) -> str | None:
    named = {file: os.path.basename(file) for file in files if os.path.isfile(file)}
    named |= {file: name for file, (name, _) in own_modules(folders_of(files)).items() if os.path.isfile(file)}
    if not named:
        return None
    digest = hashlib.sha256()
    for name, file in sorted((name, file) for file, name in named.items()):
        with open(file, "rb") as stream:
            digest.update(f"{name}\0".encode() + hashlib.sha256(stream.read()).digest())
    return digest.hexdigest()

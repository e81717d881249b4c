"""Cells: the units of a study, each named by the hash of everything that its result depends on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Generic, TypeVar, get_type_hints

from cemverify.console.errors import UsageError
from cemverify.runs.plain import digest, plain, restore

# Part of every key: bump it when stored results change their meaning for all studies at once.
FORMAT_VERSION = 1

Spec = TypeVar("Spec")


@dataclass(frozen=True)
class Cell:
    """One unit of work.

    Cost, label and home are not part of the key.
    """

    algorithm: str  # the algorithm's name
    versions: Mapping[str, int]  # those of its components, bumped by hand
    spec: Mapping[str, Any]  # plain JSON values
    cost: float = 1.0  # roughly proportional to seconds
    label: str = ""  # a few words for progress
    # the module that declares the algorithm, if `Algorithm.cell` made the cell; "" if it was read from a file,
    # because a file must not name a module to import
    home: str = field(default="", compare=False)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that the key is a hash of."""
        return {
            "format_version": FORMAT_VERSION,
            "algorithm": self.algorithm,
            "versions": dict(self.versions),
            "spec": self.spec,
        }

    @cached_property
    def key(self) -> str:
        """The hash of the cell's identity: 64 hexadecimal digits."""
        return digest(self.identity)


@dataclass(frozen=True)
class Algorithm(Generic[Spec]):
    """A function of a module, from a specification to a payload, with the versions of its components."""

    name: str  # part of every key. It stays the same when the function is moved or renamed
    function: Callable[[Spec], Mapping[str, Any]]  # pure; takes a frozen dataclass, returns plain JSON values
    versions: Mapping[str, int]  # those of its components; bump one when its results change

    @property
    def home(self) -> str:
        """The module that declares it, where workers can find it."""
        return self.function.__module__

    @cached_property
    def spec_type(self) -> Any:
        """The declared type of the function's argument: a dataclass, or a union of dataclasses.

        Raises:
            TypeError: it declares nothing.
        """
        parameters = list(inspect.signature(self.function).parameters)
        hints = get_type_hints(self.function)
        if len(parameters) != 1 or parameters[0] not in hints:
            raise TypeError(f"{self.name} takes one annotated specification, not ({', '.join(parameters)})")
        return hints[parameters[0]]

    def __call__(self, spec: Spec) -> Mapping[str, Any]:
        """The payload."""
        return self.function(spec)

    def cell(self, spec: Spec, *, cost: float = 1.0, label: str = "") -> Cell:
        """The cell that computes the function for a specification.

        Raises:
            TypeError: the specification changes when it is written as JSON and read again.
        """
        if not is_dataclass(spec) or isinstance(spec, type):
            raise TypeError(f"a specification is a frozen dataclass, not {type(spec).__name__}")
        content = plain(spec)
        if self.restore(content) != spec:
            raise TypeError(f"{spec!r} does not survive JSON: compare it with {self.restore(content)!r}")
        return Cell(self.name, dict(self.versions), content, cost, label, self.home)

    def restore(self, content: Mapping[str, Any]) -> Spec:
        """The specification of a cell, in the type that the function takes.

        Raises:
            TypeError: the content is not of the type that the function takes.
        """
        restored: Spec = restore(self.spec_type, content)
        return restored


def algorithm(name: str, /, **versions: int) -> Callable[[Callable[[Spec], Mapping[str, Any]]], Algorithm[Spec]]:
    """Declares that cells compute a function of a module.

    Args:
        name: the algorithm's, in the key of every cell. It never changes, even if the function moves.
        versions: of each of its components; bump one when its results change.

    @algorithm("recursion model", draw=1, training=3)
    def train(spec: ModelCell) -> dict[str, Any]: ...
    """
    return lambda function: Algorithm(name, function, versions)


def algorithm_of(cell: Cell) -> Algorithm[Any]:
    """The algorithm that computes a cell, from the module that the cell's maker named as its home."""
    if not cell.home:
        raise UsageError(f"{cell.algorithm!r} was read from a file, which does not say where its code is")
    try:
        module = import_module(cell.home)
    except ImportError as error:
        raise UsageError(
            f"{cell.home} cannot be imported ({error}); run where the study's code is installed"
        ) from error
    for value in vars(module).values():
        if isinstance(value, Algorithm) and value.name == cell.algorithm:
            return value
    raise UsageError(f"{cell.home} declares no algorithm {cell.algorithm!r}; install the same code everywhere")

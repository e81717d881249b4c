"""Experiments: the part of a check that needs the implementation, performed in the process that holds it.

A check asks, and compares the answers. Only the asking needs the implementation, so only the asking happens in its
process. An experiment is a function at the top of a module, or a method of a box. It takes a `Caller` (or a box
around one) and plain data, makes its calls, and returns plain data of the type that its signature declares.

In the process of the implementation an experiment is an ordinary call. Otherwise its name and its arguments travel to
the other process, and its result travels back. There is no reason to trust that result: whatever is not of the
declared type is a fault of the implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Any, ParamSpec, Protocol, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from cemverify.conformance.implementations.faults import Tampered

_COMPILING = 120.0  # seconds

P = ParamSpec("P")
R = TypeVar("R")


class Lost(BaseException):
    """The implementation's process hangs or is gone. No `except Exception` on the way may catch this.

    Attributes:
        cause: of the verdict. reason: a sentence.
    """

    def __init__(self, cause: str, reason: str) -> None:
        super().__init__(reason)
        self.cause, self.reason = cause, reason


@dataclass(frozen=True)
class Allowance:
    """How long an experiment may take: as long as so many calls, and some seconds more."""

    calls: int = 1
    grace: float = 0.0

    def seconds(self, timeout: float) -> float:
        """The time, where a call may take so long."""
        return self.calls * timeout + self.grace


class Elsewhere(Protocol):
    """Another process, which holds the implementation."""

    def asking(self, question: Any) -> None:
        """A property is about to ask this question."""

    def perform(
        self, experiment: str, asker: Any, arguments: tuple[Any, ...], named: dict[str, Any], allowance: Allowance
    ) -> Any:
        """The result of the experiment of that name, "module:name", from the other process.

        Raises:
            Fault: as the experiment did. Lost: there is no answer, and there will not be one.
        """


def experiment(function: Callable[P, R]) -> Callable[P, R]:
    """Marks an experiment that makes one call; its first argument is a caller, or a box around one."""
    return _performed(function, Allowance())


def long_experiment(function: Callable[P, R]) -> Callable[P, R]:
    """Marks an experiment that makes several calls. It may take twice as long."""
    return _performed(function, Allowance(calls=2))


def compiling_experiment(function: Callable[P, R]) -> Callable[P, R]:
    """Marks an experiment whose call also compiles, which unrolls loops."""
    return _performed(function, Allowance(grace=_COMPILING))


def _performed(function: Callable[P, R], allowance: Allowance) -> Callable[P, R]:
    name = f"{function.__module__}:{function.__qualname__}"

    @cache
    def declared() -> Any:
        return get_type_hints(function)["return"]

    @wraps(function)
    def performed(*arguments: P.args, **named: P.kwargs) -> R:
        asker: Any = arguments[0]
        elsewhere: Elsewhere | None = getattr(asker, "caller", asker).elsewhere
        if elsewhere is None:
            return function(*arguments, **named)
        result: R = elsewhere.perform(name, asker, arguments[1:], named, allowance)
        if not conforms(result, declared()):
            raise Tampered("its process sent something that no call returns")
        return result

    return performed


def conforms(value: Any, kind: Any) -> bool:
    """Whether a value that came from another process is of a declared type; tensors are float64, lists are tuples."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return any(conforms(value, one) for one in inside)
    if origin is tuple:
        return type(value) is tuple and len(value) == len(inside) and all(map(conforms, value, inside))
    if origin is list:
        return type(value) is tuple and all(conforms(item, inside[0]) for item in value)
    if origin is dict:
        return type(value) is dict and all(conforms(item, inside[1]) for item in value.values())
    if origin is np.ndarray:
        return type(value) is np.ndarray
    if kind is Tensor:
        return type(value) is Tensor and value.dtype == torch.float64
    return type(value) is (NoneType if kind is None else kind)

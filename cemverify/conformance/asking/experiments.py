"""Experiments: the parts of a check that need the implementation, run in the process that holds it.

A check asks, and compares the answers. Only the asking needs the implementation, so only the asking runs in its
process. An experiment is a function at the top of a module, or a method of a box. It takes a `Caller` (or a box
around one) and plain data, makes its calls, and returns plain data of the type that its signature declares.

In the process of the implementation an experiment is an ordinary call. Otherwise its name and its arguments travel to
the other process, and its result travels back. That result cannot be trusted, so it is checked here, and
nowhere else: it must have the declared type, and its arrays must have the expected shapes, be finite, on the CPU, and
float64. Anything else is a fault of the implementation. An experiment that returns arrays must declare
their expected shapes. Where there is no answer to compare, it raises a `Fault`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from inspect import Signature, signature
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, ParamSpec, Protocol, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from cemverify.conformance.implementations.arrays import all_finite
from cemverify.conformance.implementations.faults import FURTHER, Fault, NotFinite, Tampered, WrongShape

_COMPILING = 120.0  # seconds

P = ParamSpec("P")
R = TypeVar("R")

# Every function that is marked as an experiment, by the name under which it travels: "module:name".
EXPERIMENTS: dict[str, Callable[..., Any]] = {}


def experiment_of(name: str) -> Callable[..., Any]:
    """The experiment of that name; its module is imported if necessary."""
    import_module(name.partition(":")[0])
    return EXPERIMENTS[name]


class Lost(BaseException):
    """The implementation's process hangs or has died. No `except Exception` on the way may catch this.

    Attributes:
        fault: why it was lost.
    """

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.raised = False  # whether an experiment has raised it, and said what was called


@dataclass(frozen=True)
class Allowance:
    """How long an experiment may take: the time of a number of calls, plus some seconds."""

    calls: int = 1
    grace: float = 0.0

    def seconds(self, timeout: float) -> float:
        """The time, if one call may take `timeout` seconds."""
        return self.calls * timeout + self.grace


class LayerProcess(Protocol):
    """Another process, which holds the implementation."""

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of this process and of the other one."""

    def asking(self, question: Any) -> None:
        """Announces that a property is about to ask this question."""

    def perform(
        self,
        experiment: str,
        caller_or_box: Any,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        allowance: Allowance,
    ) -> Any:
        """The result of the experiment of that name, "module:name", from the other process.

        Raises:
            Fault: as the experiment did. Lost: there is no answer, and there will not be one.
        """


@dataclass(frozen=True)
class Rows:
    """The expected shape if only the first axis is known: it has `batch` entries, the others are free."""

    batch: int


def shapes(named: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    """The shape of each array, by its name."""
    return {name: array.shape for name, array in named.items()}


Shapes = Callable[[Any], Any]


def experiment(
    expected: Shapes | None = None, *, finite: bool = True, calls: int = 1, compiles: bool = False, of: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Marks an experiment; its first argument is a caller, or a box around one.

    Args:
        expected: maps the experiment's arguments, as attributes, to the form of its result: a `torch.Size` or `Rows`
            for each array, None for what may be anything of its type.
        finite: whether NaN and infinity in it are a fault here, rather than compared by the check.
        calls: how many calls' time it may take; 2 if it makes several. compiles: whether it also compiles, which
            unrolls loops.
        of: the function of an energy layer that it calls, which its faults name; else its argument `name`, if any.
    """
    allowance = Allowance(calls, _COMPILING if compiles else 0.0)

    def decorator(function: Callable[P, R]) -> Callable[P, R]:
        name = f"{function.__module__}:{function.__qualname__}"

        @cache
        def declared() -> Any:
            kind = get_type_hints(function)["return"]
            if expected is None and _holds_arrays(kind):
                raise TypeError(f"the experiment {name} returns arrays, and does not say which shapes are due")
            return kind

        @cache
        def parameters() -> Signature:
            return signature(function)

        @wraps(function)
        def performed(*arguments: P.args, **named: P.kwargs) -> R:
            caller_or_box: Any = arguments[0]
            layer_process: LayerProcess | None = getattr(caller_or_box, "caller", caller_or_box).layer_process
            kind = declared()

            def bound() -> dict[str, Any]:
                return parameters().bind(*arguments, **named).arguments

            try:
                if layer_process is None:
                    result = function(*arguments, **named)
                else:
                    result = layer_process.perform(name, caller_or_box, arguments[1:], named, allowance)
                    if not conforms(result, kind):
                        raise Tampered("its process sent something that no call returns")
                if expected is not None and result is not None:
                    check(result, expected(SimpleNamespace(**bound())), finite=finite)
                return result
            except Fault as fault:
                if (function_asked := of or bound().get("name")) in FURTHER:
                    fault.of = fault.of or str(function_asked)
                raise
            except Lost as lost:
                if of in FURTHER and not lost.raised:
                    lost.fault.of = str(of)
                lost.raised = True
                raise

        EXPERIMENTS[name] = performed
        return performed

    return decorator


def _holds_arrays(kind: Any) -> bool:
    return kind is Tensor or any(_holds_arrays(inside) for inside in get_args(kind))


def check(value: Any, expected: Any, *, finite: bool = True) -> None:
    """Refuses arrays with other names, shapes or numbers than expected.

    Args:
        expected: as for `experiment`. finite: whether numbers must be finite.
    """
    match expected:
        case None:
            return
        case torch.Size() | Rows():
            shape = tuple(value.shape)
            if isinstance(expected, Rows):
                if not shape or shape[0] != expected.batch:
                    raise WrongShape(
                        f"it returned shape {shape}, where the first axis is the batch, {expected.batch}"
                    )
            elif shape != tuple(expected):
                raise WrongShape(f"it returned shape {shape}, expected {tuple(expected)}")
            if finite and not all_finite(value):
                raise NotFinite(f"{int((~value.isfinite()).sum())} of {value.numel()} values are NaN or infinite")
        case dict():
            if value.keys() != expected.keys():
                raise Tampered(f"its process sent arrays named {sorted(value)}, expected {sorted(expected)}")
            for key, part in expected.items():
                check(value[key], part, finite=finite)
        case _:
            if len(value) != len(expected):
                raise Tampered(f"its process sent {len(value)} parts, expected {len(expected)}")
            for one, part in zip(value, expected, strict=True):
                check(one, part, finite=finite)


def conforms(value: Any, kind: Any) -> bool:
    """Whether a value from another process has a declared type; tensors are float64, and lists arrive as tuples."""
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
        plain = type(value) is Tensor and value.layout == torch.strided and value.device.type == "cpu"
        return plain and value.dtype == torch.float64
    return type(value) is (NoneType if kind is None else kind)

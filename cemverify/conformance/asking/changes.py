"""What calls change in the process: made as usual, with other settings, and in other circumstances."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import is_dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.process_state import ProcessState, at_other_values
from cemverify.conformance.asking.surroundings import seeded_by
from cemverify.conformance.implementations.arrays import JAX, TORCH
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.faults import Fault
from cemverify.conformance.implementations.modules import in_eval_mode
from cemverify.conformance.implementations.origin import functions_of

Made = TypeVar("Made")


def changes_of(
    caller: Caller,
    calls: Sequence[Callable[[], Any]],
    more: Sequence[Callable[[], Any]] = (),
    refused: Sequence[Callable[[], Any]] = (),
) -> tuple[list[str], list[str]]:
    """The settings that calls changed, and the libraries whose random generators they seeded.

    The first call and the refused ones are also made with other settings, since setting what is already set changes
    nothing. The first is also made under autocast (torch) or without 64-bit arrays (JAX).
    There settings are compared inside, since leaving the context restores them.

    Args:
        caller: makes the calls, with `Caller.noticed` set. calls: made as usual; each must answer.
        more: calls in other circumstances. refused: calls with arguments that do not fit. Exceptions from these and
            under autocast are not judged here.
    """
    noticed = caller.noticed
    assert noticed is not None

    with caller.guarded():
        seeded = _watched(lambda: seeded_by(*calls), noticed)
        with at_other_values():
            _watched(caller.guarded()(calls[0]), noticed)  # so that an exception is read in these settings
            for call in refused:
                _watched(_tolerated(call), noticed)
    if caller.kind.name == "torch":
        with torch.autocast("cpu", torch.bfloat16):
            _watched(_tolerated(caller.guarded()(calls[0])), noticed)
    if caller.kind is JAX:
        with JAX.narrow(), warnings.catch_warnings(action="ignore"):
            _watched(_tolerated(calls[0], Exception), noticed)  # its arrays are wider than JAX takes here
    for call in (*more, *refused):
        _watched(_tolerated(call), noticed)
    return noticed, seeded


def _tolerated(call: Callable[[], Any], errors: type[Exception] = Fault) -> Callable[[], None]:
    def tolerated() -> None:
        with suppress(errors):
            call()

    return tolerated


def _watched(make: Callable[[], Made], noticed: list[str]) -> Made:
    """The result of calls; adds the names of the settings that they change, and restores these.

    Modules that are imported meanwhile may change settings, which is not the calls' doing: then they are repeated.
    """
    loaded, already, before = len(sys.modules), len(noticed), ProcessState.now()
    made = make()
    if len(sys.modules) > loaded:
        before.restore()
        del noticed[already:]
        before, made = ProcessState.now(), make()
    noticed.extend(before.restore())
    return made


def states_of(caller: Caller) -> AbstractContextManager[Callable[[], list[str]]]:
    """A context in which modules are in eval mode. It gives a function that lists what calls changed in them."""
    functions = [function for _, function in functions_of(caller.subject)]
    parameters = caller.subject.parameters if isinstance(caller.subject, EnergyLayer) else {}
    return in_eval_mode(functions, parameters) if caller.kind is TORCH else nullcontext(list)


def held(config: Any) -> dict[str, Any]:
    """Every attribute of a configuration, including any that was attached later."""
    return {name: held(value) if is_dataclass(value) else value for name, value in vars(config).items()}


def form_of(array: Any) -> dict[str, Any]:
    """The properties of an array other than its numbers."""
    if isinstance(array, Tensor):
        return {
            "shape": tuple(array.shape),
            "strides": array.stride(),
            "dtype": array.dtype,
            "flag that it requires gradients": array.requires_grad,
            "gradient": array.grad is None,
        }
    if isinstance(array, np.ndarray):
        return {
            "shape": array.shape,
            "strides": array.strides,
            "dtype": array.dtype,
            "flag that it can be written": array.flags.writeable,
        }
    return {"shape": array.shape, "dtype": array.dtype}

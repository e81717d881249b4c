"""What calls change of the process: made as usual, where settings have other values, and in other circumstances."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import torch

from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.process_state import ProcessState, at_other_values
from cemverify.conformance.asking.surroundings import seeded_by
from cemverify.conformance.implementations.arrays import JAX
from cemverify.conformance.implementations.faults import Fault

Made = TypeVar("Made")


def changes_of(
    caller: Caller,
    calls: Sequence[Callable[[], Any]],
    more: Sequence[Callable[[], Any]] = (),
    refused: Sequence[Callable[[], Any]] = (),
) -> tuple[list[str], list[str]]:
    """The settings that calls changed, and the libraries whose random generator they seeded.

    The first call and the refused ones are also made where settings have other values, since one that sets what is
    set already changes nothing. With torch the first is made under autocast, and with JAX without 64-bit arrays, too.
    There settings are compared inside, since leaving puts them back.

    Args:
        caller: of the calls, one that notices (`Caller.noticed`). calls: what is called as usual; each must answer.
        more: calls in other circumstances. refused: calls with arguments that do not fit. What these and the call
            under autocast raise is not judged here.
    """
    noticed = caller.noticed
    assert noticed is not None

    def under_autocast() -> None:
        with caller.guarded():
            calls[0]()

    with caller.guarded():
        seeded = _watched(lambda: seeded_by(*calls), noticed)
        with at_other_values():
            _watched(calls[0], noticed)
            for call in refused:
                _watched(_tolerated(call), noticed)
    if caller.kind.name == "torch":
        with torch.autocast("cpu", torch.bfloat16):
            _watched(_tolerated(under_autocast), noticed)
    if caller.kind is JAX:
        with JAX.narrow(), warnings.catch_warnings(action="ignore"):
            _watched(_tolerated(calls[0], Exception), noticed)  # its arrays are wider than JAX takes them there
    for call in (*more, *refused):
        _watched(_tolerated(call), noticed)
    return noticed, seeded


def _tolerated(call: Callable[[], Any], errors: type[Exception] = Fault) -> Callable[[], None]:
    def tolerated() -> None:
        with suppress(errors):
            call()

    return tolerated


def _watched(make: Callable[[], Made], noticed: list[str]) -> Made:
    """What calls come to; adds the names of the settings that they change, and sets these back.

    What modules change that are imported meanwhile is not the calls' doing: then these are made again.
    """
    loaded, already, before = len(sys.modules), len(noticed), ProcessState.now()
    made = make()
    if len(sys.modules) > loaded:
        before.restore()
        del noticed[already:]
        before, made = ProcessState.now(), make()
    noticed.extend(before.restore())
    return made

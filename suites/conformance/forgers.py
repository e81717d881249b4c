"""Implementations whose process answers for them, for `test_forged_answers`; loaded by name in worker processes.

The functions are the reference's. What the process sends of their answers is something else: each forger changes
every array of every answer in one way. `swaps_code` is as small as a forger can be: a comparison with what it sends
would compare nothing with everything.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cemverify import energy_layer
from cemverify.conformance.asking.differentiation import products
from cemverify.conformance.implementations import reference
from cemverify.conformance.workers import answering

Change = Callable[[Tensor], Any]

WAYS: dict[str, Change] = {
    "as_they_are": lambda a: a,
    "size_zero": lambda a: a.new_zeros((0, *[1] * (a.dim() - 1))),
    "numbers": lambda a: float(a.sum()),
    "nan": lambda a: torch.full_like(a, torch.nan),
}


def _changed(value: Any, change: Change) -> Any:
    match value:
        case Tensor():
            return change(value)
        case dict():
            return {key: _changed(item, change) for key, item in value.items()}
        case list() | tuple():
            return [_changed(item, change) for item in value]
    return value


def _renamed(value: Any) -> Any:
    """The same arrays under other names, and lists that are longer."""
    match value:
        case dict():
            return {f"{key}'": item for key, item in value.items()}
        case list() | tuple():
            return [*map(_renamed, value), *value[-1:]]
    return [value]


# what is sent instead of what an experiment came to, and the function that performs one
forging: list[Callable[[Any], Any]] = []
performed = FunctionType(answering._performed.__code__, vars(answering))


def _forge(change: Callable[[Any], Any]) -> None:
    """From now on this process sends something else than its answers; no function is another than before."""

    def forged(subject, question, recorder):  # type: ignore[no-untyped-def]
        from suites.conformance import forgers

        outcome = forgers.performed(subject, question, recorder)
        return {key: forgers.forging[0](value) for key, value in outcome.items()}

    forging[:] = [change]
    answering._performed.__code__ = forged.__code__


def _swap_code() -> None:
    """Gradients of size zero by other code in the place of the experiment's, where no function is replaced."""

    def nothing(caller, case, cotangent, name, recorded):  # type: ignore[no-untyped-def]
        import torch

        states = ("h",) if name in ("block", "decode") else ("x", "h")
        empty = torch.zeros(0, 1, 1, 1, dtype=torch.float64)
        return empty, dict.fromkeys((*states, *case.weights), empty), []

    original: Any = products
    original.__wrapped__.__code__ = nothing.__code__


def __getattr__(name: str) -> Any:
    """`cem_WAY` and `layer_WAY`; other names there are not."""
    kind, _, way = name.partition("_")
    if kind not in ("cem", "layer"):
        raise AttributeError(name)
    if way == "names":
        _forge(_renamed)
    elif way == "swaps_code":
        _swap_code()
    else:
        _forge(partial(_changed, change=WAYS[way]))
    return reference.reference if kind == "cem" else _layer()


def _layer() -> Any:
    W = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 3)))

    def energy(x: Tensor, h: Tensor) -> Tensor:
        return ((x @ W.to(x.dtype) - h) ** 2).sum(-1)

    def update(x: Tensor, h: Tensor) -> Tensor:
        return -0.2 * (x @ W.to(x.dtype) - h) @ W.to(x.dtype).mT

    return energy_layer(
        update=update,
        energy=energy,
        state=("J", 3),
        memory=("J", 3),
        energy_per="token",
        step_size=0.1,
        parameters={"W": W.requires_grad_()},
    )

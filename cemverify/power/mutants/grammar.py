"""Mutants that nobody wrote: drawn by a grammar, *place x kind x condition*, from a seed.

Mutants that somebody wrote are those that somebody thought of, and properties are tuned to them. Of these there are
tens of thousands, so every sample is a first contact: the share of it that dies estimates that of faults nobody
thought of.
A drawn mutant has no property of its own. Any violation kills it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cemverify.conformance.implementations.arrays import is_traced
from cemverify.conformance.implementations.contract import Implementation
from cemverify.conformance.implementations.plain import Plain
from cemverify.power.mutants.base import Function, around

# Methods of `Plain` whose result is spoiled, with the part of the formulas that they are.
PLACES: Mapping[str, str] = {
    "queries": "the queries",
    "keys": "the keys",
    "attend": "the attention weights",
    "scaled": "the logits",
    "attention_direction": "attention's direction",
    "preconditioner": "the preconditioner",
    "root": "the root mean square",
    "norm": "the normalised state",
    "sigma": "the activation",
    "gated": "the gated hidden units",
    "mlp_direction": "the MLP's direction",
    "advance": "the next state",
}

Spoil = Callable[[Tensor], Tensor]


def _last_entry(factor: float) -> Spoil:
    def spoil(array: Tensor) -> Tensor:
        scale = torch.ones(array.shape[-1], dtype=array.dtype)
        scale[-1] = factor
        return array * scale

    return spoil


KINDS: Mapping[str, Spoil] = {
    "is one part in a thousand too large": lambda array: array * 1.001,
    "has a last feature that is a part in a hundred too small": _last_entry(0.99),
    "passes through float32": lambda array: array.to(torch.float32).to(array.dtype),
    "is one in a million off": lambda array: array + 1e-6,
    "is cut off at 8": lambda array: array.clamp(-8.0, 8.0),
    "loses its gradient": lambda array: array.detach(),
}
_OF_GRADIENTS = "loses its gradient"


@dataclass(frozen=True)
class Call:
    """A call of an implementation, as a condition sees it."""

    # x, h, weights, config: its arguments; where a function takes h alone, x is h
    x: Tensor
    h: Tensor
    weights: Mapping[str, Tensor]
    config: Any
    inference: bool
    thread: int
    before: Call | None = None  # the call before it, with its own `before` left out

    @property
    def parts(self) -> Sequence[Any]:
        """The configuration; both of a block's."""
        return [getattr(self.config, name) for name in ("attention", "mlp") if hasattr(self.config, name)] or [
            self.config
        ]

    @property
    def traced(self) -> bool:
        """Whether any argument is mapped over or differentiated by a transform."""
        return any(map(is_traced, (self.x, self.h, *self.weights.values())))


Condition = Callable[[Call], bool]


def _numbers(condition: Condition) -> Condition:
    """A condition on values: it does not hold where they cannot be looked at."""

    def holds(call: Call) -> bool:
        with torch.no_grad():
            return not call.traced and condition(call)

    return holds


def _of(**least: float) -> Condition:
    """Whether an option of a part of the configuration exceeds a number."""
    ((name, number),) = least.items()
    return lambda call: any(getattr(part, name, 0) > number for part in call.parts)


def _size(axis: int, number: int) -> Condition:
    return lambda call: call.h.shape[axis] > number


def _alike(call: Call) -> bool:
    return call.h.shape[0] > 1 and any(torch.equal(call.h[0], row) for row in call.h[1:])


def _recorded(call: Call) -> tuple[bool, bool, bool]:
    weights = any(weight.requires_grad for weight in call.weights.values())
    return call.x.requires_grad, call.h.requires_grad, weights


CONDITIONS: Mapping[str, Condition] = {
    "beyond 12 tokens": _size(1, 12),
    "beyond 17 features": _size(2, 17),
    "for more than 3 rows": _size(0, 3),
    "for an odd number of tokens": lambda call: call.h.shape[1] % 2 == 1,
    "for more than 2 steps": _of(steps=2),
    "for more than 3 steps": _of(steps=3),
    "for more than 5 heads": _of(heads=5),
    "for more than 20 hidden units": _of(hidden=20),
    "at step sizes above 2": _of(step_size=2.0),
    "at step sizes below 0.01": lambda call: any(part.step_size < 0.01 for part in call.parts),
    "at temperatures above 20": _of(tau=20.0),
    "at temperatures below 0.05": lambda call: any(getattr(part, "tau", 1.0) < 0.05 for part in call.parts),
    "where a token of the memory is zero": _numbers(lambda call: bool((call.h == 0).all(-1).any())),
    "where a weight is zero": _numbers(lambda call: any(bool((w == 0).any()) for w in call.weights.values())),
    "where states are below 1e-100": _numbers(lambda call: float(call.h.abs().max()) < 1e-100),
    "where a state exceeds 3": _numbers(lambda call: float(call.x.abs().max()) > 3),
    "where a weight exceeds 30": _numbers(lambda call: any(float(w.abs().max()) > 30 for w in call.weights.values())),
    "where two rows are alike": _numbers(_alike),
    "where x equals h": _numbers(lambda call: torch.equal(call.x, call.h)),
    "where x alone records gradients": lambda call: _recorded(call) == (True, False, False),
    "where h alone records gradients": lambda call: _recorded(call)[1:] == (True, False),
    "where weights alone record gradients": lambda call: _recorded(call) == (False, False, True),
    "where everything records gradients": lambda call: all(_recorded(call)),
    "where nothing records gradients": lambda call: not any(_recorded(call)),
    "in inference mode": lambda call: call.inference,
    "under autocast": lambda _: torch.is_autocast_enabled("cpu"),
    "under vmap": lambda call: call.traced,
    "where the memory is no contiguous array": lambda call: not call.h.is_contiguous(),
    "where a weight is no contiguous array": lambda call: any(not w.is_contiguous() for w in call.weights.values()),
    "after a call in inference mode": lambda call: call.before is not None and call.before.inference,
    "after a call of other sizes": lambda call: call.before is not None and call.before.h.shape != call.h.shape,
    "after a call in another dtype": lambda call: call.before is not None and call.before.h.dtype != call.h.dtype,
    "after a call of another thread": lambda call: call.before is not None and call.before.thread != call.thread,
}  # fmt: skip
_RECORDING = tuple(name for name in CONDITIONS if "gradients" in name)
_MAPPED = "under vmap"
_OF_VALUES = {
    name for name in CONDITIONS if name.startswith(("where a ", "where states", "where two", "where x equals"))
}
# Of each group at most one can hold of a call, or one is a part of another.
_GROUPS = (
    {*_RECORDING, "in inference mode"},
    {"at step sizes above 2", "at step sizes below 0.01"},
    {"at temperatures above 20", "at temperatures below 0.05"},
    {"for more than 2 steps", "for more than 3 steps"},
    {"where states are below 1e-100", "where a state exceeds 3"},
)


@dataclass(frozen=True)
class Drawn:
    """A drawn mutant."""

    place: str  # one of PLACES
    kind: str  # one of KINDS
    conditions: tuple[str, ...]  # of CONDITIONS, all of which must hold

    def __str__(self) -> str:
        return f"{PLACES[self.place]} {self.kind}, {' and '.join(self.conditions)}"

    def subject(self) -> Implementation:
        """The implementation with the fault: `Plain`, one result of which is spoiled while the conditions hold."""
        spoiled = _Spoiled(self.place, KINDS[self.kind])
        return around(spoiled.subject(), partial(_watched, spoiled, [CONDITIONS[name] for name in self.conditions]))


def _apart(first: str) -> set[str]:
    """The conditions that cannot hold, or say nothing more, where this one does."""
    clashing = {first}.union(*(group for group in _GROUPS if first in group))
    # under vmap nobody can look at values
    if first == _MAPPED:
        clashing |= _OF_VALUES
    return clashing | {_MAPPED} if first in _OF_VALUES else clashing


def drawn(seed: int, count: int) -> list[Drawn]:
    """So many different mutants. A half of them take one condition, the others two that can hold together."""
    rng, sample = np.random.default_rng(seed), dict[Drawn, None]()
    while len(sample) < count:
        place, kind = (str(rng.choice(list(names))) for names in (PLACES, KINDS))
        names = list(CONDITIONS)
        if kind == _OF_GRADIENTS:  # which something must record
            names = [name for name in _RECORDING if "nothing" not in name]
        first = str(rng.choice(names))
        clashing = _apart(first)
        other = str(rng.choice([name for name in CONDITIONS if name not in clashing]))
        sample[Drawn(place, kind, (first,) if rng.integers(2) else (first, other))] = None
    return list(sample)


class _Spoiled(Plain):
    """`Plain` with one result spoiled while it is switched on, in each thread by itself."""

    def __init__(self, place: str, spoil: Spoil) -> None:
        self.switch = threading.local()
        usual = getattr(super(), place)

        def method(*arguments: Any) -> Any:
            result = usual(*arguments)
            return spoil(result) if getattr(self.switch, "on", False) else result

        setattr(self, place, method)


def _watched(spoiled: _Spoiled, conditions: Sequence[Condition], _: str, function: Function) -> Function:
    before: list[Call] = []

    def call(*arguments: Any) -> Any:
        x, h = arguments[0], arguments[-3]
        now = Call(
            x, h, arguments[-2], arguments[-1], torch.is_inference_mode_enabled(), threading.get_ident(), *before
        )
        before[:] = [replace(now, before=None)]
        spoiled.switch.on = all(condition(now) for condition in conditions)
        try:
            return function(*arguments)
        finally:
            spoiled.switch.on = False

    return call

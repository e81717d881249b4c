"""Trivial controls: outputs that need no computation. A property that they pass proves nothing.

A control is an implementation of the same kind and with the same features as the one under test. It is tested on
examples from the same run.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.arrays import ARRAY_KINDS
from cemverify.conformance.implementations.contract import Implementation, Subject
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.features import FUNCTIONS

Answer = Callable[..., Tensor]


def control(name: str, caller: Caller) -> Caller:
    """A caller of a trivial implementation in place of the one under test.

    Raises:
        KeyError: there is no such control.
    """
    return replace(caller, subject=_subject(name, caller.subject), device="cpu")


def _layer(name: str, layer: EnergyLayer) -> EnergyLayer:
    """An energy layer with a trivial update, or a trivial energy; the rest stays."""
    kind = ARRAY_KINDS[layer.arrays]

    def answer(state: Tensor) -> Tensor:
        # an update that adds nothing to x is the identity of an energy layer, and one that adds noise goes nowhere
        difference = layer.step.returns == "difference"
        values = _trivial("zero" if name == "identity" and difference else name, state, per_token=False)
        return state + values if name == "random" and not difference else values

    def update(x: Any, *_: Any, **__: Any) -> Any:
        answers = [kind.like(answer(as_tensor(a)), a) for a in listed(x)]
        return answers if isinstance(x, tuple) else answers[0]

    def energy(g: Any, *_: Any, **__: Any) -> Any:
        values = _trivial("random", as_tensor(listed(g)[0]), per_token=False)
        keep = {"token": 2, "sequence": 1, "batch": 0}[layer.stated.per]
        return kind.like(values.flatten(keep).sum(-1), listed(g)[0])

    if name == "random-energy":
        return replace(layer, energy=energy, not_offered={**layer.not_offered, "autograd": "it is noise"})
    return replace(layer, update=update)


def listed(arrays: Any) -> list[Any]:
    """The arrays of a state: one, or those of a named tuple."""
    return list(arrays) if isinstance(arrays, tuple) else [arrays]


def _subject(name: str, subject: Subject) -> Subject:
    if isinstance(subject, EnergyLayer):
        return _layer(name, subject)
    functions = {function: _answer(name, function) for function in FUNCTIONS}
    return Implementation(functions, subject.not_offered, "torch")


def _answer(name: str, function: str) -> Answer:
    """A function of a CEM implementation: (x, h, weights, config), or (h, weights, config)."""
    right: Answer = reference.reference.functions[function]

    def answer(*arguments: Any) -> Tensor:
        *states, weights, config = arguments
        if name == "detached":
            return right(*arguments).detach()
        if name == "random-energy":
            per_token = function.endswith("_energy")
            return _trivial("random", states[0], per_token=True) if per_token else right(*arguments)
        if name == "shuffled":
            return right(*(state.roll(1, 1) for state in states), weights, config)  # each token where the next was
        return _trivial(name, states[0], per_token=function.endswith("_energy"))

    return answer


def _trivial(name: str, x: Tensor, *, per_token: bool) -> Tensor:
    values = x[..., 0] if per_token else x
    match name:
        case "identity":
            return values.clone()
        case "zero":
            return torch.zeros_like(values)
        case "constant":
            return torch.ones_like(values)
        case "random":
            # the same noise for the same states, other noise for others
            generator = torch.Generator().manual_seed(zlib.crc32(x.double().contiguous().numpy().tobytes()))
            return torch.randn(values.shape, dtype=torch.float64, generator=generator).to(x.dtype)
    raise KeyError(name)

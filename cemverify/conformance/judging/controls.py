"""Trivial controls: answers that nobody computed. A property that passes them says nothing about anybody else.

A control walks through the same door as the implementation under test, offers the same, and is put to examples
that this run has just asked.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.contract import FUNCTIONS, EnergyLayer, Implementation, Subject

CONTROLS: Mapping[str, str] = MappingProxyType(
    {
        "identity": "returns x unchanged",
        "zero": "returns zeros",
        "constant": "returns ones",
        "random": "returns noise",
        "detached": "returns the right outputs without gradients",
        "shuffled": "returns the right outputs for the wrong tokens",
    }
)

Answer = Callable[..., Tensor]


def control(name: str, caller: Caller) -> Caller:
    """The caller of a trivial implementation in the place of the one under test.

    Raises:
        KeyError: there is no such control.
    """
    return replace(caller, subject=_subject(name, caller.subject), device="cpu")


def _subject(name: str, subject: Subject) -> Subject:
    if isinstance(subject, EnergyLayer):
        energy = None if subject.energy is None else _layer_energy(name)
        return replace(subject, update=_layer_update(name), energy=energy, arrays="torch")
    functions = {function: _answer(name, function) for function in FUNCTIONS}
    return Implementation(functions, subject.not_offered, "torch")


def _answer(name: str, function: str) -> Answer:
    """A function of the first door: (x, h, weights, config), or (h, weights, config)."""
    right: Answer = reference.reference.functions[function]

    def answer(*arguments: Any) -> Tensor:
        *states, weights, config = arguments
        if name == "detached":
            return right(*arguments).detach()
        if name == "shuffled":
            return right(*(_shuffled(state) for state in states), weights, config)
        return _trivial(name, states[0], per_token=function.endswith("_energy"))

    return answer


def _layer_update(name: str) -> Answer:
    """An update of the second door; what adds nothing to x is its identity."""
    return lambda x, memory: _trivial("zero" if name == "identity" else name, x + 0 * memory, per_token=False)


def _layer_energy(name: str) -> Answer:
    return lambda x, memory: _trivial(name, x + 0 * memory, per_token=True)


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
            # other noise for other states, the same for the same
            generator = torch.Generator().manual_seed(zlib.crc32(x.double().contiguous().numpy().tobytes()))
            return torch.randn(values.shape, dtype=torch.float64, generator=generator).to(x.dtype)
    raise KeyError(name)


def _shuffled(tokens: Tensor) -> Tensor:
    """Every token where the one before it was: (B, J, D)."""
    return tokens.roll(1, 1)

"""Faults of an energy layer, the second door. They wrap any layer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, CEMAttention
from cemverify.conformance.implementations.contract import EnergyLayer, energy_layer
from cemverify.power.mutants.base import Mutant, Zoo

ZOO = Zoo("layers")


def sound_layer() -> EnergyLayer:
    """A correct layer: attention of fixed weights as a black box."""
    generator = torch.Generator().manual_seed(0)
    energy = CEMAttention(AttentionConfig(4, 2, init_std=0.5), generator).double().energy

    def update(x: Tensor, memory: Tensor) -> Tensor:
        return -energy.gradient(x, energy.remember(memory)).detach()

    def value(x: Tensor, memory: Tensor) -> Tensor:
        return energy(x, energy.remember(memory)).detach()

    return energy_layer(update=update, energy=value, dim=4)


def _wrap(layer: EnergyLayer, **changes: Callable[..., Any]) -> EnergyLayer:
    wrapped: dict[str, Any] = {name: partial(change, getattr(layer, name)) for name, change in changes.items()}
    return replace(layer, **wrapped)


_CALLS = itertools.count(1)
_OTHERS = "the other tokens' *s when the last token t*"


def _edit(f: Callable[..., Any], x: Any, m: Any) -> Any:
    x[...] = f(x + 0, m)
    return x


# id, fault, property, cause, the changed functions
_LAYERS: tuple[tuple[str, str, str, str, dict[str, Callable[..., Any]]], ...] = (
    (
        "layer-turned-output",
        "The update is rotated, as by an untied output projection.",
        "gradient/layer/conservative-field",
        "the Jacobian equals its transpose",
        {"update": lambda f, x, m: f(x, m)[..., [*range(1, x.shape[-1]), 0]]},
    ),
    (
        "layer-doubled-energy",
        "The stated energy is twice the energy that the update descends.",
        "gradient/layer/energy",
        "update = -eta grad energy",
        {"energy": lambda f, x, m: 2 * f(x, m)},
    ),
    (
        "layer-ascent",
        "The update climbs the stated energy.",
        "descent/layer/energy-falls",
        "energy after a small step*",
        {"update": lambda f, x, m: -f(x, m)},
    ),
    (
        "layer-reads-the-future",
        "The memory is shifted by one token.",
        "structure/layer/causality",
        _OTHERS,
        {"update": lambda f, x, m: f(x, m[:, [*range(1, m.shape[1]), 0]])},
    ),
    (
        "layer-mixes-states",
        "A token's state leaks into the one before.",
        "structure/layer/own-state",
        _OTHERS,
        {"update": lambda f, x, m: f(x + 1e-3 * x[:, [*range(1, x.shape[1]), 0]], m)},
    ),
    (
        "layer-shares-its-energy",
        "Every token gets the mean of all energies.",
        "structure/layer/energy-per-token",
        _OTHERS,
        {"energy": lambda f, x, m: 0 * f(x, m) + f(x, m).mean(1)[:, None]},
    ),
    (
        "layer-leans-on-the-batch",
        "The update is pushed away from its mean over the batch.",
        "structure/layer/batch-independence",
        "a batch row alone = the same row in a batch",
        {"update": lambda f, x, m: f(x, m) + 1e-3 * f(x, m).mean(0)[None]},
    ),
    (
        "layer-counts-its-calls",
        "Every call's update is larger than that of the call before.",
        "structure/layer/determinism",
        "second call = first call",
        {"update": lambda f, x, m: f(x, m) + 1e-6 * next(_CALLS)},
    ),
    (
        "layer-edits-its-input",
        "x is overwritten.",
        "structure/layer/inputs-unchanged",
        "x after the call",
        {"update": _edit},
    ),
)


def _mutant(id_: str, fault: str, property_: str, cause: str, changes: dict[str, Callable[..., Any]]) -> Mutant:
    def wrap(layer: EnergyLayer) -> EnergyLayer:
        return _wrap(layer, **changes)

    return Mutant(
        id_,
        fault,
        property_,
        cause,
        lambda: wrap(sound_layer()),
        ZOO.family,
        wrap=wrap,
        original=sound_layer,
        edits=changes.get("update") is _edit,
    )


ZOO += [_mutant(*row) for row in _LAYERS]

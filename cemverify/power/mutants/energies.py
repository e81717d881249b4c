"""Faults of the energies that an implementation states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.contract import Implementation
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Call, Function, Mutant, Zoo, around, sound

ZOO = Zoo("energies")

_STATED = "stated energy = energy"


@ZOO.calls(
    "Asking for an energy overwrites x.",
    "contract/attention-energy/inputs-unchanged",
    "x after the call*",
    of="*_energy",
    also=("contract/mlp-energy/inputs-unchanged",),
    edits=True,
)
def energies_edit_their_input(call: Call, x: Any, *others: Any) -> Any:
    value = call(x, *others)
    x[...] = 0.0
    return value


def _mean(x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
    return reference.attention_energy(x, h, w, c) / x.shape[1]


def _without_constant(x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
    """x softplus(x) + Li2(-e^x) without pi^2/12: shifts the energy by the sum of the gates."""
    return reference.mlp_energy(x, h, w, c) + (h @ w["W"].mT).sum(-1) * torch.pi**2 / 12


def _stating(**functions: Callable[..., Tensor]) -> Implementation:
    return replace(sound(), functions={**sound().functions, **functions})


ZOO += [
    Mutant(
        "mean-energy",
        "The stated energy is averaged over tokens while the update is not.",
        "gradient/attention/stated-energy-plain",
        _STATED,
        lambda: _stating(attention_energy=_mean),
        ZOO.family,
        ("gradient/attention/stated-energy-*",),
    ),
    Mutant(
        "energy-without-constant",
        "The SiLU primitive lacks its constant.",
        "gradient/mlp/stated-energy-silu",
        _STATED,
        lambda: _stating(mlp_energy=_without_constant),
        ZOO.family,
        ("gradient/mlp/stated-energy-*",),
    ),
]


@ZOO.wraps(
    "Energies are divided by batch size times tokens, as in a mean, while updates are those of the sum.",
    "gradient/attention/stated-energy-plain",
    _STATED,
)
def energy_averaged_over_everything(implementation: Implementation) -> Implementation:
    return _restated(implementation, lambda value: value / (value.shape[0] * value.shape[1]))


@ZOO.wraps(
    "The stated energy has the wrong sign.",
    "gradient/attention/stated-energy-plain",
    _STATED,
    also=("gradient/mlp/stated-energy-silu",),
)
def energy_negated(implementation: Implementation) -> Implementation:
    return _restated(implementation, lambda value: -value)


@ZOO.wraps(
    "The stated energy is too large by one part in a billion of one.", "gradient/mlp/stated-energy-gelu", _STATED
)
def energy_shifted(implementation: Implementation) -> Implementation:
    return _restated(implementation, lambda value: value + 1e-9)


@ZOO.wraps(
    "Every token gets the first token's energy.",
    "gradient/attention/stated-energy-any-options",
    _STATED,
    also=("gradient/mlp/stated-energy-any-options",),
)
def energy_of_the_first_token(implementation: Implementation) -> Implementation:
    return _restated(implementation, lambda value: 0 * value + value[:, :1])


def _restated(implementation: Implementation, change: Callable[[Any], Any]) -> Implementation:
    def restate(name: str, function: Function) -> Function:
        return (lambda *arguments: change(function(*arguments))) if name.endswith("_energy") else function

    return around(implementation, restate)


def _without_tau(x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
    return reference.attention_energy(x, h, w, c) / c.tau


def _without_diagonal(x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
    without = {name: array for name, array in w.items() if name != "diagonal"}
    return reference.attention_energy(x, h, without, replace(c, diagonal="none"))


def _one_sigma(x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
    """sigma where its primitive belongs."""
    sigma = Plain().sigma(x @ w["V"].mT, c)
    return -(sigma * (h @ w["W"].mT)).sum(-1)


ZOO += [
    Mutant(id_, fault, f"gradient/{property_}", _STATED, partial(_stating, **function), ZOO.family)
    for id_, fault, property_, function in (
        (
            "energy-without-temperature",
            "The energy lacks its factor tau.",
            "attention/stated-energy-plain",
            {"attention_energy": _without_tau},
        ),
        (
            "energy-without-diagonal",
            "The energy lacks the diagonal.",
            "attention/stated-energy-diagonal-shared",
            {"attention_energy": _without_diagonal},
        ),
        (
            "energy-of-the-activation",
            "The MLP's energy sums sigma instead of its primitive.",
            "mlp/stated-energy-silu",
            {"mlp_energy": _one_sigma},
        ),
    )
]

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
from cemverify.conformance.implementations.plain import Weights
from cemverify.power.mutants.base import ANSWER, Call, Zoo, fault, sound

ZOO = Zoo("energies")


@ZOO.calls("gradient/attention/stated-energy-plain", ANSWER, of="attention_energy")
@fault("The energy takes the first weight of the mapping for W_Q and the second for W_K, whatever their names.")
def energy_by_place(call: Call, x: Any, h: Any, weights: Any, config: Any) -> Any:
    first, second = [w for w in weights.values() if w.shape == weights["W_Q"].shape][:2]
    return call(x, h, {**weights, "W_Q": first, "W_K": second}, config)


@ZOO.calls("contract/attention-energy/inputs-unchanged", "kept: x*", of="*_energy", also=("mlp-energy",), edits=True)
@fault("Asking for an energy overwrites x.")
def energies_edit_their_input(call: Call, x: Any, *arguments: Any) -> Any:
    value = call(x, *arguments)
    x[...] = 0.0
    return value


def _without_constant(x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
    """x softplus(x) + Li2(-e^x) without pi^2/12: shifts the energy by the sum of the gates."""
    return reference.mlp_energy(x, h, w, c) + (h @ w["W"].mT).sum(-1) * torch.pi**2 / 12


def _stating(**functions: Callable[..., Tensor]) -> Implementation:
    return replace(sound(), functions={**sound().functions, **functions})


def _without_diagonal(x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
    without = {name: array for name, array in w.items() if name != "diagonal"}
    return reference.attention_energy(x, h, without, replace(c, diagonal="none"))


def _without_the_only_bias(x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
    alone = c.position == "self-cross" and h.shape[1] == 1
    return reference.attention_energy(x, h, {**w, "to_self": 0 * w["to_self"]} if alone else w, c)


ZOO += [
    ZOO.made(id_, fault, property_, ANSWER, partial(_stating, **{function: energy}), also=also)
    for id_, fault, property_, function, energy, also in (
        ("mean-energy", "The stated energy is averaged over tokens while the update is not.",
         "gradient/attention/stated-energy-plain", "attention_energy",
         lambda x, h, w, c: reference.attention_energy(x, h, w, c) / x.shape[1],
         ("gradient/attention/stated-energy-*",)),
        ("energy-without-constant", "The SiLU primitive lacks its constant.",
         "gradient/mlp/stated-energy-silu", "mlp_energy", _without_constant, ("gradient/mlp/stated-energy-*",)),
        ("energy-without-the-only-bias", "Where there is one key, its bias is left out, as it cancels in a softmax.",
         "gradient/attention/stated-energy-self-cross-bias", "attention_energy", _without_the_only_bias, ()),
        ("energy-without-diagonal", "The energy lacks the diagonal.",
         "gradient/attention/stated-energy-diagonal-shared", "attention_energy", _without_diagonal, ()),
    )
]  # fmt: skip
ZOO += [
    ZOO.calling("energy-shifted", "The stated energy is too large by one part in a billion of one.",
        "gradient/mlp/stated-energy-gelu", ANSWER, of="*_energy",
        answer=lambda call, *arguments: call(*arguments) + 1e-9),
    ZOO.calling("energy-of-the-first-token", "Every token gets the first token's energy.",
        "gradient/attention/stated-energy-any-options", ANSWER, also=("mlp",),
        of="*_energy", answer=lambda call, *arguments: 0 * (value := call(*arguments)) + value[:, :1]),
]  # fmt: skip

"""The layers of `cemverify.cem` as energy layers: the first step of their recursion, in its own variables.

    x' = x - eta P dE/du        u = N(x),   memory N(h)

A folded gain G is part of the energy: E(G u) with u = x / r has the gradient G dE. Then the map from x to u is
the gradient of a Lagrangian, D sqrt(|x|^2 / D + eps), as with a positive scalar gain. With one gain per channel, or
one preconditioner per head, descent is not promised (docs/mathematics.md §5, §7c), but is measured all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import CEMAttention, CEMLayer
from cemverify.cem.norms import rms_normalise
from cemverify.cem.preconditioners import Identity
from cemverify.conformance.implementations.energy_layers import TOKENS, EnergyLayer, energy_layer

PER_HEAD = "one preconditioner per head is no preconditioner of the whole gradient, and need not descend"


def declared(layer: CEMLayer) -> EnergyLayer:
    """The first step of a CEM layer as an energy layer: state x, memory N(h), both (J, D)."""
    descent, D = layer.descent.at(0), layer.preconditioner.dim
    per_head = descent.preconditioner.per_head
    kind, gain = layer.norm.kind, layer.norm.gain
    state_map, lagrangian = _norm(layer)
    scale = gain if kind == "folded" else None
    plain = isinstance(descent.preconditioner, Identity)
    concave = isinstance(layer, CEMAttention) and not per_head
    # conditions under which every step descends, however long: §4, §7c
    positive = kind != "scalar" or (gain is not None and bool((gain > 0).all()))
    monotone = concave and positive and (kind == "none" or (plain and kind in ("scalar", "folded")))

    @torch.no_grad()
    def update(x: Tensor, memory: Tensor) -> Tensor:
        energy = layer.energy
        return layer.descent.at(0).update(energy, x, energy.remember(memory))

    def value(u: Tensor, memory: Tensor) -> Tensor:
        energy: Any = layer.energy
        values: Tensor = energy(u if scale is None else scale * u, energy.remember(memory))
        return values

    layer_ = energy_layer(
        update=update,
        energy=value,
        state=(TOKENS, D),
        memory=(TOKENS, D),
        state_map=state_map,
        lagrangian=lagrangian,
        step="free" if per_head else "gradient",
        step_size=float(descent.step_size),
        preconditioner=None if plain or per_head else lambda g: layer.preconditioner().apply(g),
        monotone=monotone,
        conservative=not per_head,
        causal=not isinstance(layer, CEMAttention) or layer.config.causal,
    )
    if per_head:
        reasons = dict.fromkeys(("gradient-step", "slope", "conservative"), PER_HEAD)
        layer_ = replace(layer_, not_offered={**layer_.not_offered, **reasons})
    return layer_


def _norm(layer: CEMLayer) -> tuple[Callable[[Tensor], Tensor] | None, Callable[[Tensor], Tensor] | None]:
    """The map from x to u, and its Lagrangian if it has one."""
    kind, gain, eps = layer.norm.kind, layer.norm.gain, layer.norm.eps
    if kind == "none" or gain is None:
        return None, None
    if kind == "channel":
        return lambda x: layer.norm().into(x), None
    scale = torch.ones_like(gain[:1]) if kind == "folded" else gain

    def normalised(x: Tensor) -> Tensor:
        return rms_normalise(x, scale, eps)

    def lagrangian(x: Tensor) -> Tensor:
        return scale * x.shape[-1] * torch.sqrt((x * x).mean(-1) + eps)  # (B, J)

    return normalised, lagrangian

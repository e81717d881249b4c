"""Faults that break a symmetry: of scales, of orders, of bases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.conformance.implementations.contract import Implementation
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Function, Zoo, around

ZOO = Zoo("metamorphic")


@ZOO.killed_by(
    "Queries are normalised to unit length for the scores.",
    "metamorphic/attention/rescaled-heads",
    "update with W_Q times c*",
)
class NormalisedQueries(Plain):
    def scores(self, q: Tensor, k: Tensor, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().scores(q / q.norm(dim=-1, keepdim=True).clamp(min=1e-30), k, x, h, w, c)


@ZOO.killed_by(
    "A temperature above two is replaced by two.",
    "metamorphic/attention/temperature",
    "update with A and tau doubled*",
)
class TemperatureCapped(Plain):
    def temperature(self, c: AttentionConfig) -> float:
        return min(c.tau, 2.0)


@ZOO.killed_by(
    "Each head is weighted one part in a thousand more than the one before.",
    "metamorphic/attention/head-permutation",
    "update with the heads shifted*",
)
class LaterHeadsLouder(Plain):
    def sum_heads(self, heads: Tensor) -> Tensor:
        return torch.einsum("bkjd,k->bjd", heads, 1 + 1e-3 * torch.arange(heads.shape[1], dtype=heads.dtype))


@ZOO.killed_by(
    "The first feature of every head's keys is too large by one part in a thousand.",
    "metamorphic/attention/feature-permutation",
    "update with every head's features reversed*",
)
class FirstFeatureLouder(Plain):
    def keys(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        keys = super().keys(h, w, c)
        return torch.cat((keys[..., :1] * 1.001, keys[..., 1:]), -1)


@ZOO.killed_by(
    "The first coordinate of the direction is too large by one part in a thousand.",
    "metamorphic/attention/joint-rotation",
    "update of the rotated case*",
    also=("metamorphic/mlp/joint-rotation",),
)
class FirstCoordinateLouder(Plain):
    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, torch.cat((heads[..., :1] * 1.001, heads[..., 1:]), -1), w, c)


@ZOO.killed_by(
    "The softmax's denominator is larger by one, so the weights do not sum to one.",
    "metamorphic/attention/logit-shift",
    "update with every bias increased*",
    also=("metamorphic/attention/equal-tokens",),
)
class SoftmaxOverOneMore(Plain):
    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(torch.cat((logits, torch.zeros_like(logits[..., :1])), -1), -1)[..., :-1]


@ZOO.killed_by(
    "Each token's direction is one part in a thousand larger than the one's before.",
    "metamorphic/attention/equal-tokens",
    "output at each of equal tokens*",
)
class LaterTokensLouder(Plain):
    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        louder = 1 + 1e-3 * torch.arange(heads.shape[2], dtype=heads.dtype)
        return super().advance(x, heads * louder[:, None], w, c)


@ZOO.killed_by(
    "Each batch row is one part in a thousand larger than the one before.",
    "metamorphic/attention/batch-permutation",
    "update with the rows in reverse order*",
    also=("metamorphic/mlp/batch-permutation", "metamorphic/block/batch-permutation"),
)
class LaterRowsLouder(Plain):
    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        louder = 1 + 1e-3 * torch.arange(heads.shape[0], dtype=heads.dtype)
        return super().advance(x, heads * louder[:, None, None, None], w, c)


@ZOO.killed_by(
    "The gain is one plus its weight.",
    "metamorphic/attention/gain-and-temperature",
    "update with the gain and tau doubled*",
)
class GainFromOne(Plain):
    def gain(self, w: Weights) -> Tensor:
        return 1 + w["gain"]


@ZOO.killed_by(
    "The low-rank part is 2 U V^T.",
    "metamorphic/attention/preconditioner-factors",
    "update with U and V exchanged*",
    also=("metamorphic/mlp/preconditioner-factors",),
)
class LopsidedCross(Plain):
    def cross(self, w: Weights) -> Tensor:
        return 2 * w["P_U"] @ w["P_V"].mT


@ZOO.killed_by(
    "The step size is applied twice.",
    "metamorphic/attention/step-size",
    "update with half the step size*",
    also=("metamorphic/mlp/step-size",),
)
class StepSizeSquared(Plain):
    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads * c.step_size, w, c)


@ZOO.killed_by(
    "The gate passes through tanh.",
    "metamorphic/mlp/gate-linearity",
    "update with W times -2*",
    also=("metamorphic/mlp/gate-additivity",),
)
class BoundedGate(Plain):
    def gated(self, activated: Tensor, linear: Tensor, c: MLPConfig) -> Tensor:
        return super().gated(activated, torch.tanh(linear), c)


@ZOO.killed_by("The gate loses its sign.", "metamorphic/mlp/gate-additivity", "update of the sum of two gates*")
class AbsoluteGate(Plain):
    def gated(self, activated: Tensor, linear: Tensor, c: MLPConfig) -> Tensor:
        return super().gated(activated, linear.abs(), c)


@ZOO.killed_by(
    "The first hidden unit is too large by one part in a thousand.",
    "metamorphic/mlp/unit-permutation",
    "update with the hidden units reversed*",
)
class FirstUnitLouder(Plain):
    def gated(self, activated: Tensor, linear: Tensor, c: MLPConfig) -> Tensor:
        hidden = super().gated(activated, linear, c)
        return torch.cat((hidden[..., :1] * 1.001, hidden[..., 1:]), -1)


@ZOO.killed_by(
    "The direction is divided by the root of the hidden dimension.",
    "metamorphic/mlp/split-units",
    "update with every hidden unit duplicated*",
)
class ScaledByWidth(Plain):
    def mlp_direction(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        direction: Tensor = super().mlp_direction(x, h, w, c) / w["V"].shape[0] ** 0.5
        return direction


@ZOO.killed_by(
    "The activation leaks one part in a million of its argument.",
    "metamorphic/mlp/reflection-silu",
    "update(V) + update(-V)*",
    also=("metamorphic/mlp/reflection-*",),
)
class LeakyActivation(Plain):
    def sigma(self, z: Tensor, c: MLPConfig) -> Tensor:
        return super().sigma(z, c) + 1e-6 * z


@ZOO.wraps(
    "The attention energy lacks its factor tau.",
    "metamorphic/attention/energy-temperature",
    "energy with A and tau doubled*",
)
def energy_loses_its_temperature(implementation: Implementation) -> Implementation:
    def change(name: str, function: Function) -> Function:
        if name != "attention_energy":
            return function
        return lambda x, h, w, c: function(x, h, w, c) / c.tau

    return around(implementation, change)


@ZOO.wraps(
    "The attention energy is averaged over the heads.",
    "metamorphic/attention/energy-logit-shift",
    "energy with every bias increased*",
)
def energy_averages_its_heads(implementation: Implementation) -> Implementation:
    def change(name: str, function: Function) -> Function:
        if name != "attention_energy":
            return function
        return lambda x, h, w, c: function(x, h, w, c) / (2 * c.heads)

    return around(implementation, change)

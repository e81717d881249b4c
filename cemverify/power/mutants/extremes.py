"""Faults at the ends of arithmetic: overflow, underflow, long rows, zeros."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.conformance.implementations.contract import Implementation
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Call, Function, Zoo, around

ZOO = Zoo("extremes")


ZOO += [
    ZOO.but("naive-softmax", "The softmax does not subtract its largest logit first.",
        "extremes/attention/large-logits", "not finite",
        softmax=lambda _, logits: logits.exp() / logits.exp().sum(-1, keepdim=True)),
]  # fmt: skip


@ZOO.killed_by(
    "States are divided by their length and multiplied by it again.",
    "extremes/attention/subnormal-states",
    "not finite",
    also=("extremes/mlp/subnormal-states",),
)
class DividesByLength(Plain):
    def norm(self, x: Tensor, w: Weights, c: Any) -> Tensor:
        length = x.square().sum(-1, keepdim=True).sqrt()
        return super().norm(x / length * length, w, c)


ZOO += [
    ZOO.but("forgets-after-ablock", "Keys more than 128 tokens back are not read.",
        "extremes/attention/long-row", "update in a long row",
        hidden=lambda usual, i, j: usual.hidden(i, j) | (j < i - 128)),
    ZOO.but("zeros-are-padding", "A token of zeros is taken for padding and left unchanged.",
        "extremes/attention/exact-ties", "update at x = 0",
        attention=lambda usual, x, h, w, c:
            torch.where((x == 0).all(-1, keepdim=True), x, usual.attention(x, h, w, c))),
]  # fmt: skip


@ZOO.killed_by(
    "If the update is zero, the state is changed by one part in a million.",
    "extremes/attention/zero-memory",
    "update at h = 0",
    also=("extremes/mlp/zero-memory",),
)
class NeverStandsStill(Plain):
    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        after = super().advance(x, heads, w, c)
        return torch.where(after == x, after * (1 + 1e-6), after)


@ZOO.killed_by(
    "Sigmoid, SiLU and softplus are written with e^z, which overflows.",
    "extremes/mlp/large-preactivations",
    "not finite",
)
class NaiveActivations(Plain):
    def sigma(self, z: Tensor, c: MLPConfig) -> Tensor:
        naive: Mapping[str, Any] = {
            "sigmoid": lambda: z.exp() / (1 + z.exp()),
            "silu": lambda: z * z.exp() / (1 + z.exp()),
            "softplus": lambda: (1 + z.exp()).log(),
        }
        value: Tensor = naive[c.activation]() if c.activation in naive else super().sigma(z, c)
        return value


@ZOO.wraps(
    "The attention energy saturates at the largest exponent of float64.",
    "extremes/attention/energy-large-logits",
    "stated energy at logits of 1e4*",
)
def energy_saturates(implementation: Implementation) -> Implementation:
    def change(name: str, function: Function) -> Function:
        if name != "attention_energy":
            return function
        most = math.log(torch.finfo(torch.float64).max)
        return lambda x, h, w, c: function(x, h, w, c).clip(-most * c.tau * c.heads, most * c.tau * c.heads)

    return around(implementation, change)


@ZOO.killed_by(
    "In rows of even length, decoded directions are too large by one part in a thousand.",
    "structure/decode/every-prefix",
    "decoded prefix = prefix of the whole row",
)
class DecodesEvenRowsOff(Plain):
    def decode(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        decoded = super().decode(h, w, c)
        return decoded if h.shape[1] % 2 else h + 1.001 * (decoded - h)


ZOO += [
    ZOO.but("naive-preconditioner", "The preconditioner's softplus is log(1 + e^d), which overflows.",
        "extremes/mlp/large-preconditioner", "not finite", also=("extremes/attention/large-preconditioner",),
        positive=lambda _, d: torch.log1p(torch.exp(d))),
]  # fmt: skip


ZOO += [
    ZOO.calling("mlp-energy-saturates", "The MLP's energy saturates at ten million.",
        "extremes/mlp/energy-large-preactivations", "stated energy at pre-activations of 1e4 = energy",
        of="mlp_energy", answer=lambda call, *arguments: call(*arguments).clip(-1e7, 1e7)),
]  # fmt: skip


ZOO += [
    ZOO.but("softplus-turns-linear-at-twenty",
        "Softplus is taken for the identity from 20 on, as torch's does by default.",
        "extremes/mlp/every-magnitude", "update at pre-activations of every magnitude",
        sigma=lambda usual, z, c: functional.softplus(z) if c.activation == "softplus" else usual.sigma(z, c)),
]  # fmt: skip


@ZOO.killed_by(
    "Sigmoid, in SiLU too, is 1 from 30 on.",
    "extremes/mlp/every-magnitude",
    "update at pre-activations of every magnitude",
)
class SigmoidLevelsOffAtThirty(Plain):
    def sigma(self, z: Tensor, c: MLPConfig) -> Tensor:
        levelled = torch.where(z < 30, torch.sigmoid(z), 1.0)
        value = {"sigmoid": levelled, "silu": z * levelled}.get(c.activation)
        return super().sigma(z, c) if value is None else value


ZOO += [
    ZOO.but("preconditioner-turns-linear-at-twenty",
        "The preconditioner's softplus is taken for the identity from 20 on.",
        "extremes/mlp/preconditioner-every-magnitude", "update at d of every magnitude",
        also=("extremes/attention/preconditioner-every-magnitude",), positive=lambda _, d: functional.softplus(d)),
    ZOO.but("preconditioner-is-not-positive",
        "The preconditioner's softplus is log(1 + e^d), which is 0 where d is below -37.",
        "extremes/attention/preconditioner-every-magnitude", "update at d of every magnitude",
        positive=lambda _, d: torch.where(d < 30, (1 + d.clamp(max=30.0).exp()).log(), d)),
]  # fmt: skip


@ZOO.calls(
    "The MLP's energy is wrong by one part in a million while it lies between 20 and 1000.",
    "extremes/mlp/energy-every-magnitude",
    "stated energy at pre-activations of every magnitude = energy",
    of="mlp_energy",
)
def mlp_energy_off_in_between(call: Call, *arguments: Any) -> Any:
    found: Tensor = call(*arguments)
    return torch.where((found.abs() > 20) & (found.abs() < 1000), found * (1 + 1e-6), found)

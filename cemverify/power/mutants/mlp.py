"""Faults of the gated MLP."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify.cem.layers import MLPConfig
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Zoo

ZOO = Zoo("mlp")


@ZOO.killed_by(
    "The MLP's update is subtracted.",
    "gradient/mlp/silu",
    also=(
        "gradient/mlp/gelu",
        "gradient/mlp/gelu-tanh",
        "gradient/mlp/relu",
        "gradient/mlp/relu2",
        "gradient/mlp/sigmoid",
        "gradient/mlp/tanh",
        "gradient/mlp/softplus",
        "gradient/mlp/identity",
        "gradient/mlp/preconditioner-*",
        "gradient/mlp/norm-*",
        "gradient/mlp/full-cem",
        "gradient/mlp/any-options",
        "descent/mlp/*",
    ),
)
class MLPAscent(Plain):
    def mlp_direction(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        return -super().mlp_direction(x, h, w, c)


@ZOO.killed_by(
    "The memory's projection is activated and the state's is linear: the paper's gate and up, read as Llama's.",
    "gradient/mlp/silu",
)
class WrongFactorActivated(Plain):
    def gated(self, activated: Tensor, linear: Tensor, c: MLPConfig) -> Tensor:
        return activated * self.sigma(linear, c)


@ZOO.killed_by("GELU is its tanh approximation.", "gradient/mlp/gelu")
class TanhForErf(Plain):
    def sigma(self, z: Tensor, c: MLPConfig) -> Tensor:
        return F.gelu(z, approximate="tanh") if c.activation == "gelu" else super().sigma(z, c)


@ZOO.killed_by(
    "The down projection is W^T instead of V^T.",
    "tying/mlp/gated-mlp-silu",
    "update = eta down*",
    also=("tying/mlp/*", "gradient/mlp/conservative-field"),
)
class UntiedDown(Plain):
    def mlp_direction(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        return self.gated(F.linear(x, w["V"]), F.linear(h, w["W"]), c) @ w["W"]


@ZOO.killed_by(
    "The MLP's update is scaled by a mean over the tokens.",
    "structure/mlp/token-independence",
    "the first token's output is unchanged when the others change",
)
class TokensShareAScale(Plain):
    def mlp_direction(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        return super().mlp_direction(x, h, w, c) * (1 + 1e-3 * x.mean(1, keepdim=True))


@ZOO.killed_by("V and W are exchanged, in the down projection too.", "tying/mlp/gated-mlp-silu", "update = eta down*")
class GateAndUpSwapped(Plain):
    def mlp(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        return super().mlp(x, h, {**w, "V": w["W"], "W": w["V"]}, c)


@ZOO.killed_by(
    "The memory's projection has the wrong sign in its negative part.",
    "gradient/mlp/silu",
    also=("gradient/mlp/identity",),
)
class NegatedGate(Plain):
    def gated(self, activated: Tensor, linear: Tensor, c: MLPConfig) -> Tensor:
        return super().gated(activated, linear.abs(), c)


@ZOO.killed_by("Both projections read x, as a layer without memory would.", "gradient/mlp/silu", needs=("start",))
class GateReadsTheState(Plain):
    def mlp_direction(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        return super().mlp_direction(x, x + 0 * h, w, c)


@ZOO.killed_by("The tanh approximation of GELU is GELU itself.", "gradient/mlp/gelu-tanh")
class ErfForTanh(Plain):
    def sigma(self, z: Tensor, c: MLPConfig) -> Tensor:
        return F.gelu(z) if c.activation == "gelu-tanh" else super().sigma(z, c)


@ZOO.killed_by("The squared ReLU is not squared.", "gradient/mlp/relu2")
class ReluNotSquared(Plain):
    def sigma(self, z: Tensor, c: MLPConfig) -> Tensor:
        return z.clamp(min=0) if c.activation == "relu2" else super().sigma(z, c)


@ZOO.killed_by("ReLU lets one part in a thousand of the negative side through.", "gradient/mlp/relu")
class LeakyRelu(Plain):
    def sigma(self, z: Tensor, c: MLPConfig) -> Tensor:
        return F.leaky_relu(z, 1e-3) if c.activation == "relu" else super().sigma(z, c)


@ZOO.killed_by("Softplus is the identity above 5.", "gradient/mlp/softplus")
class SoftplusWithThreshold(Plain):
    def sigma(self, z: Tensor, c: MLPConfig) -> Tensor:
        return torch.where(z > 5, z, super().sigma(z, c)) if c.activation == "softplus" else super().sigma(z, c)


@ZOO.killed_by("SiLU is z sigmoid(1.702 z), the quick approximation of GELU.", "gradient/mlp/silu")
class SwishOfAnotherSlope(Plain):
    def sigma(self, z: Tensor, c: MLPConfig) -> Tensor:
        return z * torch.sigmoid(1.702 * z) if c.activation == "silu" else super().sigma(z, c)


@ZOO.killed_by(
    "The activation is its own derivative, as if its primitive had been differentiated twice.", "gradient/mlp/silu"
)
class DerivativeForActivation(Plain):
    def sigma(self, z: Tensor, c: MLPConfig) -> Tensor:
        with torch.enable_grad():
            at = z.detach().requires_grad_()
            return torch.autograd.grad(super().sigma(at, c).sum(), at)[0]


@ZOO.killed_by("With more than three hidden units, the last is left out.", "gradient/mlp/silu")
class LastUnitForgotten(Plain):
    def mlp_direction(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        used = c.hidden - 1 if c.hidden > 3 else c.hidden
        return super().mlp_direction(x, h, {"V": w["V"][:used], "W": w["W"][:used]}, c)

"""Faults of gradients: right answers that cannot be trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Zoo

ZOO = Zoo("training")

_PRODUCT = "vector-Jacobian product with respect to*"


@ZOO.killed_by(
    "The update is right, and no gradient flows through it.",
    "training/attention/plain",
    _PRODUCT,
    also=("training/*",),
)
class DetachedUpdate(Plain):
    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads.detach(), w, c)


@ZOO.killed_by("No gradient flows through the keys to W_K and the memory.", "training/attention/plain", _PRODUCT)
class DetachedKeys(Plain):
    def keys(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().keys(h, w, c).detach()


@ZOO.killed_by(
    "The output projection is a detached copy of W_Q: half of its gradient is missing.",
    "training/attention/plain",
    _PRODUCT,
)
class TiedGradientHalved(Plain):
    def output(self, w: Weights) -> Tensor:
        return w["W_Q"].detach()


@ZOO.killed_by("The diagonal is not trained.", "training/attention/diagonal-shared", _PRODUCT)
class DetachedDiagonal(Plain):
    def diagonal(self, w: Weights, c: AttentionConfig) -> Tensor:
        return super().diagonal(w, c).detach()


@ZOO.killed_by("The gradient treats the activation as a constant.", "training/mlp/silu", _PRODUCT)
class StraightThroughGate(Plain):
    def sigma(self, z: Tensor, c: MLPConfig) -> Tensor:
        return super().sigma(z, c).detach()


@ZOO.killed_by("The preconditioner is not trained.", "training/mlp/preconditioner-low-rank", _PRODUCT)
class DetachedPreconditioner(Plain):
    def preconditioner(self, w: Weights, c: Any) -> Tensor:
        return super().preconditioner(w, c).detach()


@ZOO.killed_by(
    "The gradient treats the root mean square inside as a constant.",
    "training/mlp/any-options",
    _PRODUCT,
    also=("training/attention/any-options",),
)
class DetachedNorm(Plain):
    def root(self, x: Tensor, c: Any) -> Tensor:
        return super().root(x, c).detach()


@ZOO.killed_by(
    "In float32 the projection of the memory is not trained.", "training/mlp/float32-any-options", _PRODUCT
)
class FrozenInFloat32(Plain):
    def mlp_direction(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        frozen = {**w, "W": w["W"].detach()} if x.dtype == torch.float32 else w
        return super().mlp_direction(x, h, frozen, c)


class _LastProduct(torch.autograd.Function):
    """A product whose backward pass reads the factors of whichever forward pass was the last."""

    factors: ClassVar[tuple[Tensor, ...]] = ()

    @staticmethod
    def forward(_: Any, a: Tensor, b: Tensor) -> Tensor:
        _LastProduct.factors = (a.detach(), b.detach())
        return a * b

    @staticmethod
    def backward(_: Any, *products: Tensor) -> tuple[Tensor, Tensor]:
        a, b = _LastProduct.factors
        return products[0] * b, products[0] * a


@ZOO.killed_by(
    "Gradients are computed from the values of the latest call, whichever output they belong to.",
    "training/mlp/silu",
    _PRODUCT,
)
class PullsBackTheLastCall(Plain):
    def gated(self, activated: Tensor, linear: Tensor, c: MLPConfig) -> Tensor:
        product: Tensor = _LastProduct.apply(self.sigma(activated, c), linear)  # type: ignore[no-untyped-call]
        return product


@ZOO.killed_by(
    "Where gradients are recorded, layers with more than three steps take one fewer.",
    "training/attention/any-options",
    "*",  # the output with gradients recorded, or a product first
    also=("training/mlp/any-options", "training/block/any-options"),
)
class OneStepLessInTraining(Plain):
    def attention(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().attention(x, h, w, _a_step_less(x, c))

    def mlp(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        return super().mlp(x, h, w, _a_step_less(x, c))


def _a_step_less(x: Tensor, c: Any) -> Any:
    return replace(c, steps=c.steps - 1) if x.requires_grad and c.steps > 3 else c


@ZOO.killed_by(
    "Gradients are clipped to one on their way back from an output.",
    "training/attention/plain",
    _PRODUCT,
    also=("training/mlp/silu", "training/attention/any-options", "training/mlp/any-options"),
)
class ClipsGradients(Plain):
    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        found = super().advance(x, heads, w, c)
        clipped: Tensor = _Clipped.apply(found)  # type: ignore[no-untyped-call]
        return clipped


class _Clipped(torch.autograd.Function):
    """What it is given, with a gradient that is cut to [-1, 1]."""

    @staticmethod
    def forward(_: Any, a: Tensor) -> Tensor:
        return a.clone()

    @staticmethod
    def backward(_: Any, *products: Tensor) -> Tensor:
        return products[0].clamp(-1.0, 1.0)


# --- which arguments record gradients, in which places, and how large they are ----------------------------


@ZOO.killed_by(
    "Where the state records no gradient, nothing does.",
    "training/attention/frozen",
    _PRODUCT,
    also=("training/mlp/frozen", "training/block/frozen", "training/decode/frozen"),
)
class FrozenBesideAFrozenState(Plain):
    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads if x.requires_grad else heads.detach(), w, c)


@ZOO.killed_by(
    "Where one array is state and memory, its gradient is that of the state alone.",
    "training/attention/one-array",
    _PRODUCT,
    also=("training/mlp/one-array",),
)
class OneArrayTrainedOnce(Plain):
    def attention(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().attention(x, h.detach() if x is h else h, w, c)

    def mlp(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        return super().mlp(x, h.detach() if x is h else h, w, c)

    def sublayer(self, layer: Any, h: Tensor, w: Weights, c: Any) -> Tensor:
        """In a block state and memory are two arrays, so that it trains."""
        output: Tensor = layer(h, self.norm(h, w, c).clone(), w, c)
        return output


@ZOO.killed_by(
    "SiLU is z / (1 + exp(-z)): right where exp overflows, and its derivative there is infinity times zero.",
    "training/mlp/every-magnitude",
    "*",
)
class SiluOverflowsBackwards(Plain):
    def sigma(self, z: Tensor, c: MLPConfig) -> Tensor:
        return z / (1 + torch.exp(-z)) if c.activation == "silu" else super().sigma(z, c)


@ZOO.killed_by(
    "softplus takes exp of large d, too, where its value is not used: the derivative there is infinity times zero.",
    "training/attention/preconditioner-every-magnitude",
    "*",
    also=("training/mlp/preconditioner-every-magnitude",),
)
class SoftplusOverflowsBackwards(Plain):
    def positive(self, d: Tensor) -> Tensor:
        return torch.where(d > 40, d, torch.log1p(torch.exp(d)))

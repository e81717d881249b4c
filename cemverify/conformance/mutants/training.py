"""Faults of gradients: right answers that cannot be trained."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.conformance.mutants.base import Zoo
from cemverify.conformance.plain import Plain, Weights

ZOO = Zoo("training")

_PRODUCT = "vector-Jacobian product with respect to*"


@ZOO.killed_by("training/attention/plain", _PRODUCT, also=("training/*",))
class DetachedUpdate(Plain):
    """The update is right, and no gradient flows through it."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads.detach(), w, c)


@ZOO.killed_by("training/attention/plain", _PRODUCT)
class DetachedKeys(Plain):
    """No gradient flows through the keys to W_K and the memory."""

    def keys(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().keys(h, w, c).detach()


@ZOO.killed_by("training/attention/plain", _PRODUCT)
class TiedGradientHalved(Plain):
    """The output projection is a copy of W_Q that is not trained: half of its gradient is missing."""

    def output(self, w: Weights) -> Tensor:
        return w["W_Q"].detach()


@ZOO.killed_by("training/attention/diagonal-shared", _PRODUCT)
class DetachedDiagonal(Plain):
    """The diagonal is not trained."""

    def diagonal(self, w: Weights, c: AttentionConfig) -> Tensor:
        return super().diagonal(w, c).detach()


@ZOO.killed_by("training/mlp/silu", _PRODUCT)
class StraightThroughGate(Plain):
    """The activation is a constant to the gradient."""

    def sigma(self, z: Tensor, c: MLPConfig) -> Tensor:
        return super().sigma(z, c).detach()


@ZOO.killed_by("training/mlp/preconditioner-low-rank", _PRODUCT)
class DetachedPreconditioner(Plain):
    """The preconditioner is not trained."""

    def preconditioner(self, w: Weights, c: Any) -> Tensor:
        return super().preconditioner(w, c).detach()


@ZOO.killed_by("training/mlp/any-options", _PRODUCT, also=("training/attention/any-options",))
class DetachedNorm(Plain):
    """The root mean square inside is a constant to the gradient."""

    def root(self, x: Tensor, c: Any) -> Tensor:
        return super().root(x, c).detach()

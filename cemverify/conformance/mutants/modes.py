"""Faults that show under one machine only: compiled, mapped, with gradients recorded, on a CUDA device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.mutants.base import Zoo
from cemverify.conformance.plain import Plain, Weights

ZOO = Zoo("modes")


@ZOO.killed_by("modes/attention/compiled", "compiled = eager", also=("modes/mlp/compiled",))
class OffWhenCompiled(Plain):
    """Compiled, the direction is too large by one part in a thousand."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads * 1.001 if torch.compiler.is_compiling() else heads, w, c)


@ZOO.killed_by("modes/attention/vmap", "mapped = looped", also=("modes/mlp/vmap", "modes/block/vmap"))
class OffWhenMapped(Plain):
    """Mapped over a further axis, the direction is too large by one part in a thousand."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        mapped = torch._C._functorch.is_batchedtensor(heads)
        return super().advance(x, heads * 1.001 if mapped else heads, w, c)


@ZOO.killed_by(
    "modes/attention/no-gradients",
    "answer with gradients recorded = without",
    also=("modes/mlp/no-gradients", "modes/block/no-gradients"),
)
class OffWhileTraining(Plain):
    """While gradients are recorded, the direction is too large by one part in a thousand."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads * 1.001 if heads.requires_grad else heads, w, c)


@ZOO.killed_by("modes/attention/cuda", "on CUDA = on the CPU", also=("modes/mlp/cuda", "modes/block/cuda"))
class OffOnCuda(Plain):
    """On a CUDA device the direction is too large by one part in a thousand."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads * 1.001 if heads.is_cuda else heads, w, c)

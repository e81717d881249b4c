"""Faults of rounding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.mutants.base import Zoo
from cemverify.conformance.plain import Plain, Weights

ZOO = Zoo("precision")


@ZOO.killed_by("precision/attention/float32", "|error| of*", own_dtype=True)
class RoundsItsWeights(Plain):
    """Attention weights pass through bfloat16."""

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, -1).bfloat16().to(logits.dtype)


@ZOO.killed_by(
    "precision/attention/float32-any-options",
    also=("precision/mlp/float32-any-options",),
    own_dtype=True,
    needs=("norm:channel",),
)
class NormsInBfloat16(Plain):
    """The norm inside is computed in bfloat16, unless arrays are float64."""

    def norm(self, x: Tensor, w: Weights, c: Any) -> Tensor:
        n = super().norm(x, w, c)
        return n if x.dtype == torch.float64 else n.bfloat16().to(x.dtype)


@ZOO.killed_by(
    "precision/mlp/float32",
    "|error| of*",
    also=("precision/mlp/bfloat16", "precision/attention/bfloat16"),
    own_dtype=True,
)
class RoundsToFourBits(Plain):
    """Directions are rounded to four significant bits."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        mantissa, exponent = torch.frexp(heads.float())
        return super().advance(x, torch.ldexp((mantissa * 16).round() / 16, exponent).to(x.dtype), w, c)

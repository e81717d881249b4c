"""Faults of rounding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Zoo

ZOO = Zoo("precision")


ZOO += [
    ZOO.but("rounds-its-weights", "Attention weights pass through bfloat16.",
        "precision/attention/float32", "|error| of*", own_dtype=True,
        softmax=lambda _, logits: torch.softmax(logits, -1).bfloat16().to(logits.dtype)),
]  # fmt: skip


@ZOO.killed_by(
    "The norm inside is computed in bfloat16, unless arrays are float64.",
    "precision/attention/float32-any-options",
    also=("precision/mlp/float32-any-options",),
    own_dtype=True,
    needs=("norm:channel",),
)
class NormsInBfloat16(Plain):
    def norm(self, x: Tensor, w: Weights, c: Any) -> Tensor:
        n = super().norm(x, w, c)
        return n if x.dtype == torch.float64 else n.bfloat16().to(x.dtype)


@ZOO.killed_by(
    "Rotary angles are computed in bfloat16, unless arrays are float64.",
    "sizes/attention/tokens-float32",
    own_dtype=True,
    needs=("position:rotary",),
)
class AnglesInBfloat16(Plain):
    def rotate(self, x: Tensor, rows: Tensor, c: AttentionConfig, sign: float) -> Tensor:
        if c.position != "rotary" or x.dtype == torch.float64:
            return super().rotate(x, rows, c, sign)
        half = x.shape[-1] // 2
        plane = torch.arange(half, dtype=torch.float64, device=x.device)
        angle = (sign * rows[:, None] * 10000 ** (-plane / half)).bfloat16().to(x.dtype)
        first, second = x[..., :half], x[..., half:]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


@ZOO.killed_by(
    "The exponents of the softmax are rounded to bfloat16, unless arrays are float64.",
    "precision/attention/float32-any-options",
    also=("precision/attention/float32",),
    own_dtype=True,
)
class ExponentsInBfloat16(Plain):
    def softmax(self, logits: Tensor) -> Tensor:
        if logits.dtype == torch.float64:
            return super().softmax(logits)
        exponents = logits - logits.amax(-1, keepdim=True)
        return torch.softmax(exponents.bfloat16().to(logits.dtype), -1)


@ZOO.killed_by(
    "Directions are rounded to four significant bits.",
    "precision/mlp/float32",
    "|error| of*",
    also=("precision/mlp/bfloat16", "precision/attention/bfloat16"),
    own_dtype=True,
)
class RoundsToFourBits(Plain):
    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        mantissa, exponent = torch.frexp(heads.float())
        return super().advance(x, torch.ldexp((mantissa * 16).round() / 16, exponent).to(x.dtype), w, c)


ZOO += [
    ZOO.but("block-wrong-in-float32", "The block's update is one part in a hundred too large, in float32 only.",
        "precision/block/float32-any-options", own_dtype=True,
        block=lambda usual, h, w, c: _off_in_float32(h, usual.block(h, w, c))),
    ZOO.but("decodes-wrongly-in-float32", "Decoded updates are one part in a hundred too large, in float32 only.",
        "precision/decode/float32-any-options", "cached = uncached", own_dtype=True,
        decode=lambda usual, h, w, c: _off_in_float32(h, usual.decode(h, w, c))),
]  # fmt: skip


def _off_in_float32(start: Tensor, answer: Tensor) -> Tensor:
    return answer + (answer - start) / 100 if start.dtype == torch.float32 else answer


ZOO += [
    ZOO.calling("energies-wrong-in-float32", "Energies are one part in a hundred too large, in float32 only.",
        "precision/mlp-energy/float32-any-options", "stated energy = energy", of="*_energy",
        also=("precision/attention-energy/float32-any-options",),
        answer=lambda call, x, *others: call(x, *others) * (1.01 if "float32" in str(x.dtype) else 1)),
]  # fmt: skip

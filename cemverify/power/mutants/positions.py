"""Faults of position schemes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Zoo

ZOO = Zoo("positions")


@ZOO.killed_by("ALiBi is added with the printed sign.", "gradient/attention/alibi")
class AlibiFavoursTheDistant(Plain):
    def bias(self, rows: Tensor, length: int, w: Weights, c: AttentionConfig) -> Tensor:
        bias = super().bias(rows, length, w, c)
        return -bias if c.position == "alibi" else bias


ZOO += [
    ZOO.but("printed-slopes", "ALiBi's slopes are 2^-k for any number of heads.",
        "gradient/attention/alibi", slopes=lambda _, heads: [2.0 ** -(k + 1) for k in range(heads)]),
]  # fmt: skip


@ZOO.killed_by(
    "If the number of heads is not a power of two, the extra slopes are the next ones, not every second one.",
    "gradient/attention/alibi",
)
class ConsecutiveExtraSlopes(Plain):
    def slopes(self, heads: int) -> list[float]:
        power = 2 ** int(math.log2(heads))
        return [2 ** (-8 * (k + 1) / power) for k in range(power)] + [
            2 ** (-8 * (k + 1) / (2 * power)) for k in range(heads - power)
        ]


@ZOO.killed_by(
    "The biases for a token's own key and for the other keys are exchanged.", "gradient/attention/self-cross-bias"
)
class SelfAndCrossSwapped(Plain):
    def bias(self, rows: Tensor, length: int, w: Weights, c: AttentionConfig) -> Tensor:
        if c.position != "self-cross":
            return super().bias(rows, length, w, c)
        return super().bias(rows, length, {**w, "to_self": w["to_others"], "to_others": w["to_self"]}, c)


ZOO += [
    ZOO.but("unrotated-values", "Rotary positions leave the values unrotated, as standard attention does.",
        "gradient/attention/rotary",
        values=lambda usual, keys, h, w, c:
            torch.einsum("bjd,krd->bkjr", h, w["W_K"]) if c.position == "rotary" else usual.values(keys, h, w, c),
        unrotate=lambda _, attended, rows, c: attended),
    ZOO.but("output-stays-rotated", "Rotary outputs are not rotated back.",
        "gradient/attention/rotary", unrotate=lambda _, attended, rows, c: attended),
    ZOO.but("bias-divided-by-temperature", "The bias is added before the division by tau instead of after.",
        "gradient/attention/alibi", bias=lambda usual, rows, length, w, c: usual.bias(rows, length, w, c) / c.tau),
    ZOO.but("slopes-reversed", "The first head gets the last head's slope.",
        "gradient/attention/alibi", slopes=lambda usual, heads: usual.slopes(heads)[::-1]),
]  # fmt: skip


@ZOO.killed_by("The slopes start at 1, one power too early.", "gradient/attention/alibi")
class SlopesFromHeadZero(Plain):
    def slopes(self, heads: int) -> list[float]:
        first = super().slopes(heads)[0]
        return [slope / first for slope in super().slopes(heads)]


@ZOO.killed_by("ALiBi falls with the square of the distance.", "gradient/attention/alibi")
class SquaredDistance(Plain):
    def bias(self, rows: Tensor, length: int, w: Weights, c: AttentionConfig) -> Tensor:
        bias = super().bias(rows, length, w, c)
        distance = (rows[:, None] - torch.arange(length)[None, :]).abs()
        return bias * distance if c.position == "alibi" else bias


@ZOO.killed_by("ALiBi treats all distances above four alike.", "gradient/attention/alibi", needs=("position:alibi",))
class DistanceCapped(Plain):
    def bias(self, rows: Tensor, length: int, w: Weights, c: AttentionConfig) -> Tensor:
        bias = super().bias(rows, length, w, c)
        if c.position != "alibi":
            return bias
        distance = (rows[:, None] - torch.arange(length)[None, :]).abs().double()
        return bias * distance.clamp(max=4) / distance.clamp(min=1)


ZOO += [
    ZOO.but("positions-count-from-the-call",
        "A token's position is its place in the call, so a decoded token always has the first position.",
        "structure/decode/cached-equals-uncached-alibi", "cached = uncached",
        bias=lambda usual, rows, length, w, c: usual.bias(rows - rows[0], length, w, c)),
]  # fmt: skip


@ZOO.killed_by("A token's own key gets no bias.", "gradient/attention/self-cross-bias")
class BiasWithoutSelf(Plain):
    def bias(self, rows: Tensor, length: int, w: Weights, c: AttentionConfig) -> Tensor:
        changed = {**w, "to_self": torch.zeros_like(w["to_self"])} if c.position == "self-cross" else w
        return super().bias(rows, length, changed, c)


@ZOO.killed_by("Every head uses the first head's biases.", "gradient/attention/self-cross-bias")
class BiasOfTheFirstHead(Plain):
    def bias(self, rows: Tensor, length: int, w: Weights, c: AttentionConfig) -> Tensor:
        first = {name: b[:1].expand_as(b) for name, b in w.items() if name in ("to_self", "to_others")}
        return super().bias(rows, length, {**w, **first}, c)


ZOO += [
    ZOO.but("rotary-backwards", "Outputs are rotated forward instead of back.",
        "gradient/attention/rotary", unrotate=lambda usual, attended, rows, c: usual.rotate(attended, rows, c, 1.0)),
]  # fmt: skip


@ZOO.killed_by(
    "Neighbouring features are rotated as pairs instead of those half a head apart.", "gradient/attention/rotary"
)
class RotaryInterleaved(Plain):
    def rotate(self, x: Tensor, rows: Tensor, c: AttentionConfig, sign: float) -> Tensor:
        R = x.shape[-1]
        if c.position != "rotary":
            return x
        turned = super().rotate(torch.cat((x[..., 0::2], x[..., 1::2]), -1), rows, c, sign)
        return torch.stack((turned[..., : R // 2], turned[..., R // 2 :]), -1).flatten(-2)


@ZOO.killed_by(
    "The base is 500000, which makes a difference for heads of more than two features only.",
    "gradient/attention/rotary",
)
class RotaryOfAnotherBase(Plain):
    def rotate(self, x: Tensor, rows: Tensor, c: AttentionConfig, sign: float) -> Tensor:
        if c.position != "rotary":
            return x
        half = x.shape[-1] // 2
        angle = sign * rows.to(x.dtype)[:, None] / 500000 ** (torch.arange(half, dtype=x.dtype) / half)
        first, second = x[..., :half], x[..., half:]
        return torch.cat((first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()), -1)

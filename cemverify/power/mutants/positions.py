"""Faults of position schemes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import After, Function, Part, Zoo

ZOO = Zoo("positions")


def distances_capped_at(most: int) -> Part:
    """ALiBi that treats all larger distances as equal."""

    def bias(usual: Plain, rows: Tensor, length: int, w: Weights, c: AttentionConfig) -> Tensor:
        bias = usual.bias(rows, length, w, c)  # (K, J, S)
        slopes = torch.tensor(usual.slopes(c.heads), dtype=bias.dtype, device=bias.device)
        return torch.maximum(bias, -most * slopes[:, None, None]) if c.position == "alibi" else bias

    return bias


Angles = Callable[[Tensor, Tensor], Tensor]  # of rows (J) and frequencies (R/2): (J, R/2), in float64


def narrow_rotary(angles: Angles) -> Function:
    """Rotation by angles other than the product of rows and frequencies, except for float64 arrays."""

    def rotate(usual: Plain, x: Tensor, rows: Tensor, c: AttentionConfig, sign: float) -> Tensor:
        if c.position != "rotary" or x.dtype == torch.float64:
            return usual.rotate(x, rows, c, sign)
        half = x.shape[-1] // 2
        angle = sign * angles(rows, 10000 ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half))
        first, second = x.double().chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)

    return rotate


ZOO += [
    ZOO.but("self-and-cross-swapped", "The biases for a token's own key and for the other keys are exchanged.",
        "gradient/attention/self-cross-bias", bias=lambda usual, rows, length, w, c:
            usual.bias(rows, length, w, c) if c.position != "self-cross"
            else usual.bias(rows, length, {**w, "to_self": w["to_others"], "to_others": w["to_self"]}, c)),
    ZOO.but("bias-of-the-first-head", "Every head uses the first head's biases.",
        "gradient/attention/self-cross-bias", bias=lambda usual, rows, length, w, c:
            usual.bias(rows, length,
            {**w, **{name: b[:1].expand_as(b) for name, b in w.items() if name in ("to_self", "to_others")}}, c)),
    ZOO.but("alibi-favours-the-distant", "ALiBi is added with the printed sign.",
        "gradient/attention/alibi",
        bias=After(lambda bias, rows, length, w, c: -bias if c.position == "alibi" else bias)),
    ZOO.but("unrotated-values", "Rotary positions leave the values unrotated, as standard attention does.",
        "gradient/attention/rotary", values=lambda usual, keys, h, w, c:
            torch.einsum("bjd,krd->bkjr", h, w["W_K"]) if c.position == "rotary" else usual.values(keys, h, w, c),
        unrotate=lambda _, attended, rows, c: attended),
    ZOO.but("output-stays-rotated", "Rotary outputs are not rotated back.",
        "gradient/attention/rotary", unrotate=lambda _, attended, rows, c: attended),
    ZOO.but("positions-count-from-the-call",
        "A token's position is its place in the call, so a decoded token always has the first position.",
        "structure/decode/cached-equals-uncached-alibi",
        bias=lambda usual, rows, length, w, c: usual.bias(rows - rows[0], length, w, c)),
]  # fmt: skip

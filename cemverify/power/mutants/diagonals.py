"""Faults of the diagonal in A_k."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Zoo

ZOO = Zoo("diagonals")


ZOO += [
    ZOO.but("score-only-diagonal", "The diagonal enters the scores but not the values, as Algorithm 1 prints it.",
        "gradient/attention/diagonal-shared", diagonal_value=lambda _, a, h, w, c: 0.0),
    ZOO.but("diagonal-of-the-first-head", "Every head uses the first head's diagonal.",
        "gradient/attention/diagonal-per-head",
        diagonal=lambda usual, w, c: usual.diagonal(w, c)[:1].expand(c.heads, -1)),
]  # fmt: skip


@ZOO.killed_by(
    "A diagonal per head is ignored if positions are rotary.",
    "gradient/attention/any-options",
    needs=("position:rotary", "diagonal:per-head"),
)
class RotaryLosesTheDiagonal(Plain):
    def diagonal(self, w: Weights, c: AttentionConfig) -> Tensor:
        both = c.position == "rotary" and c.diagonal == "per-head"
        return super().diagonal(w, c) * (0.0 if both else 1.0)


ZOO += [
    ZOO.but("value-only-diagonal", "The diagonal enters the values but not the scores.",
        "gradient/attention/diagonal-shared",
        scores=lambda usual, q, k, x, h, w, c: usual.scores(q, k, x, h, w, replace(c, diagonal="none"))),
]  # fmt: skip


@ZOO.killed_by("The diagonal enters the scores twice.", "gradient/attention/diagonal-shared")
class DiagonalTwiceInTheScores(Plain):
    def scores(self, q: Tensor, k: Tensor, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        without = super().scores(q, k, x, h, w, replace(c, diagonal="none"))
        return 2 * super().scores(q, k, x, h, w, c) - without


ZOO += [
    ZOO.but("diagonal-twice-in-the-values", "The diagonal enters the values twice.",
        "gradient/attention/diagonal-shared", also=("gradient/attention/rotary-with-shared-diagonal",),
        diagonal_value=lambda usual, a, h, w, c: 2 * usual.diagonal_value(a, h, w, c)),
    ZOO.but("diagonal-once-for-all-heads", "A shared diagonal is divided by the number of heads.",
        "gradient/attention/diagonal-per-head", diagonal=lambda usual, w, c: usual.diagonal(w, c) / c.heads),
]  # fmt: skip


@ZOO.killed_by(
    "The diagonal's part of the scores is not divided by the temperature.", "gradient/attention/diagonal-shared"
)
class DiagonalColdInTheScores(Plain):
    def scores(self, q: Tensor, k: Tensor, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        without = super().scores(q, k, x, h, w, replace(c, diagonal="none"))
        return without + (super().scores(q, k, x, h, w, c) - without) * c.tau


@ZOO.killed_by(
    "The diagonal's values are the token's own memory, not the attended one.", "gradient/attention/diagonal-shared"
)
class DiagonalReadsTheOwnToken(Plain):
    def diagonal_value(self, a: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor | float:
        if c.diagonal == "none":
            return 0.0
        return torch.einsum("kd,bid->bkid", self.diagonal(w, c), h[:, -a.shape[-2] :])


ZOO += [
    ZOO.but("averaged-diagonal", "Every head uses the mean of the diagonals.",
        "gradient/attention/diagonal-per-head",
        diagonal=lambda usual, w, c: usual.diagonal(w, c).mean(0, keepdim=True).expand(c.heads, -1)),
]  # fmt: skip

"""Faults of attention that is evaluated in tiles: edges, truncation, the running maximum, what is computed again."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Zoo, fault

ZOO = Zoo("tiles")

_PRODUCT = "product*"
_ROWS, _COLUMNS = 2, 3


class Tiled(Plain):
    """Right: the softmax of rows by tiles of columns, with a running maximum and a running sum."""

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.cat([self.rows(part, a) for a, part in self.row_tiles(logits)], -2)

    def row_tiles(self, logits: Tensor) -> list[tuple[int, Tensor]]:
        """First row and logits (..., r, S) of each tile of rows."""
        return [(a, logits[..., a : a + _ROWS, :]) for a in range(0, logits.shape[-2], _ROWS)]

    def rows(self, logits: Tensor, first: int) -> Tensor:
        maximum = torch.full_like(logits[..., :1], -math.inf)
        total = torch.zeros_like(maximum)
        for part in self.column_tiles(logits):
            larger = torch.maximum(maximum, part.amax(-1, keepdim=True).detach())
            # before the first finite logit there is nothing to rescale, and no -inf - -inf
            safe = torch.where(larger.isinf(), 0.0, larger)
            total = self.rescaled(total, maximum, safe) + self.summed((part - safe).exp())
            maximum = larger
        return (logits - maximum).exp() / total

    def column_tiles(self, logits: Tensor) -> list[Tensor]:
        """The logits (..., r, s) of each tile of columns."""
        return list(torch.split(logits, self.columns, -1))

    columns = _COLUMNS

    def summed(self, tile: Tensor) -> Tensor:
        """What a tile (..., r, s) adds to the running sum."""
        return tile.sum(-1, keepdim=True)

    def rescaled(self, total: Tensor, before: Tensor, now: Tensor) -> Tensor:
        """The running sum relative to the maximum now."""
        return total * (before - now).exp()


@ZOO.killed_by("gradient/attention/plain")
@fault("The running sum is not rescaled when the maximum grows.")
class SumIsNotRescaled(Tiled):
    def rescaled(self, total: Tensor, before: Tensor, now: Tensor) -> Tensor:
        return total


@ZOO.killed_by("gradient/attention/plain")
@fault("A last tile of rows that is not full has uniform weights.")
class LastRowsAreUniform(Tiled):
    def rows(self, logits: Tensor, first: int) -> Tensor:
        if first and logits.shape[-2] < _ROWS:
            return super().rows(torch.where(logits.isinf(), logits, 0.0 * logits), first)
        return super().rows(logits, first)


@ZOO.killed_by("structure/attention/causality", "*")
@fault("Columns are truncated at the end of the tile of rows, and the mask inside it is forgotten.")
class TileSeesItsOwnFuture(Tiled):
    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return j // _ROWS > i // _ROWS


@ZOO.killed_by("training/attention/any-options", _PRODUCT)
@fault("In the backward pass a step is recalled from the state of the step before.")
class RecallsTheStateBefore(Plain):
    before: Tensor | None = None

    def steps(self, c: Any) -> int:
        self.before = None  # a descent begins
        return super().steps(c)

    def attention_direction(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        right = super().attention_direction(x, h, w, c)
        before, self.before = self.before, x.detach()
        if before is None:
            return right
        elsewhere = super().attention_direction(before + (x - x.detach()), h, w, c)
        return elsewhere + (right - elsewhere).detach()

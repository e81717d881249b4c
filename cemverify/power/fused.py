"""Correct implementations that add up in an unusual order, as kernels do.

A kernel that fuses the residual adds each summand of a step directly to the state: x += eta P_k g_k, head by head, in
the dtype of x. It rounds the state once for each head, whereas x + eta sum_k P_k g_k rounds it once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import MLPConfig
from cemverify.conformance.implementations.plain import Plain, Weights


class HeadByHead(Plain):
    """Adds the step of each head to the state separately."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        if c.norm == "folded":
            heads = heads * w["gain"]
        for direction in self.precondition(heads, w, c).unbind(1):
            x = x + c.step_size * direction
        return x


class UnitByUnit(HeadByHead):
    """Also adds the step of each hidden unit separately; if P mixes features, it first sums them unit by unit."""

    def mlp(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        for _ in range(self.steps(c)):
            n = self.norm(x, w, c)
            hidden = self.gated(n @ w["V"].T, h @ w["W"].T, c)  # (B, J, M)
            units = hidden.mT[..., None] * w["V"][:, None]  # (B, M, J, D)
            if c.preconditioner.kind.startswith("low-rank"):
                total = units[:, :1]
                for unit in units[:, 1:].unbind(1):
                    total = total + unit[:, None]
                units = total
            x = self.advance(x, units, w, c)
        return x


_ROWS, _COLUMNS = 2, 3


class Tiled(Plain):
    """Computes the softmax of rows by tiles of columns, with a running maximum and a running sum."""

    def softmax(self, logits: Tensor) -> Tensor:
        starts = range(0, logits.shape[-2], _ROWS)
        return torch.cat([self.rows(logits[..., first : first + _ROWS, :], first) for first in starts], -2)

    def rows(self, logits: Tensor, first: int) -> Tensor:  # noqa: ARG002
        """The weights of a tile of rows (..., r, S); `first` is the index of its first row."""
        maximum = torch.full_like(logits[..., :1], -math.inf)
        total = torch.zeros_like(maximum)
        for part in torch.split(logits, _COLUMNS, -1):
            larger = torch.maximum(maximum, part.amax(-1, keepdim=True).detach())
            # before the first finite logit there is nothing to rescale; 0 avoids -inf - -inf
            safe = torch.where(larger.isinf(), 0.0, larger)
            total = total * (maximum - safe).exp() + (part - safe).exp().sum(-1, keepdim=True)
            maximum = larger
        return (logits - maximum).exp() / total

"""Correct implementations that add up in an unusual order: every summand of a step goes to the state at once.

A kernel that fuses the residual does so: x += eta P_k g_k for one head after the other, in the dtype of x. It rounds
the state once for each head, where x + eta sum_k P_k g_k rounds it once.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cemverify.cem.layers import MLPConfig
from cemverify.conformance.implementations.plain import Plain, Weights


class HeadByHead(Plain):
    """Adds the step of each head to the state by itself."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        if c.norm == "folded":
            heads = heads * w["gain"]
        for direction in self.precondition(heads, w, c).unbind(1):
            x = x + c.step_size * direction
        return x


class UnitByUnit(HeadByHead):
    """Adds the step of each hidden unit too, or first adds those up where P mixes features."""

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

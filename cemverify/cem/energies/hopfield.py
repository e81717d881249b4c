"""The modern Hopfield energy, of which one CCCP step is a gradient step of size one (App. B).

    E(x_i | h) = -tau log sum_j exp(h_j . x_i / tau) + |x_i|^2 / 2
    CCCP:  x_i <- sum_j softmax_j(h_j . x_i / tau) h_j  =  x_i - grad E

The appendix prints the prefactor -1/tau and leaves |x|^2/2 out; then neither equation holds
(docs/mathematics.md §4, §11).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cemverify.cem.energies.curvature import Curvature


@dataclass(frozen=True, eq=False)
class HopfieldMemory:
    """The stored patterns.

    Attributes:
        patterns: h, (B, S, D).
    """

    patterns: Tensor


@dataclass(frozen=True)
class Hopfield:
    """The Hopfield energy; every token sees every pattern.

    Attributes:
        temperature: tau > 0, the inverse of Ramsauer's beta.
    """

    temperature: float = 1.0

    def __call__(self, x: Tensor, memory: HopfieldMemory) -> Tensor:
        """The energy of every token, unreduced: x (B, J, D) -> (B, J)."""
        scores = x @ memory.patterns.mT / self.temperature  # (B, J, S)
        return -self.temperature * torch.logsumexp(scores, -1) + (x * x).sum(-1) / 2

    def remember(self, h: Tensor) -> HopfieldMemory:
        """The memory of the patterns h (B, S, D)."""
        return HopfieldMemory(h)

    def gradient(self, x: Tensor, memory: HopfieldMemory) -> Tensor:
        """x - softmax(x h^T / tau) h: (B, J, D)."""
        return x - self.cccp_step(x, memory)

    def cccp_step(self, x: Tensor, memory: HopfieldMemory) -> Tensor:
        """The minimiser after linearising the concave part at x: (B, J, D)."""
        return torch.softmax(x @ memory.patterns.mT / self.temperature, -1) @ memory.patterns

    def curvature(self, memory: HopfieldMemory) -> Curvature:
        """upper = 1: a concave part plus |x|^2/2, so every step size in (0, 2) descends."""
        return Curvature(torch.ones((), dtype=memory.patterns.dtype, device=memory.patterns.device))

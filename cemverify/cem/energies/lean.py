"""The gradient of the element-wise energy without its hidden numbers: they are computed again in the backward pass.

A step of a gated MLP keeps three numbers for each hidden unit and token for its derivative. Here it keeps only the
states, which are fewer, at the cost of one more matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cemverify.cem.energies.elementwise import Elementwise, ElementwiseMemory


@dataclass(frozen=True, eq=False)
class LeanElementwise(Elementwise):
    """An element-wise energy whose gradient keeps no hidden numbers."""

    @classmethod
    def of(cls, energy: Elementwise) -> LeanElementwise:
        """The given element-wise energy, evaluated this way."""
        return cls(energy.V, energy.W, energy.activation)

    def gradient(self, x: Tensor, memory: ElementwiseMemory) -> Tensor:
        """grad_x xi: x (B, J, D) -> (B, J, D)."""
        gradient: Tensor = checkpoint(super().gradient, x, memory, use_reentrant=False, preserve_rng_state=False)
        return gradient

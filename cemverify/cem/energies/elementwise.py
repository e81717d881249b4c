"""The element-wise energy, whose gradient step is a gated MLP with tied projections (Eq. 7, Eq. 11).

    xi(x_i | h_i) = -(W h_i) . phi(V x_i),   phi' = sigma
    -grad xi      = V^T ((W h_i) * sigma(V x_i))

In Llama's terms V is the *gate* projection (activated), W the *up* projection (linear) and V^T the *down*
projection; the paper's superscripts u and g name them the other way round (docs/mathematics.md §2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cemverify.cem.activations import Activation
from cemverify.cem.energies.curvature import Curvature


@dataclass(frozen=True, eq=False)
class ElementwiseMemory:
    """The memory of the element-wise energy.

    Attributes:
        gate: W h, (B, J, M).
    """

    gate: Tensor


@dataclass(frozen=True, eq=False)
class Elementwise:
    """The element-wise energy of one gated MLP.

    Attributes:
        V: (M, D), activated and, transposed, the output projection.
        W: (M, D), linear, read from the memory.
        activation: sigma and its primitive.
    """

    V: Tensor
    W: Tensor
    activation: Activation

    def __call__(self, x: Tensor, memory: ElementwiseMemory) -> Tensor:
        """The energy of every token, unreduced: x (B, J, D) -> (B, J)."""
        return -(memory.gate * self.activation.primitive(x @ self.V.mT)).sum(-1)

    def remember(self, h: Tensor) -> ElementwiseMemory:
        """What this energy keeps of the hidden states h (B, J, D) while the state moves."""
        return ElementwiseMemory(h @ self.W.mT)

    def window(self, memory: ElementwiseMemory, _tokens: int, start: int, stop: int) -> ElementwiseMemory:
        """The memory of the tokens from start to stop, as a view."""
        return ElementwiseMemory(memory.gate[:, start:stop])

    def gradient(self, x: Tensor, memory: ElementwiseMemory) -> Tensor:
        """grad_x xi in closed form: x (B, J, D) -> (B, J, D)."""
        return -(memory.gate * self.activation.sigma(x @ self.V.mT)) @ self.V

    def curvature(self, memory: ElementwiseMemory) -> Curvature:
        """upper = |V|_2^2 max_m |gamma_m| max |sigma'|, tight (docs/mathematics.md §9); upper: (B, J)."""
        spectral = torch.linalg.matrix_norm(self.V.to(torch.float64), ord=2)
        largest_gate = memory.gate.abs().amax(-1).to(torch.float64)
        scale = spectral**2 * largest_gate
        # an energy that is constant in x is flat, even if the slope bound is infinite
        return Curvature(torch.where(scale == 0, 0.0, scale * self.activation.slope_bound))

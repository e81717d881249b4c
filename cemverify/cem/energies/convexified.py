"""The element-wise energy with its signs moved inside (App. B).

    xi'(x_i | h_i) = -|gamma_i| . phi(sign(gamma_i) * V x_i),   gamma_i = W h_i
    -grad xi'      = V^T (gamma_i * sigma(sign(gamma_i) * V x_i))

The appendix calls it convex. With a convex phi, that is a monotone sigma, it is a non-positive combination
of convex functions: *concave*. So a step of any size descends (docs/mathematics.md §10).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cemverify.cem.activations import Activation
from cemverify.cem.energies.curvature import Curvature
from cemverify.cem.energies.elementwise import ElementwiseMemory


@dataclass(frozen=True, eq=False)
class Convexified:
    """The convexified element-wise energy.

    Attributes:
        V: (M, D). W: (M, D). activation: sigma and its primitive.
        straight_through: whether gradients of the gates pass through their signs as through the identity, as in the
            paper's training (App. B); otherwise signs pass none on.
    """

    V: Tensor
    W: Tensor
    activation: Activation
    straight_through: bool = False

    def __call__(self, x: Tensor, memory: ElementwiseMemory) -> Tensor:
        """The energy of every token, unreduced: x (B, J, D) -> (B, J)."""
        gate = memory.gate
        return -(gate.abs() * self.activation.primitive(self._sign(gate) * (x @ self.V.mT))).sum(-1)

    def remember(self, h: Tensor) -> ElementwiseMemory:
        """What this energy keeps of the hidden states h (B, J, D) while the state moves."""
        return ElementwiseMemory(h @ self.W.mT)

    def gradient(self, x: Tensor, memory: ElementwiseMemory) -> Tensor:
        """grad_x xi' in closed form: x (B, J, D) -> (B, J, D)."""
        gate = memory.gate
        return -(gate * self.activation.sigma(self._sign(gate) * (x @ self.V.mT))) @ self.V

    def _sign(self, gate: Tensor) -> Tensor:
        sign = gate.sign()
        return sign + (gate - gate.detach()) if self.straight_through else sign

    def curvature(self, memory: ElementwiseMemory) -> Curvature:
        """Concave for a monotone sigma; otherwise |V|_2^2 max |gamma| |min sigma'|; upper: (B, J)."""
        largest_gate = memory.gate.abs().amax(-1).to(torch.float64)
        if self.activation.monotone:
            return Curvature(torch.zeros_like(largest_gate))
        spectral = torch.linalg.matrix_norm(self.V.to(torch.float64), ord=2)
        return Curvature(spectral**2 * largest_gate * -self.activation.min_slope)

"""A gated MLP as a gradient step: xi(x) = -(W h) . phi(V x), with phi' = arctan, and tied gate and down projections."""

import torch
from torch import nn

from cemverify import energy_layer

D, HIDDEN = 5, 7


class GatedMLP(nn.Module):
    def __init__(self):
        super().__init__()
        draw = torch.Generator().manual_seed(6)
        self.gate = nn.Parameter(0.5 * torch.randn(HIDDEN, D, generator=draw, dtype=torch.float64))
        self.up = nn.Parameter(0.5 * torch.randn(HIDDEN, D, generator=draw, dtype=torch.float64))
        self.bias = nn.Parameter(0.3 * torch.randn(HIDDEN, generator=draw, dtype=torch.float64))

    def energy(self, g, h):  # (B, J, D), (B, J, D) -> (B, J)
        z = g @ self.gate.mT + self.bias
        phi = z * torch.atan(z) - 0.5 * torch.log1p(z * z)
        return -((h @ self.up.mT) * phi).sum(-1)

    def forward(self, x, h):  # (B, J, D), (B, J, D) -> (B, J, D)
        opened = torch.atan(x @ self.gate.mT + self.bias)
        return (opened * (h @ self.up.mT)) @ self.gate


module = GatedMLP().eval()

mine = energy_layer(
    update=module,
    energy=module.energy,
    dim=D,
    parameters=module,
    permutable=True,
    not_offered=("dtype:float32", "dtype:bfloat16"),
)

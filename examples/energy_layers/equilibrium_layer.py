"""An equilibrium layer (Bai et al., arXiv 1909.01377) whose fixed point is the minimum of an energy.

    E(x | h) = x.x / 2 - sum log cosh(W x + U h),    |W|_2 < 1
    x* = W^T tanh(W x* + U h),    where dE/dx = 0

The layer returns x* itself, found by iterating the map, which contracts.

`cemverify check examples.energy_layers.equilibrium_layer:mine`
"""

import torch
from torch import Tensor

from cemverify import energy_layer

D, M = 3, 4
TOLERANCE, MOST = 1e-10, 120

generator = torch.Generator().manual_seed(6)
W = torch.randn(M, D, generator=generator, dtype=torch.float64)
W = 0.8 * W / torch.linalg.matrix_norm(W, 2)
U = torch.randn(M, D, generator=generator, dtype=torch.float64)


def log_cosh(z: Tensor) -> Tensor:
    return torch.logaddexp(z, -z) - torch.log(torch.tensor(2.0, dtype=z.dtype))


def energy(x: Tensor, h: Tensor) -> Tensor:
    return (x * x).sum(-1) / 2 - log_cosh(x @ W.to(x).T + h @ U.to(h).T).sum(-1)  # (B, J)


def solve(x: Tensor, h: Tensor) -> Tensor:
    injected = h @ U.to(h).T
    for _ in range(MOST):
        x = torch.tanh(x @ W.to(x).T + injected) @ W.to(x)
    return x


mine = energy_layer(
    update=solve, energy=energy, dim=D, step="equilibrium", returns="next state", tolerance=TOLERANCE, permutable=True
)

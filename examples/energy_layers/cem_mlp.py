"""The gated MLP of Causal Energy Minimization (arXiv 2605.07588, Eq. 7 and 13), two steps with a preconditioner.

    E(x_i | h_i) = -(W h_i) . phi(V x_i),    phi' = GELU
    x <- x - eta P dE/dx    twice, P = diag(softplus(d))

`cemverify check examples.energy_layers.cem_mlp:mine`
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify import energy_layer

D, M = 4, 6
STEPS, STEP_SIZE = 2, 0.5

generator = torch.Generator().manual_seed(0)
V, W = (torch.randn(M, D, generator=generator, dtype=torch.float64) / 2 for _ in range(2))
d = torch.randn(D, generator=generator, dtype=torch.float64)


def phi(z: Tensor) -> Tensor:
    """The primitive of GELU: ((z^2 - 1) Phi(z) + z pdf(z) + 1/2) / 2."""
    below = (1 + torch.erf(z / math.sqrt(2))) / 2
    return ((z * z - 1) * below + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi) + 0.5) / 2


def precondition(gradient: Tensor) -> Tensor:
    return F.softplus(d.to(gradient)) * gradient


def energy(x: Tensor, h: Tensor) -> Tensor:
    return -((h @ W.to(h).T) * phi(x @ V.to(x).T)).sum(-1)  # (B, J)


def update(x: Tensor, h: Tensor) -> Tensor:
    start, gate = x, h @ W.to(h).T  # (B, J, M)
    for _ in range(STEPS):
        x = x + STEP_SIZE * precondition((gate * F.gelu(x @ V.to(x).T)) @ V.to(x))
    return x - start


mine = energy_layer(
    update=update,
    energy=energy,
    dim=D,
    steps=STEPS,
    step_size=STEP_SIZE,
    preconditioner=precondition,
    parameters={"V": V, "W": W, "d": d},
)

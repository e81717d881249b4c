"""A step of ISTA for a sparse code (Beck & Teboulle 2009), as the ReLU layers of white-box transformers take it.

    E(x) = |y - D x|^2 / 2,    R(x) = lambda |x|_1  for x >= 0,    x' = ReLU(x - eta dE/dx - eta lambda)

E is smooth and gets a gradient step. R is not, and gets its proximal map. The step lowers E + R, not E alone.

`cemverify check examples.energy_layers.ista:mine`
"""

import torch
from torch import Tensor

from cemverify import energy_layer

FEATURES, ATOMS, LAMBDA = 4, 6, 0.3
RANDOM = torch.randn(ATOMS, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
DICTIONARY: Tensor = torch.linalg.qr(RANDOM)[0].mT  # (features, atoms)
ETA = 0.5  # below 1, the inverse of the largest eigenvalue of D^T D


def energy(x: Tensor, y: Tensor) -> Tensor:
    rest: Tensor = y - x @ DICTIONARY.to(x).mT  # (B, J, features)
    return (rest**2).sum(-1) / 2  # (B, J)


def penalty(x: Tensor) -> Tensor:
    return LAMBDA * x.sum(-1) + torch.where((x < 0).any(-1), torch.inf, 0.0)  # (B, J)


def proximal(v: Tensor, eta: float) -> Tensor:
    return torch.relu(v - eta * LAMBDA)


def sparser(x: Tensor, y: Tensor) -> Tensor:
    rest = y - x @ DICTIONARY.to(x).mT  # (B, J, features)
    return torch.relu(x + ETA * rest @ DICTIONARY.to(x) - ETA * LAMBDA)


mine = energy_layer(
    update=sparser,
    energy=energy,
    state=("J", ATOMS),
    memory=("J", FEATURES),
    step="proximal",
    step_size=ETA,
    proximal=proximal,
    penalty=penalty,
    returns="next state",
    monotone=True,
    permutable=True,
)

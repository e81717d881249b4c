"""Retrieval from a modern Hopfield network (Ramsauer et al., arXiv 2008.02217, Eq. 3).

    E(x) = -lse(beta, X x) + x.x / 2,    x' = X^T softmax(beta X x)

One call replaces the state by the pattern that it retrieves. It is the concave-convex procedure, whose whole step
never raises the energy, and at the same time a gradient step of size 1.

`cemverify check examples.energy_layers.hopfield_retrieval:mine`
"""

import torch
from torch import Tensor

from cemverify import energy_layer

D, BETA = 4, 2.0


def energy(x: Tensor, patterns: Tensor) -> Tensor:
    return -torch.logsumexp(BETA * x @ patterns.mT, -1) / BETA + (x * x).sum(-1) / 2  # (B, J)


def retrieve(x: Tensor, patterns: Tensor) -> Tensor:
    return torch.softmax(BETA * x @ patterns.mT, -1) @ patterns  # (B, J, D)


mine = energy_layer(
    update=retrieve,
    energy=energy,
    state=("J", D),
    memory=("M", D),
    returns="next state",
    monotone=True,
    permutable=True,
)

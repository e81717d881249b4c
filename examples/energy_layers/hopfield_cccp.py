"""Retrieval with a quartic penalty, by the concave-convex procedure (Yuille & Rangarajan 2003).

    E(x) = -lse(beta, X x) + x.x / 2 + sum x^4 / 4
    x' solves x' + x'^3 = X^T softmax(beta X x)

The concave part is replaced by its tangent and the rest minimised exactly. That is not a gradient step, and yet the
whole step never raises the energy.

`cemverify check examples.energy_layers.hopfield_cccp:mine`
"""

import math

import torch
from torch import Tensor

from cemverify import energy_layer

D, BETA = 3, 1.5
ROOT = math.sqrt(3)


def energy(x: Tensor, patterns: Tensor) -> Tensor:
    memory = -torch.logsumexp(BETA * x @ patterns.mT, -1) / BETA
    return memory + (x**2 / 2 + x**4 / 4).sum(-1)  # (B, J)


def cubic_root(y: Tensor) -> Tensor:
    """The x with x + x^3 = y: x = (2 / sqrt(3)) sinh(asinh(3 sqrt(3) y / 2) / 3)."""
    return 2 / ROOT * torch.sinh(torch.asinh(1.5 * ROOT * y) / 3)


def retrieve(x: Tensor, patterns: Tensor) -> Tensor:
    return cubic_root(torch.softmax(BETA * x @ patterns.mT, -1) @ patterns)  # (B, J, D)


mine = energy_layer(
    update=retrieve,
    energy=energy,
    state=("J", D),
    memory=("M", D),
    step="cccp",
    returns="next state",
    permutable=True,
)

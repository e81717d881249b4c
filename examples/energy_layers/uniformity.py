"""Tokens that repel each other: one step down the uniformity loss (Wang & Isola, arXiv 2005.10242, Eq. 3).

    E(x) = log 1/(J (J - 1)) sum_{i != j} exp(-t |x_i - x_j|^2)
    x_i' = x_i + 4 eta t sum_j w_ij (x_i - x_j),    w = softmax over all pairs i != j

A pair counts twice, as (i, j) and (j, i), which makes the 4 of 2 t. One token alone has no pair and no energy.

`cemverify check examples.energy_layers.uniformity:mine`
"""

import math

import torch
from torch import Tensor

from cemverify import energy_layer

D, T, STEP_SIZE = 3, 0.5, 0.1


def closeness(x: Tensor) -> Tensor:
    """-t |x_i - x_j|^2 of each pair, -inf of a token with itself: (B, J, J)."""
    apart = ((x[:, :, None] - x[:, None]) ** 2).sum(-1)
    return (-T * apart).masked_fill(torch.eye(x.shape[1], dtype=torch.bool), -torch.inf)


def energy(x: Tensor) -> Tensor:
    J = x.shape[1]
    return torch.logsumexp(closeness(x).flatten(1), 1) - math.log(J * (J - 1))  # (B,)


def update(x: Tensor) -> Tensor:
    w = torch.softmax(closeness(x).flatten(1), 1).reshape(len(x), x.shape[1], -1)  # (B, J, J)
    return 4 * STEP_SIZE * T * (w.sum(-1, keepdim=True) * x - w @ x)  # (B, J, D)


mine = energy_layer(
    update=update,
    energy=energy,
    state=("J", D),
    memory=None,
    energy_per="sequence",
    coupled=True,
    permutable=True,
    step_size=STEP_SIZE,
    shortest=2,
)

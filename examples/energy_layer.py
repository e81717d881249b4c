"""An energy layer without CEM's weights: a Hopfield layer whose patterns are the memory.

`cemverify check examples.energy_layer:mine` tests what needs no canonical weights: whether the update is a gradient,
and that of the stated energy, whether the energy falls, and whether tokens and batch rows are kept apart. Every token
sees every pattern, so the layer is declared not to be causal.
"""

import torch
from torch import Tensor

from cemverify import energy_layer

STEP_SIZE = 0.5


def energy(x: Tensor, memory: Tensor) -> Tensor:
    return -torch.logsumexp(x @ memory.mT, dim=-1) + (x * x).sum(-1) / 2  # (B, J)


def update(x: Tensor, memory: Tensor) -> Tensor:
    return STEP_SIZE * (torch.softmax(x @ memory.mT, dim=-1) @ memory - x)  # (B, J, D)


mine = energy_layer(update=update, energy=energy, dim=3, step_size=STEP_SIZE, causal=False)

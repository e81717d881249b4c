"""Any energy layer, through the second door: a Hopfield layer whose patterns are the memory.

`cemverify check examples.energy_layer:mine` asks what needs no canonical weights: is the update a gradient, that of
the stated energy, does the energy fall, are tokens and batch rows kept apart? Every token sees every pattern, and
so causality is declared absent.
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

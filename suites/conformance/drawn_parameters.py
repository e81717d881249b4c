"""Layers whose parameters are other numbers in every process that imports this module, which tests only name."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from cemverify import energy_layer

module = torch.nn.Linear(3, 3, bias=False).double()
with torch.no_grad():
    module.weight.copy_(torch.randn(3, 3, generator=torch.Generator().manual_seed(os.getpid())))


def _update(x: Tensor) -> Tensor:
    return -2.0 * x @ module.weight.mT @ module.weight


def _energy(x: Tensor) -> Tensor:
    return ((x @ module.weight.mT) ** 2).sum(-1) / 2


undeclared = energy_layer(update=_update, energy=_energy, state=("J", 3), memory=None)
drawn = energy_layer(update=_update, energy=_energy, state=("J", 3), memory=None, parameters=module)


_SEEDED = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
seeded = energy_layer(
    update=lambda x: -x @ _SEEDED.mT @ _SEEDED,
    energy=lambda x: ((x @ _SEEDED.mT) ** 2).sum(-1) / 2,
    state=("J", 3),
    memory=None,
)

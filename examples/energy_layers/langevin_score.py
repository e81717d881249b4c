"""A Langevin step along a learned score (Song & Ermon, arXiv 1907.05600): the control that descends no energy.

    x' = x + eta s(x) + sqrt(2 eta) z,    z ~ N(0, 1)

A network s that is trained as a score is not a gradient of anything, so no energy is stated and the field is declared
not conservative. Take `conservative=False` away and the check says so: the Jacobian is not symmetric.

`cemverify check examples.energy_layers.langevin_score:mine`
"""

import math

import torch
from torch import Tensor

from cemverify import energy_layer

D, M, STEP_SIZE = 4, 8, 0.1

generator = torch.Generator().manual_seed(7)
W_1, W_2 = (torch.randn(M, D, generator=generator, dtype=torch.float64) / 2 for _ in range(2))


def score(x: Tensor) -> Tensor:
    return torch.tanh(x @ W_1.to(x).T) @ W_2.to(x) - x  # (B, J, D)


def update(x: Tensor, noise: Tensor) -> Tensor:
    return STEP_SIZE * score(x) + math.sqrt(2 * STEP_SIZE) * noise


mine = energy_layer(
    update=update,
    state=("J", D),
    memory=None,
    step="free",
    conservative=False,
    noise=math.sqrt(2 * STEP_SIZE),
    permutable=True,
)

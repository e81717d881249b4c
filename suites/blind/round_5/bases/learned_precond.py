"""A softplus network's energy with a learned preconditioner, diagonal plus low rank."""

import torch
from torch.nn.functional import softplus

from cemverify import energy_layer

D, HIDDEN, RANK = 6, 5, 2
STEP = 0.4

_draw = torch.Generator().manual_seed(15)
weights = {
    "raw": torch.randn(D, generator=_draw, dtype=torch.float64).requires_grad_(),
    "low": (0.5 * torch.randn(D, RANK, generator=_draw, dtype=torch.float64)).requires_grad_(),
    "V": (0.7 * torch.randn(HIDDEN, D, generator=_draw, dtype=torch.float64)).requires_grad_(),
    "out": (0.7 * torch.randn(HIDDEN, generator=_draw, dtype=torch.float64)).requires_grad_(),
}


def precondition(gradient):  # (B, J, D) -> (B, J, D)
    scaled = softplus(weights["raw"]) * gradient
    return scaled + (gradient @ weights["low"]) @ weights["low"].mT


def energy(g, h):  # (B, J, D), (B, J, D) -> (B, J)
    z = (g + h) @ weights["V"].mT
    return softplus(z, threshold=40) @ weights["out"].square() + 0.5 * g.square().sum(-1)


def update(x, h):  # (B, J, D), (B, J, D) -> (B, J, D)
    active = torch.sigmoid((x + h) @ weights["V"].mT) * weights["out"] ** 2
    slope = active @ weights["V"] + x
    step = softplus(weights["raw"]) * slope + (slope @ weights["low"]) @ weights["low"].mT
    return -STEP * step


mine = energy_layer(
    update=update,
    energy=energy,
    dim=D,
    step_size=STEP,
    preconditioner=precondition,
    parameters=weights,
    not_offered=("dtype:float32", "dtype:bfloat16"),
)

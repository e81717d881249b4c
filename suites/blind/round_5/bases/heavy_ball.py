"""Three steps of heavy-ball descent with shrinking sizes on a robust regression energy, tokens apart."""

import torch

from cemverify import energy_layer

D, ROWS = 5, 6
SIZES = (0.3, 0.2, 0.1)
MOMENTUM = 0.5

_draw = torch.Generator().manual_seed(14)
V = 0.6 * torch.randn(ROWS, D, generator=_draw, dtype=torch.float64)
TARGET = 0.6 * torch.randn(ROWS, 3, generator=_draw, dtype=torch.float64)


def energy(g, h):  # (B, J, D), (B, J, 3) -> (B, J)
    z = g @ V.to(g).mT - h @ TARGET.to(g).mT
    return torch.logaddexp(z, -z).sum(-1) + 0.1 * g.square().sum(-1)


def gradient(x, h):
    error = x @ V.to(x).mT - h @ TARGET.to(x).mT
    return torch.tanh(error) @ V.to(x) + 0.2 * x


def update(x, h):  # (B, J, D), (B, J, 3) -> (B, J, D)
    moved = torch.zeros_like(x)
    velocity = torch.zeros_like(x)
    for size in SIZES:
        velocity = MOMENTUM * velocity - size * gradient(x + moved, h)
        moved = moved + velocity
    return moved


mine = energy_layer(
    update=update,
    energy=energy,
    state=("J", D),
    memory=("J", 3),
    steps=3,
    step_size=SIZES,
    momentum=MOMENTUM,
    permutable=True,
)

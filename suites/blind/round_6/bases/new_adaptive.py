"""A quartic energy with tied units, and a step size that shrinks where the state is long: one size for each token."""

import torch

from cemverify import energy_layer

D, UNITS = 4, 6
RATE = 0.6

_draw = torch.Generator().manual_seed(32)
V = 0.6 * torch.randn(UNITS, D, generator=_draw, dtype=torch.float64)


def size(x, m):  # (B, J, D), (B, J, UNITS) -> (B, J)
    return RATE / (1 + x.square().sum(-1) + m.square().mean(-1))


def energy(g, m):  # (B, J, D), (B, J, UNITS) -> (B, J)
    z = g @ V.to(g).mT
    return 0.25 * g.square().sum(-1).square() - 0.5 * z.square().sum(-1) - (m * z).sum(-1)


def update(x, m):  # (B, J, D), (B, J, UNITS) -> (B, J, D)
    squares = x.square().sum(-1, keepdim=True)
    units = x @ V.to(x).mT + m
    down = units @ V.to(x) - squares * x
    eta = RATE / (1 + squares + m.square().mean(-1, keepdim=True))
    return eta * down


mine = energy_layer(
    update=update,
    energy=energy,
    state=("J", D),
    memory=("J", UNITS),
    step_size=size,
    permutable=True,
)

"""Slots that compete for inputs: a step on the likelihood of a mixture whose centres are the state, with weighted inputs."""

import torch

from cemverify import energy_layer

D = 4
TAU = 0.8
RIDGE = 0.3
STEP = 0.1

_draw = torch.Generator().manual_seed(34)
SCALES = 0.5 + torch.rand(D, generator=_draw, dtype=torch.float64)


def energy(g, m):  # slots (B, S, D), inputs (B, N, D), amounts (B, N) -> (B,)
    squares = (m.inputs[:, :, None] - g[:, None]).square().sum(-1)  # (B, N, S)
    fit = torch.logsumexp(-squares / (2 * TAU), -1)
    return -TAU * (m.amounts.square() * fit).sum(1) + 0.5 * RIDGE * g.square().sum((1, 2))


def update(x, m):  # -> the next slots
    away = m.inputs[:, :, None] - x[:, None]  # (B, N, S, D)
    share = torch.softmax(-away.square().sum(-1) / (2 * TAU), -1)
    mass = share * m.amounts.square()[..., None]
    down = (mass[..., None] * away).sum(1) - RIDGE * x
    return x + STEP * SCALES.to(x) * down


mine = energy_layer(
    update=update,
    energy=energy,
    state=("S", D),
    memory={"inputs": ("N", D), "amounts": ("N",)},
    energy_per="sequence",
    step_size=STEP,
    preconditioner=SCALES,
    returns="next state",
)

"""Attention over a memory of any length, with an output matrix that is only claimed to be positive definite."""

import torch

from cemverify import SOME_POSITIVE_DEFINITE, energy_layer

D = 5
TAU = 1.2
STEP = 0.5

_draw = torch.Generator().manual_seed(16)
FACTOR = 0.6 * torch.randn(D, D, generator=_draw, dtype=torch.float64)
OUTPUT = FACTOR @ FACTOR.mT + 0.3 * torch.eye(D, dtype=torch.float64)


def energy(g, m):  # (B, J, D), (B, M, D) -> (B, J)
    scores = g @ m.mT / TAU
    return -TAU * torch.logsumexp(scores, -1) + 0.25 * g.square().sum(-1)


def update(x, m):  # (B, J, D), (B, M, D) -> (B, J, D)
    a = torch.softmax(x @ m.mT / TAU, -1)
    down = a @ m - 0.5 * x
    return STEP * (down @ OUTPUT.to(x))


mine = energy_layer(
    update=update,
    energy=energy,
    state=("J", D),
    memory=("M", D),
    step_size=STEP,
    preconditioner=SOME_POSITIVE_DEFINITE,
)

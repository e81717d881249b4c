"""Modern Hopfield retrieval (Ramsauer et al. 2020): the state moves to the softmax average of the stored patterns."""

import torch

from cemverify import energy_layer

BETA = 0.7


def energy(g, m):  # (B, J, 6), (B, M, 6) -> (B, J)
    scores = BETA * (g @ m.mT)  # (B, J, M)
    return -torch.logsumexp(scores, -1) / BETA + 0.5 * (g * g).sum(-1)


def update(x, m):  # (B, J, 6), (B, M, 6) -> (B, J, 6)
    weights = torch.softmax(x @ m.mT * BETA, -1)
    return weights @ m - x


mine = energy_layer(
    update=update, energy=energy, state=("J", 6), memory=("M", 6), monotone=True, permutable=True
)

"""Group sparse coding: a gradient step on a least-squares fit, then block soft thresholds for groups of three."""

import torch

from cemverify import energy_layer

ATOMS, SIGNALS, GROUPS = 6, 4, 2
LAMBDA = 0.3

_draw = torch.Generator().manual_seed(31)
A = 0.5 * torch.randn(SIGNALS, ATOMS, generator=_draw, dtype=torch.float64)
STEP = 0.9 / float(torch.linalg.matrix_norm(A, 2) ** 2)


def energy(g, y):  # (B, J, ATOMS), (B, J, SIGNALS) -> (B, J)
    return 0.5 * (g @ A.to(g).mT - y).square().sum(-1)


def penalty(g):  # (B, J, ATOMS) -> (B, J)
    return LAMBDA * torch.linalg.vector_norm(g.unflatten(-1, (GROUPS, -1)), dim=-1).sum(-1)


def prox(v, eta):  # (B, J, ATOMS) -> (B, J, ATOMS)
    blocks = v.unflatten(-1, (GROUPS, -1))
    norms = torch.linalg.vector_norm(blocks, dim=-1, keepdim=True)
    kept = torch.relu(1 - eta * LAMBDA / norms.clamp_min(torch.finfo(v.dtype).tiny))
    return (kept * blocks).flatten(-2)


def update(x, y):  # (B, J, ATOMS), (B, J, SIGNALS) -> (B, J, ATOMS)
    error = x @ A.to(x).mT - y
    return prox(x - STEP * (error @ A.to(x)), STEP) - x


mine = energy_layer(
    update=update,
    energy=energy,
    state=("J", ATOMS),
    memory=("J", SIGNALS),
    step="proximal",
    proximal=prox,
    penalty=penalty,
    step_size=STEP,
    permutable=True,
)

"""Unadjusted Langevin dynamics on a sparse posterior: a gradient step and noise of variance two step sizes."""

import torch

from cemverify import energy_layer

D = 5
STEP = 0.05
SIGMA = (2 * STEP) ** 0.5
SHARPNESS = 3.0

_draw = torch.Generator().manual_seed(19)
MIX = 0.5 * torch.randn(D, D, generator=_draw, dtype=torch.float64)


def energy(g, y):  # (B, J, D), (B, J, D) -> (B, J)
    sources = SHARPNESS * (g @ MIX.to(g).mT)
    prior = torch.logaddexp(sources, -sources).sum(-1) / SHARPNESS
    return prior + 0.5 * (g - y).square().sum(-1)


def update(x, y, noise=None):  # (B, J, D), (B, J, D), (B, J, D) -> (B, J, D)
    signs = torch.tanh(SHARPNESS * (x @ MIX.to(x).mT))
    drift = -STEP * (signs @ MIX.to(x) + x - y)
    return drift if noise is None else drift + SIGMA * noise


mine = energy_layer(
    update=update, energy=energy, dim=D, step_size=STEP, noise=SIGMA, permutable=True
)

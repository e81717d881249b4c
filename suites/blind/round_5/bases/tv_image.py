"""Denoising by a step down the smoothed, isotropic total variation of an image, with a pull to the noisy image."""

import torch
from torch.nn.functional import pad

from cemverify import energy_layer

EPS = 0.3
PULL = 0.7
STEP = 0.05


def energy(g, y):  # (B, H, W), (B, H, W) -> (B,)
    down = pad(g[:, 1:] - g[:, :-1], (0, 0, 0, 1))
    right = pad(g[:, :, 1:] - g[:, :, :-1], (0, 1))
    variation = (down.square() + right.square() + EPS**2).sqrt()
    return variation.sum((1, 2)) + 0.5 * PULL * (g - y).square().sum((1, 2))


def update(x, y):  # (B, H, W), (B, H, W) -> (B, H, W)
    dy = pad(x[:, 1:] - x[:, :-1], (0, 0, 0, 1))
    dx = pad(x[:, :, 1:] - x[:, :, :-1], (0, 1))
    length = (dy.square() + dx.square() + EPS**2).sqrt()
    p, q = dy / length, dx / length
    divergence = p - pad(p[:, :-1], (0, 0, 1, 0)) + q - pad(q[:, :, :-1], (1, 0))
    return STEP * (divergence - PULL * (x - y))


mine = energy_layer(
    update=update,
    energy=energy,
    state=("H", "W"),
    memory=("H", "W"),
    energy_per="sequence",
    step_size=STEP,
)

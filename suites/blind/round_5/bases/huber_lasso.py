"""Sparse coding by gradient descent on a smoothed LASSO, with the step 1/L and the bound L declared."""

import torch

from cemverify import energy_layer

ATOMS, SIGNALS = 8, 6
LAMBDA = 0.4
DELTA = 0.2

_draw = torch.Generator().manual_seed(9)
A = torch.randn(SIGNALS, ATOMS, generator=_draw, dtype=torch.float64) / 3
LIPSCHITZ = float(torch.linalg.matrix_norm(A, 2) ** 2) + LAMBDA / DELTA
STEP = 1 / LIPSCHITZ


def energy(g, y):  # (B, ATOMS), (B, SIGNALS) -> (B,)
    residual = g @ A.to(g).mT - y
    sparsity = ((g * g + DELTA**2).sqrt() - DELTA).sum(-1)
    return 0.5 * residual.square().sum(-1) + LAMBDA * sparsity


def update(x, y):  # (B, ATOMS), (B, SIGNALS) -> (B, ATOMS)
    error = x @ A.to(x).mT - y
    shrink = LAMBDA * x / (x * x + DELTA**2).sqrt()
    return -STEP * (error @ A.to(x) + shrink)


mine = energy_layer(
    update=update,
    energy=energy,
    state=(ATOMS,),
    memory=(SIGNALS,),
    energy_per="sequence",
    step_size=STEP,
    smoothness=LIPSCHITZ,
    monotone=True,
)

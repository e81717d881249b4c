"""The layer of examples/energy_layers/hopfield_jax.py in torch: what JAX costs a check, apart from the layer."""

import torch
from torch import Tensor

from cemverify import energy_layer

D, BETA, STEP_SIZE = 4, 1.0, 0.5


def energy(x: Tensor, patterns: Tensor) -> Tensor:
    """-lse(beta, X x) + x.x / 2 of each token: (B, J, D), (B, M, D) -> (B, J)."""
    return -torch.logsumexp(BETA * x @ patterns.mT, -1) / BETA + (x * x).sum(-1) / 2


def update(x: Tensor, patterns: Tensor) -> Tensor:
    """eta (X^T softmax(beta X x) - x): (B, J, D)."""
    return STEP_SIZE * (torch.softmax(BETA * x @ patterns.mT, -1) @ patterns - x)


hopfield = energy_layer(
    update=update, energy=energy, state=("J", D), memory=("M", D), step_size=STEP_SIZE, monotone=True, permutable=True
)

"""Attention of Causal Energy Minimization (arXiv 2605.07588, Eq. 1 and 5), as any energy layer.

    E(x_i | h) = -tau sum_k log sum_{j <= i} exp(beta_kj . x_i / tau),    beta_kj = W_Q,k^T W_K,k h_j
    x' = x - dE/dx

`cemverify check examples.energy_layers.cem_attention:mine`
"""

import math

import torch
from torch import Tensor

from cemverify import energy_layer

K, R, D = 2, 3, 4
TAU = math.sqrt(R)

generator = torch.Generator().manual_seed(0)
W_Q, W_K = (torch.randn(K, R, D, generator=generator, dtype=torch.float64) for _ in range(2))


def keys(h: Tensor) -> Tensor:
    return torch.einsum("krd,kre,bje->bkjd", W_Q.to(h), W_K.to(h), h)  # beta: (B, K, J, D)


def scores(x: Tensor, beta: Tensor) -> Tensor:
    J = x.shape[-2]
    later = torch.ones(J, J, dtype=torch.bool, device=x.device).triu(1)
    return (torch.einsum("bid,bkjd->bkij", x, beta) / TAU).masked_fill(later, -torch.inf)


def energy(x: Tensor, h: Tensor) -> Tensor:
    return -TAU * torch.logsumexp(scores(x, keys(h)), -1).sum(1)  # (B, J)


def update(x: Tensor, h: Tensor) -> Tensor:
    beta = keys(h)
    return torch.einsum("bkij,bkjd->bid", torch.softmax(scores(x, beta), -1), beta)  # (B, J, D)


# the energy is concave in x, so that the whole step lowers it, however long it is
mine = energy_layer(update=update, energy=energy, dim=D, monotone=True, parameters={"W_Q": W_Q, "W_K": W_K})

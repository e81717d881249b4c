"""Hopfield retrieval with several heads, each with its own temperature and its own projections.

    E(x) = -sum_k (1/beta_k) log sum_m exp(beta_k W_Q,k x . W_K,k y_m) + x.x / 2
    x' = x + eta (sum_k W_Q,k^T sum_m softmax_m(beta_k W_Q,k x . W_K,k y_m) W_K,k y_m - x)

`cemverify check examples.energy_layers.hopfield_heads:mine`
"""

import torch
from torch import Tensor

from cemverify import energy_layer

K, R, D = 2, 2, 4
STEP_SIZE = 0.25

generator = torch.Generator().manual_seed(1)
W_Q, W_K = (torch.randn(K, R, D, generator=generator, dtype=torch.float64) / 2 for _ in range(2))
BETA = torch.tensor([0.5, 2.0], dtype=torch.float64)  # of each head


def project(W: Tensor, tokens: Tensor) -> Tensor:
    return torch.einsum("krd,bjd->bkjr", W.to(tokens), tokens)


def energy(x: Tensor, y: Tensor) -> Tensor:
    beta = BETA.to(x)[:, None]  # (K, 1)
    logits = beta[..., None] * project(W_Q, x) @ project(W_K, y).mT  # (B, K, J, M)
    return -(torch.logsumexp(logits, -1) / beta).sum(1) + (x * x).sum(-1) / 2  # (B, J)


def update(x: Tensor, y: Tensor) -> Tensor:
    keys = project(W_K, y)  # (B, K, M, R)
    weights = torch.softmax(BETA.to(x)[:, None, None] * project(W_Q, x) @ keys.mT, -1)
    retrieved = torch.einsum("krd,bkjr->bjd", W_Q.to(x), weights @ keys)
    return STEP_SIZE * (retrieved - x)  # (B, J, D)


mine = energy_layer(
    update=update,
    energy=energy,
    state=("J", D),
    memory=("M", D),
    step_size=STEP_SIZE,
    monotone=True,
    permutable=True,
    parameters={"W_Q": W_Q, "W_K": W_K, "beta": BETA},
)

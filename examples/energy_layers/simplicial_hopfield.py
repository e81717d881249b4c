"""A simplicial Hopfield network (Burns & Fukai, arXiv 2305.05179): pairs and triples of neurons store patterns.

    s_m(x) = sum over simplices sigma of the product over i in sigma of xi_mi x_i
    E(x) = -(1/beta) log sum_m exp(beta s_m(x)) + x.x / 2 + sum x^4 / 4

`cemverify check examples.energy_layers.simplicial_hopfield:mine`
"""

import torch
from torch import Tensor

from cemverify import energy_layer

N, BETA, STEP_SIZE = 5, 0.5, 0.05
PAIRS = ((0, 1), (1, 3), (2, 4))
TRIPLES = ((0, 2, 3), (1, 2, 4))


def similarity(x: Tensor, patterns: Tensor) -> Tensor:
    z = x[:, None] * patterns  # xi_mi x_i: (B, M, N)
    single = z.sum(-1)
    pairs = sum(z[..., i] * z[..., j] for i, j in PAIRS)
    triples = sum(z[..., i] * z[..., j] * z[..., k] for i, j, k in TRIPLES)
    return single + pairs + triples  # (B, M)


def similarity_gradient(x: Tensor, patterns: Tensor) -> Tensor:
    z = x[:, None] * patterns
    slopes = [torch.ones_like(z[..., 0]) for _ in range(N)]  # ds/dz_i
    for i, j in PAIRS:
        slopes[i], slopes[j] = slopes[i] + z[..., j], slopes[j] + z[..., i]
    for i, j, k in TRIPLES:
        slopes[i] = slopes[i] + z[..., j] * z[..., k]
        slopes[j] = slopes[j] + z[..., i] * z[..., k]
        slopes[k] = slopes[k] + z[..., i] * z[..., j]
    return torch.stack(slopes, -1) * patterns  # (B, M, N)


def energy(x: Tensor, patterns: Tensor) -> Tensor:
    lse = torch.logsumexp(BETA * similarity(x, patterns), -1) / BETA
    return -lse + (x**2 / 2 + x**4 / 4).sum(-1)  # (B,)


def update(x: Tensor, patterns: Tensor) -> Tensor:
    weights = torch.softmax(BETA * similarity(x, patterns), -1)  # (B, M)
    retrieved = (weights[..., None] * similarity_gradient(x, patterns)).sum(1)
    return STEP_SIZE * (retrieved - x - x**3)  # (B, N)


mine = energy_layer(
    update=update, energy=energy, state=(N,), memory=("M", N), energy_per="sequence", step_size=STEP_SIZE
)

"""Hopfield retrieval in several projected heads, two steps, with a learned step size."""

import torch
from torch import nn
from torch.nn.functional import softplus

from cemverify import energy_layer

D, K, R = 6, 3, 4
BETAS = (0.5, 0.5, 0.5)


class Retrieval(nn.Module):
    def __init__(self):
        super().__init__()
        draw = torch.Generator().manual_seed(2)
        self.queries = nn.Parameter(0.4 * torch.randn(K, R, D, generator=draw, dtype=torch.float64))
        self.keys = nn.Parameter(0.4 * torch.randn(K, R, D, generator=draw, dtype=torch.float64))
        self.raw = nn.Parameter(torch.tensor(-0.5, dtype=torch.float64))
        self.pull = nn.Parameter(torch.tensor(0.8, dtype=torch.float64))

    def energy(self, g, m):  # (B, J, D), (B, M, D) -> (B, J)
        q = torch.einsum("krd,bjd->bkjr", self.queries, g)
        k = torch.einsum("krd,bmd->bkmr", self.keys, m)
        beta = torch.tensor(BETAS, dtype=g.dtype)[:, None]
        found = torch.logsumexp(beta[..., None] * (q @ k.mT), -1) / beta  # (B, K, J)
        return -found.sum(1) + 0.5 * self.pull * g.square().sum(-1)

    def forward(self, x, m):  # the state after two steps
        beta = torch.tensor(BETAS, dtype=x.dtype)[:, None, None]
        keys = torch.einsum("krd,bmd->bkmr", self.keys, m)
        for _ in range(2):
            queries = torch.einsum("krd,bjd->bkjr", self.queries, x)
            a = torch.softmax(queries @ keys.mT * beta, -1)
            move = torch.einsum("krd,bkjr->bjd", self.queries, a @ keys) - self.pull * x
            x = x + softplus(self.raw) * move
        return x


module = Retrieval().eval()

mine = energy_layer(
    update=module,
    energy=module.energy,
    state=("J", D),
    memory=("M", D),
    steps=2,
    step_size=lambda: softplus(module.raw),
    returns="next state",
    parameters=module,
    not_offered=("dtype:float32", "dtype:bfloat16"),
)

"""A step in the manner of NRGPT: a GPT block whose recurrence descends an energy of the tokens as they now are.

    g = RMSNorm(x)
    E_i(g) = -(1/beta) sum_h log sum_{j <= i} exp(beta g_i . J_h g_j) - sum_mu relu(xi_mu . g_i)^2 / 2
    x_i' = x_i - P dE_i/dg_i    with the other tokens held fixed

Tokens read each other's present state, there is no separate memory. The projection P is learned; all that is said of
it is that it is symmetric and positive definite.

`cemverify check examples.energy_layers.nrgpt_step:mine`
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify import PRESENT_STATE, SOME_POSITIVE_DEFINITE, energy_layer

H, D, M = 2, 4, 6
BETA, EPS = 0.5, 1e-6

generator = torch.Generator().manual_seed(3)
COUPLING = torch.randn(H, D, D, generator=generator, dtype=torch.float64) / 2
XI = torch.randn(M, D, generator=generator, dtype=torch.float64) / 2
ROOT = torch.randn(D, D, generator=generator, dtype=torch.float64) / 2
P = ROOT @ ROOT.T + 0.3 * torch.eye(D, dtype=torch.float64)


def norm(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS)


def scores(g: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """beta g_i . J_h g_j, (B, H, J, J), and the keys J_h g_j, (B, H, J, D)."""
    keys = torch.einsum("hde,bje->bhjd", COUPLING.to(others), others)
    later = torch.ones(g.shape[-2], g.shape[-2], dtype=torch.bool).triu(1)
    return (BETA * g[..., None, :, :] @ keys.mT).masked_fill(later, -torch.inf), keys


def energy(g: Tensor, others: Tensor) -> Tensor:
    attention = -torch.logsumexp(scores(g, others)[0], -1).sum(1) / BETA
    return attention - (F.relu(g @ XI.to(g).T) ** 2).sum(-1) / 2  # (B, J)


def update(x: Tensor) -> Tensor:
    g = norm(x)
    logits, keys = scores(g, g)
    attention = (torch.softmax(logits, -1) @ keys).sum(1)
    return (attention + F.relu(g @ XI.to(g).T) @ XI.to(g)) @ P.to(x)  # (B, J, D)


mine = energy_layer(
    update=update,
    energy=energy,
    state=("J", D),
    memory=PRESENT_STATE,
    state_map=norm,
    preconditioner=SOME_POSITIVE_DEFINITE,
)

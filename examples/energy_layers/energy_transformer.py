"""A block of the Energy Transformer (Hoover et al., arXiv 2302.07253, Eq. 1 to 6).

The state is normalised, g = LayerNorm(x), and the update is the gradient in g of one energy for all tokens:

    E_att(g) = -(1/beta) sum_h sum_C log sum_{B != C} exp(beta K_hB . Q_hC),    K = W_K g, Q = W_Q g
    E_hop(g) = -1/2 sum_B sum_mu relu(xi_mu . g_B)^2
    x' = x - alpha d(E_att + E_hop)/dg

The norm is the gradient of L(x) = D gamma sqrt(var(x) + eps) + delta . x. A token pulls at the others as a query and
is pulled by them as a key, so the update has two attention terms.

`cemverify check examples.energy_layers.energy_transformer:mine`
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify import energy_layer

H, R, D, M = 2, 3, 4, 5
BETA, ALPHA, EPS, GAMMA = 1 / math.sqrt(3), 0.1, 1e-5, 1.3

generator = torch.Generator().manual_seed(2)
W_Q, W_K = (torch.randn(H, R, D, generator=generator, dtype=torch.float64) / 2 for _ in range(2))
XI = torch.randn(M, D, generator=generator, dtype=torch.float64)
DELTA = torch.randn(D, generator=generator, dtype=torch.float64)


def norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return GAMMA * centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + EPS) + DELTA.to(x)


def lagrangian(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return D * GAMMA * torch.sqrt((centred**2).mean(-1) + EPS) + x @ DELTA.to(x)  # (B, J)


def logits(g: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """beta K_B . Q_C of every pair, (B, H, C, B), and which pairs there are: another token, neither masked."""
    J = g.shape[-2]
    q, k = (torch.einsum("hrd,bjd->bhjr", W.to(g), g) for W in (W_Q, W_K))
    kept = torch.ones(g.shape[:-1], dtype=torch.bool, device=g.device) if mask is None else mask
    pairs = ~torch.eye(J, dtype=torch.bool, device=g.device) & (kept[..., :, None] & kept[..., None, :])  # (B, C, B)
    return BETA * q @ k.mT, pairs[:, None].expand(-1, H, -1, -1)


def energy(g: Tensor, mask: Tensor | None = None) -> Tensor:
    scores, pairs = logits(g, mask)
    some = pairs.any(-1)  # a token without another attends to nothing
    lse = torch.logsumexp(scores.masked_fill(~pairs & some[..., None], -torch.inf), -1)
    attention = -(lse * some).sum((-1, -2)) / BETA  # (B,)
    hidden = F.relu(g @ XI.to(g).T) ** 2  # (B, J, M)
    kept = 1 if mask is None else mask[..., None]
    return attention - (hidden * kept).sum((-1, -2)) / 2  # (B,)


def update(x: Tensor, mask: Tensor | None = None) -> Tensor:
    g = norm(x)
    scores, pairs = logits(g, mask)
    some = pairs.any(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(~pairs & some, -torch.inf), -1) * some  # over keys B
    q, k = (torch.einsum("hrd,bjd->bhjr", W.to(g), g) for W in (W_Q, W_K))
    as_query = torch.einsum("hrd,bhcr->bcd", W_Q.to(g), weights @ k)
    as_key = torch.einsum("hrd,bhcr->bcd", W_K.to(g), weights.mT @ q)
    return ALPHA * (as_query + as_key + F.relu(g @ XI.to(g).T) @ XI.to(g))  # (B, J, D)


mine = energy_layer(
    update=update,
    energy=energy,
    state=("J", D),
    memory=None,
    energy_per="sequence",
    coupled=True,
    permutable=True,
    masked=True,
    state_map=norm,
    lagrangian=lagrangian,
    step_size=ALPHA,
    parameters={"W_Q": W_Q, "W_K": W_K, "xi": XI},
)

"""One step of an Energy Transformer: attention and a Hopfield network, whole gradient at the layer norm of the state."""

import torch

from cemverify import energy_layer

D, K, R, M = 8, 2, 3, 5
BETA = 0.6
STEP = 0.1
GAMMA = 1.3
EPS = 1e-3

_draw = torch.Generator().manual_seed(3)
W_Q = 0.5 * torch.randn(K, R, D, generator=_draw, dtype=torch.float64)
W_K = 0.5 * torch.randn(K, R, D, generator=_draw, dtype=torch.float64)
PATTERNS = 0.4 * torch.randn(M, D, generator=_draw, dtype=torch.float64)
DELTA = 0.2 * torch.randn(D, generator=_draw, dtype=torch.float64)


def norm(x):  # (B, J, D) -> (B, J, D)
    centred = x - x.mean(-1, keepdim=True)
    return GAMMA * centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt() + DELTA.to(x)


def lagrangian(x):  # (B, J, D) -> (B, J), its gradient is the norm
    spread = x - x.mean(-1, keepdim=True)
    return D * GAMMA * (spread.square().mean(-1) + EPS).sqrt() + x @ DELTA.to(x)


def energy(g):  # (B, J, D) -> (B,)
    q = torch.einsum("krd,bjd->bkjr", W_Q.to(g), g)
    k = torch.einsum("krd,bjd->bkjr", W_K.to(g), g)
    own = torch.eye(g.shape[1], dtype=torch.bool, device=g.device)
    scores = (BETA * (q @ k.mT)).masked_fill(own, -torch.inf)  # (B, K, J, J), without a token's own key
    attention = -torch.logsumexp(scores, -1).sum((1, 2)) / BETA
    hopfield = -0.5 * torch.relu(g @ PATTERNS.to(g).mT).square().sum((1, 2))
    return attention + hopfield


def update(x):  # (B, J, D) -> (B, J, D)
    u = norm(x)
    queries = torch.einsum("krd,bjd->bkjr", W_Q.to(u), u)
    keys = torch.einsum("krd,bjd->bkjr", W_K.to(u), u)
    self_key = torch.eye(u.shape[1], dtype=torch.bool, device=u.device)
    a = torch.softmax((queries @ keys.mT * BETA).masked_fill(self_key, -torch.inf), -1)
    through_queries = torch.einsum("krd,bkjr->bjd", W_Q.to(u), a @ keys)
    through_keys = torch.einsum("krd,bkjr->bjd", W_K.to(u), a.mT @ queries)
    recalled = torch.relu(u @ PATTERNS.to(u).mT) @ PATTERNS.to(u)
    return STEP * (through_queries + through_keys + recalled)


mine = energy_layer(
    update=update,
    energy=energy,
    state=("J", D),
    memory=None,
    energy_per="sequence",
    coupled=True,
    permutable=True,
    shortest=2,
    state_map=norm,
    lagrangian=lagrangian,
    step_size=STEP,
)

"""Linear attention that forgets: positive features, a running sum with decay, in chunks of eight tokens."""

import torch
from torch.nn.functional import softplus

from cemverify import energy_layer

D, R = 5, 6
CHUNK = 8
GAMMA = 0.9
FLOOR = 0.5
STEP = 0.4

_draw = torch.Generator().manual_seed(52)
W_Q = 0.6 * torch.randn(R, D, generator=_draw, dtype=torch.float64)
W_K = 0.6 * torch.randn(R, D, generator=_draw, dtype=torch.float64)


def decay(tokens, like):  # (J, J), GAMMA^(i - j), and zero for later tokens
    at = torch.arange(tokens, device=like.device)
    back = (at[:, None] - at).to(torch.float64)
    return torch.where(back >= 0, GAMMA ** back.clamp_min(0), 0.0).to(like.dtype)


def energy(g, h):  # (B, J, D), (B, J, D) -> (B, J)
    queries = softplus(g @ W_Q.to(g).mT, threshold=40)
    keys = softplus(h @ W_K.to(g).mT, threshold=40)
    kernel = (queries @ keys.mT) * decay(g.shape[1], g)
    return -torch.log(FLOOR + kernel.sum(-1))


def running(keys):  # (B, J, R) -> (B, J, R)
    inside = decay(min(CHUNK, keys.shape[1]), keys)
    carry = GAMMA ** torch.arange(1, CHUNK + 1, dtype=torch.float64, device=keys.device)
    carry = carry.to(keys.dtype)[:, None]
    state, sums = torch.zeros_like(keys[:, :1]), []
    for chunk in keys.split(CHUNK, 1):
        n = chunk.shape[1]
        here = inside[:n, :n] @ chunk + carry[:n] * state
        state = here[:, -1:]
        sums.append(here)
    return torch.cat(sums, 1)


def update(x, h):  # (B, J, D), (B, J, D) -> (B, J, D)
    wide = torch.promote_types(x.dtype, torch.float32)
    w_q, w_k = W_Q.to(x.device, wide), W_K.to(x.device, wide)
    z = x.to(wide) @ w_q.mT
    sums = running(softplus(h.to(wide) @ w_k.mT, threshold=40))
    mass = FLOOR + (softplus(z, threshold=40) * sums).sum(-1, keepdim=True)
    return (STEP * ((torch.sigmoid(z) * sums / mass) @ w_q)).to(x.dtype)


mine = energy_layer(update=update, energy=energy, dim=D, step_size=STEP, parameters={"W_Q": W_Q, "W_K": W_K})

"""CEM attention with rotary positions: the rotated keys are the values, and what comes out is rotated back."""

import torch

from cemverify import energy_layer

D, K, R = 6, 2, 4
TAU = 1.5
STEP = 0.25
BASE = 100.0

_draw = torch.Generator().manual_seed(5)
W_Q = 0.6 * torch.randn(K, R, D, generator=_draw, dtype=torch.float64)
W_K = 0.6 * torch.randn(K, R, D, generator=_draw, dtype=torch.float64)


def angles(tokens, like):  # cosines and sines, (J, R)
    frequencies = BASE ** (-torch.arange(R // 2, dtype=torch.float64, device=like.device) / (R // 2))
    turns = torch.arange(tokens, dtype=torch.float64, device=like.device)[:, None] * frequencies
    turns = torch.cat((turns, turns), -1)
    return turns.cos().to(like.dtype), turns.sin().to(like.dtype)


def rotate(z, cos, sin):  # (B, K, J, R)
    first, second = z.chunk(2, -1)
    return z * cos + torch.cat((-second, first), -1) * sin


def energy(g, h):  # (B, J, D), (B, J, D) -> (B, J)
    c, s = angles(g.shape[1], g)
    q = rotate(torch.einsum("krd,bjd->bkjr", W_Q.to(g), g), c, s)
    k = rotate(torch.einsum("krd,bjd->bkjr", W_K.to(g), h), c, s)
    later = torch.ones(g.shape[1], g.shape[1], dtype=torch.bool, device=g.device).triu(1)
    scores = (q @ k.mT / TAU).masked_fill(later, -torch.inf)
    return -TAU * torch.logsumexp(scores, -1).sum(1)


def update(x, h):  # (B, J, D), (B, J, D) -> (B, J, D)
    cos, sin = angles(x.shape[1], x)
    queries = rotate(torch.einsum("krd,bjd->bkjr", W_Q.to(x), x), cos, sin)
    keys = rotate(torch.einsum("krd,bjd->bkjr", W_K.to(x), h), cos, sin)
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
    a = torch.softmax((queries @ keys.mT / TAU).masked_fill(future, -torch.inf), -1)
    back = rotate(a @ keys, cos, -sin)
    return STEP * torch.einsum("krd,bkjr->bjd", W_Q.to(x), back)


mine = energy_layer(update=update, energy=energy, dim=D, step_size=STEP)

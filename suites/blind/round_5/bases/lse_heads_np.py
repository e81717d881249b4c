"""Heads that compete: one log-sum-exp over all heads and all memories, two steps, in NumPy."""

import numpy as np

from cemverify import energy_layer

D, K = 5, 3
TAU = 0.9
SIZES = (0.4, 0.3)

_draw = np.random.default_rng(25)
HEADS = 0.6 * _draw.standard_normal((K, D, D))
LEVEL = 0.5 * _draw.standard_normal(K)  # a bias for each head


def logits(x, m):  # (B, J, K, M)
    seen = np.einsum("kde,bme->bkmd", HEADS.astype(x.dtype), m)
    return np.einsum("bjd,bkmd->bjkm", x, seen) / TAU + LEVEL.astype(x.dtype)[:, None]


def energy(g, m):  # (B, J, D), (B, M, D) -> (B, J)
    z = logits(g, m)
    top = z.max((-2, -1), keepdims=True)
    lse = np.log(np.exp(z - top).sum((-2, -1))) + top[..., 0, 0]
    return -TAU * lse + 0.5 * (g * g).sum(-1)


def update(x, m):  # (B, J, D), (B, M, D) -> (B, J, D)
    keys = np.einsum("kde,bme->bkmd", HEADS.astype(x.dtype), m)
    now = x
    for size in SIZES:
        z = logits(now, m)
        p = np.exp(z - z.max((-2, -1), keepdims=True))
        p = p / p.sum((-2, -1), keepdims=True)
        now = now + size * (np.einsum("bjkm,bkmd->bjd", p, keys) - now)
    return now - x


mine = energy_layer(
    update=update,
    energy=energy,
    state=("J", D),
    memory=("M", D),
    steps=2,
    step_size=SIZES,
    permutable=True,
    arrays="numpy",
)

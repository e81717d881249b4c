"""Causal attention in a sliding window of four tokens, in NumPy, with a bias for a token's own key."""

import numpy as np

from cemverify import energy_layer

D, R = 6, 4
WINDOW = 4
TAU = 1.6
OWN = 0.5
STEP = 0.5

_draw = np.random.default_rng(24)
W_Q = 0.6 * _draw.standard_normal((R, D))
W_K = 0.6 * _draw.standard_normal((R, D))


def window(tokens, dtype):  # (J, J)
    back = np.arange(tokens)[:, None] - np.arange(tokens)
    return np.where((back >= 0) & (back < WINDOW), OWN * (back == 0), -np.inf).astype(dtype)


def energy(g, h):  # (B, J, D), (B, J, D) -> (B, J)
    q, k = g @ W_Q.T.astype(g.dtype), h @ W_K.T.astype(g.dtype)
    s = q @ k.swapaxes(1, 2) / TAU + window(g.shape[1], g.dtype)
    top = s.max(-1)
    return -TAU * (top + np.log(np.exp(s - top[..., None]).sum(-1)))


def update(x, h):  # (B, J, D), (B, J, D) -> (B, J, D)
    queries, keys = x @ W_Q.T.astype(x.dtype), h @ W_K.T.astype(x.dtype)
    scores = queries @ keys.swapaxes(1, 2) / TAU + window(x.shape[1], x.dtype)
    a = np.exp(scores - scores.max(-1, keepdims=True))
    a = a / a.sum(-1, keepdims=True)
    return STEP * (a @ keys @ W_Q.astype(x.dtype))


mine = energy_layer(update=update, energy=energy, dim=D, step_size=STEP, arrays="numpy")

"""Attention to all tokens of the memory, near ones first, with padding, in NumPy; the state is drawn back to zero."""

import numpy as np

from cemverify import energy_layer

D = 5
TAU = 1.3
SLOPE = 0.2
RIDGE = 0.3
STEP = 0.4

_draw = np.random.default_rng(35)
A = 0.5 * _draw.standard_normal((D, D))


def scores(x, keys, mask):  # (B, J, J)
    at = np.arange(x.shape[1])
    near = -SLOPE * np.abs(at[:, None] - at)
    s = x @ keys.swapaxes(1, 2) / TAU + near.astype(x.dtype)
    if mask is None:
        return s
    seen = mask[:, None, :] | ~mask[:, :, None]  # a padded query, whose row is dropped, sees all
    return np.where(seen, s, np.array(-np.inf, x.dtype))


def energy(g, h, mask=None):  # (B, J, D), (B, J, D), (B, J) -> (B, J)
    s = scores(g, h @ A.T.astype(g.dtype), mask)
    top = s.max(-1)
    return -TAU * (top + np.log(np.exp(s - top[..., None]).sum(-1))) + 0.5 * RIDGE * (g * g).sum(-1)


def update(x, h, mask=None):  # (B, J, D), (B, J, D), (B, J) -> (B, J, D)
    keys = h @ A.T.astype(x.dtype)
    s = scores(x, keys, mask)
    a = np.exp(s - s.max(-1, keepdims=True))
    a = a / a.sum(-1, keepdims=True)
    return STEP * (a @ keys - RIDGE * x)


mine = energy_layer(
    update=update,
    energy=energy,
    dim=D,
    masked=True,
    causal=False,
    step_size=STEP,
    arrays="numpy",
)

"""Neurons on a sphere in NumPy: the energy is a quadratic form and a field, at the normalised state."""

import numpy as np

from cemverify import energy_layer

D = 5
EPS = 1e-2
STEP = 0.3

_draw = np.random.default_rng(22)
_raw = 0.5 * _draw.standard_normal((D, D))
FORM = (_raw + _raw.T) / 2


def direction(x):  # (B, J, D) -> (B, J, D)
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + EPS)


def length(x):  # (B, J, D) -> (B, J), its gradient is the direction
    return np.sqrt(np.square(x).sum(-1) + EPS)


def energy(g, m):  # (B, J, D), (B, J, D) -> (B, J)
    form = FORM.astype(g.dtype)
    return -0.5 * ((g @ form) * g).sum(-1) - (m * g).sum(-1)


def update(x, m):  # (B, J, D), (B, J, D) -> (B, J, D)
    u = direction(x)
    return (STEP * (u @ FORM.astype(x.dtype) + m)).astype(x.dtype)


mine = energy_layer(
    update=update,
    energy=energy,
    dim=D,
    state_map=direction,
    lagrangian=length,
    step_size=STEP,
    permutable=True,
    arrays="numpy",
)

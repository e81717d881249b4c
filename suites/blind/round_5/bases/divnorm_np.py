"""Divisive normalisation in NumPy: each channel is divided by pools of channels, as the gradient of a log of pools."""

import numpy as np

from cemverify import energy_layer

D, POOLS = 6, 4
FLOOR = 0.5
PULL = 0.8
STEP = 0.25

_draw = np.random.default_rng(23)
POOL = np.square(_draw.standard_normal((POOLS, D)))


def energy(g, m):  # (B, J, D), (B, J, D) -> (B, J)
    pools = FLOOR + np.square(g) @ POOL.T.astype(g.dtype)
    return 0.5 * np.log(pools).sum(-1) + 0.5 * PULL * np.square(g - m).sum(-1)


def update(x, m):  # (B, J, D), (B, J, D) -> (B, J, D)
    activity = FLOOR + (x * x) @ POOL.T.astype(x.dtype)
    divided = x * ((1 / activity) @ POOL.astype(x.dtype))
    return -STEP * (divided + PULL * (x - m))


mine = energy_layer(
    update=update, energy=energy, dim=D, step_size=STEP, permutable=True, arrays="numpy"
)

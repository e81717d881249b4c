"""Linear-quadratic smoothing of a trajectory, in JAX: each state follows the one before it through the dynamics."""

import jax.numpy as jnp
import numpy as np

from cemverify import energy_layer

D = 4
TRACK = 0.4
STEP = 0.1

_draw = np.random.default_rng(28)
DYNAMICS = 0.5 * _draw.standard_normal((D, D))
COST = 0.5 + _draw.random(D)


def energy(g, reference):  # (B, J, D), (B, J, D) -> (), a mean over the batch
    follow = g[:, 1:] - g[:, :-1] @ jnp.asarray(DYNAMICS, g.dtype).T
    dynamics = 0.5 * (jnp.asarray(COST, g.dtype) * jnp.square(follow)).sum((1, 2))
    tracking = 0.5 * TRACK * jnp.square(g - reference).sum((1, 2))
    return (dynamics + tracking).mean()


def update(x, reference):  # (B, J, D), (B, J, D) -> (B, J, D)
    matrix = jnp.asarray(DYNAMICS, x.dtype)
    miss = jnp.asarray(COST, x.dtype) * (x[:, 1:] - x[:, :-1] @ matrix.T)  # (B, J - 1, D)
    none = jnp.zeros_like(x[:, :1])
    forward = jnp.concatenate((none, miss), 1)
    backward = jnp.concatenate((miss @ matrix, none), 1)
    return -STEP * (forward - backward + TRACK * (x - reference))


mine = energy_layer(
    update=update,
    energy=energy,
    dim=D,
    energy_per="batch",
    mean_over=("batch",),
    coupled=True,
    step_size=STEP,
    arrays="jax",
)

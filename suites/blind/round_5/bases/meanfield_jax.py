"""Mean-field inference in a Boltzmann machine, in JAX: a leaky step in the logits, energy at the means."""

import jax
import jax.numpy as jnp
import numpy as np

from cemverify import energy_layer

UNITS = 7
STEP = 0.3

_draw = np.random.default_rng(26)
_raw = 0.5 * _draw.standard_normal((UNITS, UNITS))
COUPLING = (_raw + _raw.T) / 2
np.fill_diagonal(COUPLING, 0.0)


def means(x):  # (B, UNITS) -> (B, UNITS)
    return jax.nn.sigmoid(x)


def lagrangian(x):  # (B, UNITS) -> (B,)
    return jax.nn.softplus(x).sum(-1)


def energy(g, b):  # (B, UNITS), (B, UNITS) -> (B,)
    pairs = 0.5 * ((g @ jnp.asarray(COUPLING, g.dtype)) * g).sum(-1)
    return -pairs - (b * g).sum(-1)


def update(x, b):  # (B, UNITS), (B, UNITS) -> (B, UNITS)
    field = jax.nn.sigmoid(x) @ jnp.asarray(COUPLING, x.dtype) + b
    return STEP * (field - x)


mine = energy_layer(
    update=update,
    energy=energy,
    state=(UNITS,),
    memory=(UNITS,),
    energy_per="sequence",
    state_map=means,
    lagrangian=lagrangian,
    leak=True,
    step_size=STEP,
    arrays="jax",
)

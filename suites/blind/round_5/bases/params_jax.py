"""A gated MLP in JAX whose parameters are declared as memory: E = -(W h) . log cosh(V x) + c |x|^2 / 2."""

import jax.numpy as jnp

from cemverify import energy_layer

STEP = 0.3
CURVE = 0.5


def energy(g, m):  # g (B, J, 4), m.h (B, J, 4), m.V and m.W (B, 6, 4), m.b (B, 6) -> (B, J)
    z = g @ m.V.swapaxes(1, 2) + m.b[:, None]
    gate = m.h @ m.W.swapaxes(1, 2)
    return -(gate * (jnp.logaddexp(z, -z) - jnp.log(2.0))).sum(-1) + 0.5 * CURVE * jnp.square(g).sum(-1)


def update(x, m):  # -> (B, J, 4)
    opened = jnp.tanh(x @ m.V.swapaxes(1, 2) + m.b[:, None])
    hidden = opened * (m.h @ m.W.swapaxes(1, 2))
    return STEP * (hidden @ m.V - CURVE * x)


mine = energy_layer(
    update=update,
    energy=energy,
    state=("J", 4),
    memory={"h": ("J", 4), "V": (6, 4), "W": (6, 4), "b": (6,)},
    step_size=STEP,
    permutable=True,
    arrays="jax",
)

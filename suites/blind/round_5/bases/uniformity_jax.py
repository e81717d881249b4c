"""Uniformity and alignment in JAX: tokens repel by the log of a mean kernel, and are held near their memory."""

import jax
import jax.numpy as jnp

from cemverify import energy_layer

T = 0.5  # of the Gaussian potential
ALIGN = 0.3
STEP = 0.2


def energy(g, m):  # (B, J, 3), (B, J, 3) -> (B,)
    squares = jnp.square(g[:, :, None] - g[:, None]).sum(-1)
    others = 1 - jnp.eye(g.shape[1], dtype=g.dtype)
    repel = jax.nn.logsumexp(-T * squares, axis=(1, 2), b=others)
    return repel + 0.5 * ALIGN * jnp.square(g - m).sum((1, 2))


def update(x, m):  # (B, J, 3), (B, J, 3) -> (B, J, 3)
    tokens = x.shape[1]
    gaps = x[:, :, None] - x[:, None]  # (B, J, J, 3)
    z = jnp.where(jnp.eye(tokens, dtype=bool), -jnp.inf, -T * jnp.square(gaps).sum(-1))
    share = jax.nn.softmax(z.reshape(-1, tokens * tokens), -1).reshape(-1, tokens, tokens)
    push = 4 * T * (share[..., None] * gaps).sum(2)
    return STEP * (push - ALIGN * (x - m))


mine = energy_layer(
    update=update,
    energy=energy,
    dim=3,
    energy_per="sequence",
    coupled=True,
    permutable=True,
    shortest=2,
    step_size=STEP,
    arrays="jax",
)

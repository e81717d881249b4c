"""A mixture of quadratic experts in JAX: E = -tau log sum_e exp((a_e . x - |C_e (x - m)|^2 / 2) / tau)."""

import jax
import jax.numpy as jnp
import numpy as np

from cemverify import energy_layer

D, EXPERTS = 4, 3
TAU = 1.1
STEP = 0.2

_draw = np.random.default_rng(30)
ROUTE = 0.5 * _draw.standard_normal((EXPERTS, D))
EXPERT = 0.5 * _draw.standard_normal((EXPERTS, 2, D))


def energy(g, m):  # (B, J, D), (B, J, D) -> (B, J)
    seen = jnp.einsum("erd,bjd->bjer", jnp.asarray(EXPERT, g.dtype), g - m)
    score = g @ jnp.asarray(ROUTE, g.dtype).T - 0.5 * jnp.square(seen).sum(-1)
    return -TAU * jax.nn.logsumexp(score / TAU, -1)


def update(x, m):  # (B, J, D), (B, J, D) -> (B, J, D)
    experts, route = jnp.asarray(EXPERT, x.dtype), jnp.asarray(ROUTE, x.dtype)
    inside = jnp.einsum("erd,bjd->bjer", experts, x - m)
    share = jax.nn.softmax((x @ route.T - 0.5 * jnp.square(inside).sum(-1)) / TAU, -1)
    pulls = route - jnp.einsum("erd,bjer->bjed", experts, inside)  # (B, J, EXPERTS, D)
    return STEP * (share[..., None] * pulls).sum(2)


mine = energy_layer(
    update=update, energy=energy, dim=D, step_size=STEP, permutable=True, arrays="jax"
)

"""A Hopfield layer in JAX: the update is written out, and checked against jax.grad of the energy.

    E(x) = -lse(beta, X x) + x.x / 2,    x' = x + eta (X^T softmax(beta X x) - x)

`cemverify check examples.energy_layers.hopfield_jax:mine` (with the extra `jax`)
"""

from typing import Any

import jax

from cemverify import energy_layer

D, BETA, STEP_SIZE = 4, 1.0, 0.5


def energy(x: Any, patterns: Any) -> Any:
    lse = jax.scipy.special.logsumexp(BETA * x @ patterns.mT, -1) / BETA
    return -lse + (x * x).sum(-1) / 2  # (B, J)


def update(x: Any, patterns: Any) -> Any:
    return STEP_SIZE * (jax.nn.softmax(BETA * x @ patterns.mT, -1) @ patterns - x)  # (B, J, D)


mine = energy_layer(
    update=update,
    energy=energy,
    state=("J", D),
    memory=("M", D),
    step_size=STEP_SIZE,
    monotone=True,
    permutable=True,
    arrays="jax",
)

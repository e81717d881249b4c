"""Two energies in JAX and nothing else: the layers are their gradients. `cemverify check examples.energies_jax:mine`

CEM in its shortest form: write down a scalar, and let `jax.grad` make the layer. The energies of all tokens are
summed. Every token still gets its own gradient, because the memory h is not differentiated. Needs JAX: pip install
'cemverify[jax]'.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from cemverify import implementation


@partial(jax.jit, static_argnames="config")
def attention_energy(x: Any, h: Any, weights: Any, config: Any) -> Any:
    """-tau sum_k log sum_{j <= i} exp(x_i . A_k h_j / tau + b_ij): (B, J)."""
    scores = jnp.einsum("bir,krs,bjs->bkij", x, A(weights, config), h)
    i, j = jnp.indices(scores.shape[2:])
    logits = scores / config.tau
    if config.position == "self-cross":
        own, others = (weights[name][:, None, None] for name in ("to_self", "to_others"))
        logits += jnp.where(i == j, own, others)
    past = jnp.where(j <= i, logits, -jnp.inf)
    return -config.tau * jax.nn.logsumexp(past, axis=-1).sum(1)


def A(weights: Any, config: Any) -> Any:
    """W_Q^T W_K + diag(d): (K, D, D)."""
    product = jnp.einsum("krd,kre->kde", weights["W_Q"], weights["W_K"])
    if config.diagonal == "none":
        return product
    d = weights["diagonal"]
    return product + jnp.eye(d.shape[-1], dtype=d.dtype) * jnp.broadcast_to(d, product.shape[:2])[:, None]


@partial(jax.jit, static_argnames="config")
def mlp_energy(x: Any, h: Any, weights: Any, config: Any) -> Any:
    """-(W h) . phi(V x): (B, J)."""
    z, gate = x @ weights["V"].T, h @ weights["W"].T  # (B, J, M)
    return -(gate * PRIMITIVES[config.activation](z)).sum(-1)


def log_cosh(z: Any) -> Any:
    """log cosh z, and so tanh z, to the last digit near 0 too, where logaddexp(z, -z) - log 2 has lost most."""
    a = jnp.abs(z)
    near = jnp.log1p(jnp.sinh(jnp.minimum(a, 1.0)) ** 2) / 2
    far = a + jnp.log1p(jnp.exp(-2 * a)) - jnp.log(2.0)
    return jnp.where(a < 1, near, far)


PRIMITIVES = {  # phi, whose derivative is the activation
    "relu": lambda z: jnp.where(z > 0, z * z / 2, 0),
    "relu2": lambda z: jnp.where(z > 0, z**3 / 3, 0),
    "sigmoid": lambda z: z / 2 + log_cosh(z / 2),
    "tanh": lambda z: log_cosh(z),
    "identity": lambda z: z * z / 2,
}


@partial(jax.jit, static_argnames=("energy", "config"))
def descend(energy: Any, x: Any, h: Any, weights: Any, config: Any) -> Any:
    """x - eta grad energy, T times: (B, J, D)."""
    slope = jax.grad(lambda x: energy(x, h, weights, config).sum())
    for _ in range(config.steps):
        x = x - config.step_size * slope(x)
    return x


mine = implementation(
    attention=partial(descend, attention_energy),
    mlp=partial(descend, mlp_energy),
    attention_energy=attention_energy,
    mlp_energy=mlp_energy,
    arrays="jax",
    not_offered=(
        *("preconditioner", "norm", "validation", "position:alibi", "position:rotary"),
        # their primitives need a dilogarithm or an error function's integral
        *("activation:silu", "activation:gelu", "activation:gelu-tanh", "activation:softplus"),
    ),
)

"""The delta rule in JAX, by `lax.scan`.

`cemverify check examples.online_layers.delta_jax:mine`
"""

from typing import Any

import jax
import jax.numpy as jnp

from cemverify import online_layer

K, V = 4, 3


def one_step(S: Any, token: Any) -> tuple[Any, Any]:  # S (B, K, V)
    q, k, v, beta = token
    off = jnp.einsum("bk,bkv->bv", k, S) - v
    S = S - jnp.einsum("b,bk,bv->bkv", beta, k, off)
    return S, jnp.einsum("bk,bkv->bv", q, S)


def delta_rule(S: Any, m: Any) -> tuple[Any, Any]:
    S = jnp.zeros((len(m.k), K, V), m.k.dtype) if S is None else S
    S, outputs = jax.lax.scan(one_step, S, tuple(jnp.moveaxis(a, 1, 0) for a in m))
    return jnp.moveaxis(outputs, 0, 1), S


mine = online_layer(
    update=delta_rule,
    loss=lambda S, m: ((jnp.einsum("bk,bkv->bv", m.k, S) - m.v) ** 2).sum(-1) / 2,
    step_size=lambda _, m: m.beta,
    read=lambda S, m: jnp.einsum("bk,bkv->bv", m.q, S),
    state=(K, V),
    tokens={"q": ("J", K), "k": ("J", K), "v": ("J", V), "beta": ("J",)},
    output=("J", V),
    domain={"k": "sphere", "beta": (0, 1)},
    arrays="jax",
)

"""CEM layers in JAX: the update is written out, heads are mapped, steps are scanned."""

import functools
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)
EXACT = jax.lax.Precision.HIGHEST
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_NODES = ((_NODES + 1) / 2 + np.arange(8)[:, None]).ravel() / 8
_WEIGHTS = np.tile(_WEIGHTS / 16, 8)


def dot(spec, *arrays):
    return jnp.einsum(spec, *arrays, precision=EXACT)


# --- activations -------------------------------------------------------------------------------------------


def softplus(z):
    return jnp.logaddexp(z, jnp.zeros((), z.dtype))


SIGMA = {
    "silu": jax.nn.silu,
    "gelu": lambda z: jax.nn.gelu(z, approximate=False),
    "gelu-tanh": lambda z: jax.nn.gelu(z, approximate=True),
    "relu": jax.nn.relu,
    "relu2": lambda z: jax.nn.relu(z) ** 2,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "softplus": softplus,
    "identity": lambda z: z,
}


def log_cosh(z):
    near = jnp.abs(z) < 1
    small = jnp.where(near, z, 0)
    a = jnp.abs(z)
    return jnp.where(near, jnp.log1p(2 * jnp.sinh(small / 2) ** 2), a + jnp.log1p(jnp.exp(-2 * a)) - math.log(2))


def phi_by_parts(z, sigma, reach):
    w = jnp.clip(z, -reach, reach)
    nodes, weights = jnp.asarray(_NODES, z.dtype), jnp.asarray(_WEIGHTS, z.dtype)
    inner = (sigma(-jnp.abs(w)[..., None] * nodes) * weights).sum(-1)
    value, fixed = jax.lax.stop_gradient((jax.nn.relu(z) ** 2 / 2 + w * inner, z))
    return value + sigma(fixed) * (z - fixed)  # the derivative is sigma itself


PHI = {
    "silu": lambda z: phi_by_parts(z, jax.nn.silu, 45.0),
    "gelu": lambda z: phi_by_parts(z, SIGMA["gelu"], 12.0),
    "gelu-tanh": lambda z: phi_by_parts(z, SIGMA["gelu-tanh"], 12.0),
    "relu": lambda z: jax.nn.relu(z) ** 2 / 2,
    "relu2": lambda z: jax.nn.relu(z) ** 3 / 3,
    "sigmoid": lambda z: z / 2 + log_cosh(z / 2),
    "tanh": log_cosh,
    "softplus": lambda z: phi_by_parts(z, softplus, 45.0),
    "identity": lambda z: z**2 / 2,
}


# --- validation --------------------------------------------------------------------------------------------


def expected_shapes(config, attention):
    D, p = config.dim, config.preconditioner
    shapes, lead = {}, ()
    if attention:
        K, R = config.heads, config.R
        shapes.update(W_Q=(K, R, D), W_K=(K, R, D))
        if config.diagonal != "none":
            shapes["diagonal"] = (K, D) if config.diagonal == "per-head" else (D,)
        if config.position == "self-cross":
            shapes.update(to_self=(K,), to_others=(K,))
        lead = (K,) if p.per_head else ()
    else:
        shapes.update(V=(config.hidden, D), W=(config.hidden, D))
    if p.kind != "identity":
        shapes["P_d"] = (*lead, D)
    if p.kind in ("low-rank", "low-rank-printed"):
        shapes["P_U"] = shapes["P_V"] = (*lead, D, p.rank)
    if config.norm != "none":
        shapes["gain"] = (1,) if config.norm == "scalar" else (D,)
    return shapes


def is_not_finite(array):
    return not isinstance(array, jax.core.Tracer) and not bool(jnp.isfinite(array).all())


def check(x, h, weights, config, attention):
    for name, array in [("x", x), ("h", h), *weights.items()]:
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(f"{name} has dtype {array.dtype}")
    if x.ndim != 3 or x.shape != h.shape or x.shape[2] != config.dim:
        raise ValueError(f"x and h must be (B, J, {config.dim}), not {x.shape} and {h.shape}")
    for name, shape in expected_shapes(config, attention).items():
        if name not in weights or weights[name].shape != shape:
            raise ValueError(f"{name} must have the shape {shape}")
    if any(is_not_finite(array) for array in (x, h, *weights.values())):
        raise ValueError("there is NaN or infinity")
    if config.steps < 1:
        raise ValueError("no steps")
    if config.step_size < 0:
        raise ValueError("negative step size")
    if attention and config.temperature <= 0:
        raise ValueError("the temperature must be positive")


# --- parts -------------------------------------------------------------------------------------------------


def widen(array):
    return array.astype(jnp.float32) if array.dtype == jnp.bfloat16 else array


def widen_all(weights):
    return {name: widen(array) for name, array in weights.items()}


def normalise(x, weights, config):
    if config.norm == "none":
        return x
    return weights["gain"] * x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + config.norm_eps)


def slopes(K):
    n = 1 << (K.bit_length() - 1)
    first = [2.0 ** (-8 * (k + 1) / n) for k in range(n)]
    return first + [2.0 ** (-4 * (2 * k + 1) / n) for k in range(K - n)]


def turn(a, positions, sign):
    """(..., J, R)"""
    half = a.shape[-1] // 2
    theta = positions[:, None] * (10000.0 ** (-np.arange(half) / half))
    cos, sin = jnp.asarray(np.cos(theta), a.dtype), jnp.asarray(sign * np.sin(theta), a.dtype)
    one, two = a[..., :half], a[..., half:]
    return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1)


def per_head(weights, config):
    """What belongs to single heads, each with a leading axis of K, for vmap."""
    K, D = config.heads, config.dim
    one = {"Q": weights["W_Q"], "K": weights["W_K"], "m": jnp.asarray(slopes(K), weights["W_Q"].dtype)}
    if config.diagonal != "none":
        one["d"] = jnp.broadcast_to(weights["diagonal"], (K, D))
    if config.position == "self-cross":
        one["self"], one["others"] = weights["to_self"], weights["to_others"]
    return one


def head_scores(head, u, keys, h, config):
    """(B, J, J) of one head."""
    J = h.shape[1]
    positions = np.arange(J)
    q = dot("rd,bjd->bjr", head["Q"], u)
    if config.position == "rotary":
        q = turn(q, positions, 1.0)
    s = dot("bir,bjr->bij", q, keys)
    if config.diagonal != "none":
        s = s + dot("bid,d,bjd->bij", u, head["d"], h)
    s = s / config.temperature
    if config.position == "alibi":
        s = s - head["m"] * jnp.asarray(np.abs(positions[:, None] - positions), s.dtype)
    elif config.position == "self-cross":
        s = s + jnp.where(np.eye(J, dtype=bool), head["self"], head["others"])
    return jnp.where(np.tril(np.ones((J, J), bool)), s, -jnp.inf)


def head_keys(head, h, config):
    keys = dot("rd,bjd->bjr", head["K"], h)
    return turn(keys, np.arange(h.shape[1]), 1.0) if config.position == "rotary" else keys


def head_direction(head, u, keys, h, config):
    a = jax.nn.softmax(head_scores(head, u, keys, h, config), -1)
    out = dot("bij,bjr->bir", a, keys)
    if config.position == "rotary":
        out = turn(out, np.arange(h.shape[1]), -1.0)
    F = dot("rd,bir->bid", head["Q"], out)
    if config.diagonal != "none":
        F = F + head["d"] * dot("bij,bjd->bid", a, h)
    return F


def low_rank(G, U, V):
    return dot("bid,dr,er->bie", G, V, U) + dot("bid,dr,er->bie", G, U, V)


def apply(G, P, kind):
    S = softplus(P["P_d"])
    if kind == "diagonal":
        return S * G
    U, V = P["P_U"], P["P_V"]
    if kind == "low-rank-printed":
        return S * G + low_rank(G, U, V)
    squares = (U * U).sum() * (V * V).sum()
    size = 2 * jnp.sqrt(jnp.where(squares > 0, squares, 1.0))
    c = jnp.where((squares > 0) & (size > 0.99), 0.99 / size, 1.0)
    root = jnp.sqrt(S)
    inner = root * G
    return root * (inner + c * low_rank(inner, U, V))


def precondition(G, weights, config):
    """(K, B, J, D) -> (B, J, D)"""
    p = config.preconditioner
    if config.norm == "folded":
        G = G * weights["gain"]
    if p.kind == "identity":
        return G.sum(0)
    P = {name: weights[name] for name in ("P_d", "P_U", "P_V") if name in weights}
    if p.per_head:
        return jax.vmap(lambda g, one: apply(g, one, p.kind))(G, P).sum(0)
    return apply(G.sum(0), P, p.kind)


def descend(x, direction, weights, config):
    def step(x, _):
        G = direction(normalise(x, weights, config))
        return (x + config.step_size * precondition(G, weights, config)).astype(x.dtype), None

    return jax.lax.scan(step, x, None, length=config.steps)[0]


def attend(x, h, weights, config):
    heads = per_head(weights, config)
    keys = jax.vmap(lambda head: head_keys(head, h, config))(heads)

    def direction(u):
        return jax.vmap(lambda head, k: head_direction(head, u, k, h, config))(heads, keys)

    return descend(x, direction, weights, config)


def feed(x, h, weights, config):
    gate = dot("md,bjd->bjm", weights["W"], h)

    def direction(u):
        hidden = gate * SIGMA[config.activation](dot("md,bjd->bjm", weights["V"], u))
        return dot("md,bjm->bjd", weights["V"], hidden)[None]

    return descend(x, direction, weights, config)


# --- compiled once per configuration -----------------------------------------------------------------------


def frozen(config):
    """What the computation reads of a configuration, as a hashable key."""
    p = config.preconditioner
    fields = {
        name: getattr(config, name)
        for name in (
            "dim", "heads", "R", "hidden", "steps", "step_size", "temperature", "diagonal", "position",
            "activation", "norm", "norm_eps",
        )
        if hasattr(config, name)
    }  # fmt: skip
    return (*sorted(fields.items()), ("preconditioner", (p.kind, p.rank, p.per_head)))


def thawed(key):
    fields = dict(key)
    kind, rank, per_head = fields.pop("preconditioner")
    return SimpleNamespace(preconditioner=SimpleNamespace(kind=kind, rank=rank, per_head=per_head), **fields)


@functools.partial(jax.jit, static_argnums=3)
def attention_compiled(x, h, weights, key):
    return attend(widen(x), widen(h), widen_all(weights), thawed(key)).astype(x.dtype)


@functools.partial(jax.jit, static_argnums=3)
def mlp_compiled(x, h, weights, key):
    return feed(widen(x), widen(h), widen_all(weights), thawed(key)).astype(x.dtype)


@functools.partial(jax.jit, static_argnums=(2, 3))
def block_compiled(h, weights, first_key, second_key):
    one, two = thawed(first_key), thawed(second_key)
    weights = widen_all(weights)
    first = {name[10:]: a for name, a in weights.items() if name.startswith("attention.")}
    second = {name[4:]: a for name, a in weights.items() if name.startswith("mlp.")}
    x = widen(h)
    m = attend(x, normalise(x, first, one), first, one)
    return feed(m, normalise(m, second, two), second, two).astype(h.dtype)


@functools.partial(jax.jit, static_argnums=3)
def attention_energy_compiled(x, h, weights, key):
    config, given = thawed(key), x.dtype
    x, h, weights = widen(x), widen(h), widen_all(weights)
    heads = per_head(weights, config)

    def one(head):
        return jax.nn.logsumexp(head_scores(head, x, head_keys(head, h, config), h, config), -1)

    return (-config.temperature * jax.vmap(one)(heads).sum(0)).astype(given)


@functools.partial(jax.jit, static_argnums=3)
def mlp_energy_compiled(x, h, weights, key):
    config, given = thawed(key), x.dtype
    x, h, weights = widen(x), widen(h), widen_all(weights)
    gate = dot("md,bjd->bjm", weights["W"], h)
    return (-(gate * PHI[config.activation](dot("md,bjd->bjm", weights["V"], x))).sum(-1)).astype(given)


# --- the functions -----------------------------------------------------------------------------------------


def attention(x, h, weights, config):
    check(x, h, weights, config, attention=True)
    return attention_compiled(x, h, dict(weights), frozen(config))


def mlp(x, h, weights, config):
    check(x, h, weights, config, attention=False)
    return mlp_compiled(x, h, dict(weights), frozen(config))


def block(h, weights, config):
    return block_compiled(h, dict(weights), frozen(config.attention), frozen(config.mlp))


def attention_energy(x, h, weights, config):
    return attention_energy_compiled(x, h, dict(weights), frozen(config))


def mlp_energy(x, h, weights, config):
    return mlp_energy_compiled(x, h, dict(weights), frozen(config))

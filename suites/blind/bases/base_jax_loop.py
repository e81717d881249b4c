
# --- fori_loop over steps, row by row; hand-written derivatives of the read, the norm and the gate; a cache -----


@jax.custom_vjp
def read(s, values):
    """softmax(s) @ values"""
    return jax.nn.softmax(s, -1) @ values


def read_forward(s, values):
    a = jax.nn.softmax(s, -1)
    return jnp.matmul(a, values, precision=EXACT), (a, values)


def read_backward(kept, g):
    a, values = kept
    da = jnp.matmul(g, jnp.swapaxes(values, -1, -2), precision=EXACT)
    ds = a * (da - (a * da).sum(-1, keepdims=True))
    return ds, jnp.matmul(jnp.swapaxes(a, -1, -2), g, precision=EXACT)


read.defvjp(read_forward, read_backward)


@jax.custom_vjp
def unit(x, eps):
    return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + eps)


def unit_forward(x, eps):
    inverse = 1 / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + eps)
    return x * inverse, (x * inverse, inverse, eps)


def unit_backward(kept, g):
    n, inverse, eps = kept
    return (g - n * jnp.mean(g * n, -1, keepdims=True)) * inverse, jnp.zeros_like(eps)


unit.defvjp(unit_forward, unit_backward)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def sigma(z, name):
    return SIGMA[name](z)


@sigma.defjvp
def sigma_jvp(name, primals, tangents):
    (z,), (dz,) = primals, tangents
    return SIGMA[name](z), SLOPES[name](z) * dz


def slope_gelu_tanh(z):
    a, b = math.sqrt(2 / math.pi), 0.044715
    t = jnp.tanh(a * (z + b * z**3))
    return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * a * (1 + 3 * b * z * z)


SLOPES = {
    "silu": lambda z: jax.nn.sigmoid(z) * (1 + z * jax.nn.sigmoid(-z)),
    "gelu": lambda z: 0.5 * jax.scipy.special.erfc(-z / math.sqrt(2)) + z * jnp.exp(-z * z / 2) / math.sqrt(2 * math.pi),
    "gelu-tanh": slope_gelu_tanh,
    "relu": lambda z: (z > 0).astype(z.dtype),
    "relu2": lambda z: 2 * jax.nn.relu(z),
    "sigmoid": lambda z: jax.nn.sigmoid(z) * jax.nn.sigmoid(-z),
    "tanh": lambda z: 1 - jnp.tanh(z) ** 2,
    "softplus": jax.nn.sigmoid,
    "identity": jnp.ones_like,
}


def normalise(x, weights, config):
    if config.norm == "none":
        return x
    return weights["gain"] * unit(x, jnp.asarray(config.norm_eps, x.dtype))


def spun(a, places, sign):
    """(K, n, R) at the given places, which may be traced."""
    half = a.shape[-1] // 2
    wide = jnp.float64 if a.dtype == jnp.float64 else jnp.float32
    theta = places.astype(wide)[:, None] * jnp.asarray(10000.0 ** (-np.arange(half) / half), wide)
    cos, sin = jnp.cos(theta).astype(a.dtype), sign * jnp.sin(theta).astype(a.dtype)
    return jnp.concatenate([a[..., :half] * cos - a[..., half:] * sin, a[..., half:] * cos + a[..., :half] * sin], -1)


def keys_of(h, places, weights, config):
    """(K, n, R)"""
    k = dot("krd,jd->kjr", weights["W_K"], h)
    return spun(k, places, 1.0) if config.position == "rotary" else k


def row_direction(u, keys, h, rows, columns, weights, config):
    """(K, n, D) of one row of the batch; keys and h may have room that is not used yet."""
    q = dot("krd,id->kir", weights["W_Q"], u)
    if config.position == "rotary":
        q = spun(q, rows, 1.0)
    values = keys
    if config.diagonal != "none":
        d = jnp.broadcast_to(weights["diagonal"], (config.heads, config.dim))
        q = jnp.concatenate([q, d[:, None] * u], -1)
        values = jnp.concatenate([keys, jnp.broadcast_to(h, (config.heads, *h.shape))], -1)
    s = dot("kir,kjr->kij", q, values) / config.temperature
    gap = rows[:, None] - columns
    if config.position == "alibi":
        s = s - jnp.asarray(slopes(config.heads), s.dtype)[:, None, None] * gap.astype(s.dtype)
    elif config.position == "self-cross":
        s = s + jnp.where(gap == 0, weights["to_self"][:, None, None], weights["to_others"][:, None, None])
    out = read(jnp.where(gap < 0, -jnp.inf, s), values)
    heads = out[..., : config.R]
    if config.position == "rotary":
        heads = spun(heads, rows, -1.0)
    G = dot("krd,kir->kid", weights["W_Q"], heads)
    return G + d[:, None] * out[..., config.R :] if config.diagonal != "none" else G


def descend(x, direction, weights, config):
    def step(_, x):
        G = direction(normalise(x, weights, config))
        return (x + config.step_size * precondition(G, weights, config)).astype(x.dtype)

    return jax.lax.fori_loop(0, config.steps, step, x)


def attend(x, h, weights, config):
    places = jnp.arange(h.shape[1])

    def row(x, h):
        keys = keys_of(h, places, weights, config)
        return descend(x, lambda u: row_direction(u, keys, h, places, places, weights, config), weights, config)

    return jax.vmap(row)(x, h)


def feed(x, h, weights, config):
    def token(x, h):
        gate = weights["W"] @ h
        return descend(x, lambda u: (weights["V"].T @ (gate * sigma(weights["V"] @ u, config.activation)))[None], weights, config)

    return jax.vmap(jax.vmap(token))(x, h)


def precondition(G, weights, config):
    """(K, ..., D) -> (..., D)"""
    p = config.preconditioner
    if config.norm == "folded":
        G = G * weights["gain"]
    if p.kind == "identity":
        return G.sum(0)
    P = {name: weights[name] for name in ("P_d", "P_U", "P_V") if name in weights}
    if p.per_head:
        return jax.vmap(lambda g, one: apply(g, one, p.kind))(G, P).sum(0)
    return apply(G.sum(0), P, p.kind)


def low_rank(G, U, V):
    return (G @ V) @ U.T + (G @ U) @ V.T


def decode_row(h, weights, config):
    """One row, token by token: keys and tokens are written into caches of fixed length."""
    J, D = h.shape
    columns = jnp.arange(J)

    def token(carry, i):
        keys, tokens = carry
        one = jax.lax.dynamic_slice_in_dim(h, i, 1, 0)
        place = i + jnp.arange(1)
        keys = jax.lax.dynamic_update_slice_in_dim(keys, keys_of(one, place, weights, config), i, 1)
        tokens = jax.lax.dynamic_update_slice_in_dim(tokens, one, i, 0)
        x = descend(one, lambda u: row_direction(u, keys, tokens, place, columns, weights, config), weights, config)
        return (keys, tokens), x[0]

    start = (jnp.zeros((config.heads, J, config.R), h.dtype), jnp.zeros((J, D), h.dtype))
    return jax.lax.scan(token, start, columns)[1]


@functools.partial(jax.jit, static_argnums=2)
def decode_compiled(h, weights, key):
    config, weights = thawed(key), widen_all(weights)
    return jax.vmap(lambda row: decode_row(row, weights, config))(widen(h)).astype(h.dtype)


def decode(h, weights, config):
    return decode_compiled(h, dict(weights), frozen(config))


# --- a step is the gradient of the energy, taken by jax.grad head by head; rotations as matrices; a cache ---------


def primitive(name):
    @jax.custom_jvp
    def phi(z):
        return PHI[name](z)

    @phi.defjvp
    def rule(primals, tangents):
        return phi(primals[0]), SIGMA[name](primals[0]) * tangents[0]

    return phi


def turned(a, angle):
    """(..., R) turned by (R/2,) angles."""
    a = a.reshape(*a.shape[:-1], 2, -1)
    c, s = jnp.cos(angle).astype(a.dtype), jnp.sin(angle).astype(a.dtype)
    one, two = a[..., 0, :], a[..., 1, :]
    return jnp.concatenate([one * c - two * s, one * s + two * c], -1)


def angle_of(place, R):
    return place * jnp.asarray(10000.0 ** (-2.0 * np.arange(R // 2) / R))


def token_energy(u, i, head, keys, h, columns, config):
    """Energy of one head at one token: u (D,), keys (J, R), h (J, D)."""
    q = head["Q"] @ u
    if config.position == "rotary":
        q = turned(q, angle_of(i, config.R))
    s = keys @ q
    if config.diagonal != "none":
        s = s + h @ (head["d"] * u)
    s = s / config.temperature
    if config.position == "alibi":
        s = s - head["m"] * jnp.abs(i - columns).astype(s.dtype)
    if config.position == "self-cross":
        s = s + jnp.where(columns == i, head["self"], head["others"])
    return -config.temperature * jax.nn.logsumexp(s, where=columns <= i)


def energy_keys(head, h, places, config):
    k = h @ head["K"].T
    if config.position == "rotary":
        k = jax.vmap(lambda one, place: turned(one, angle_of(place, config.R)))(k, places)
    return k


def over_tokens(what, u, places, heads, keys, h, columns, config):
    """(K, n, ...) of one row."""
    token = lambda head, k: jax.vmap(lambda one, i: what(one, i, head, k, h, columns, config))(u, places)
    return jax.vmap(token)(heads, keys)


def attend(x, h, weights, config):
    heads, places = per_head(weights, config), jnp.arange(h.shape[1])
    slope = jax.grad(token_energy)

    def row(x, h):
        keys = jax.vmap(lambda head: energy_keys(head, h, places, config))(heads)
        return descend(x, lambda u: -over_tokens(slope, u, places, heads, keys, h, places, config), weights, config)

    return jax.vmap(row)(x, h)


def feed(x, h, weights, config):
    phi = primitive(config.activation)
    slope = jax.grad(lambda u, gate: -gate @ phi(weights["V"] @ u))
    gate = dot("md,bjd->bjm", weights["W"], h)
    return descend(x, lambda u: -jax.vmap(jax.vmap(slope))(u, gate)[None], weights, config)


def apply(G, P, kind):
    S = softplus(P["P_d"])
    if kind == "diagonal":
        return S * G
    U, V = P["P_U"], P["P_V"]
    low = lambda a: (a @ V) @ U.T + (a @ U) @ V.T
    if kind == "low-rank-printed":
        return S * G + low(G)
    uu, vv = jnp.vdot(U, U), jnp.vdot(V, V)
    some = uu * vv > 0
    size = 2 * jnp.sqrt(jnp.where(some, uu, 1.0)) * jnp.sqrt(jnp.where(some, vv, 1.0))
    c = jnp.where(some, jnp.minimum(1.0, 0.99 / size), 1.0)
    root = jnp.sqrt(S)
    return root * (root * G + c * low(root * G))


def descend(x, direction, weights, config):
    def step(x, _):
        return (x + config.step_size * precondition(direction(normalise(x, weights, config)), weights, config)).astype(x.dtype), None

    return jax.lax.scan(step, x, None, length=config.steps)[0]


@functools.partial(jax.jit, static_argnums=3)
def attention_energy_compiled(x, h, weights, key):
    config, given = thawed(key), x.dtype
    x, h, weights = widen(x), widen(h), widen_all(weights)
    heads, places = per_head(weights, config), jnp.arange(h.shape[1])

    def row(x, h):
        keys = jax.vmap(lambda head: energy_keys(head, h, places, config))(heads)
        return over_tokens(token_energy, x, places, heads, keys, h, places, config).sum(0)

    return jax.vmap(row)(x, h).astype(given)


@functools.partial(jax.jit, static_argnums=2)
def decode_compiled(h, weights, key):
    config, wide, weights = thawed(key), widen(h), widen_all(weights)
    heads, places = per_head(weights, config), jnp.arange(h.shape[1])
    slope = jax.grad(token_energy)

    def row(h):
        def token(cache, i):
            one = jax.lax.dynamic_slice_in_dim(h, i, 1)
            fresh = jax.vmap(lambda head: energy_keys(head, one, i[None], config))(heads)
            cache = jax.lax.dynamic_update_slice_in_dim(cache, fresh, i, 1)
            return cache, descend(one, lambda u: -over_tokens(slope, u, i[None], heads, cache, h, places, config), weights, config)[0]

        return jax.lax.scan(token, jnp.zeros((config.heads, h.shape[0], config.R), h.dtype), places)[1]

    return jax.vmap(row)(wide).astype(h.dtype)


def decode(h, weights, config):
    return decode_compiled(h, dict(weights), frozen(config))

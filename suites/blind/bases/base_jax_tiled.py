
# --- an online softmax over tiles of keys, scanned; heads in one product -----------------------------------

TILE = 8


def attend(x, h, weights, config):
    B, J, D = h.shape
    K, R = config.heads, config.R
    heads = per_head(weights, config)
    keys = jax.vmap(lambda head: head_keys(head, h, config), out_axes=1)(heads)
    pad = -J % TILE
    n = (J + pad) // TILE
    wide_keys = jnp.pad(keys, ((0, 0), (0, 0), (0, pad), (0, 0))).reshape(B, K, n, TILE, R).transpose(2, 0, 1, 3, 4)
    wide_h = jnp.pad(h, ((0, 0), (0, pad), (0, 0))).reshape(B, n, TILE, D).transpose(1, 0, 2, 3)
    rows = jnp.arange(J)
    dtype = x.dtype

    def direction(u):
        q = dot("krd,bjd->bkjr", weights["W_Q"], u)
        if config.position == "rotary":
            q = turn(q, np.arange(J), 1.0)

        def one(carry, tile):
            peak, mass, of_keys, of_h = carry
            k, t, number = tile
            columns = number * TILE + jnp.arange(TILE)
            s = dot("bkir,bkjr->bkij", q, k)
            if config.diagonal != "none":
                s = s + dot("bid,kd,bjd->bkij", u, heads["d"], t)
            s = s / config.temperature
            if config.position == "alibi":
                s = s - heads["m"][:, None, None] * jnp.abs(rows[:, None] - columns).astype(dtype)
            elif config.position == "self-cross":
                s = s + jnp.where(rows[:, None] == columns, heads["self"][:, None, None], heads["others"][:, None, None])
            s = jnp.where(columns <= rows[:, None], s, -jnp.inf)
            top = jax.lax.stop_gradient(jnp.maximum(peak, s.max(-1, keepdims=True)))
            e = jnp.exp(s - top)
            shrink = jnp.exp(peak - top)
            mass = mass * shrink + e.sum(-1, keepdims=True)
            of_keys = of_keys * shrink + dot("bkij,bkjr->bkir", e, k)
            of_h = of_h * shrink + dot("bkij,bjd->bkid", e, t)
            return (top, mass, of_keys, of_h), None

        start = (jnp.full((B, K, J, 1), -jnp.inf, dtype), jnp.zeros((B, K, J, 1), dtype), jnp.zeros((B, K, J, R), dtype), jnp.zeros((B, K, J, D), dtype))
        (_, mass, of_keys, of_h), _ = jax.lax.scan(one, start, (wide_keys, wide_h, jnp.arange(n)))
        out = of_keys / mass
        if config.position == "rotary":
            out = turn(out, np.arange(J), -1.0)
        G = dot("krd,bkir->kbid", weights["W_Q"], out)
        if config.diagonal != "none":
            G = G + heads["d"][:, None, None] * jnp.moveaxis(of_h / mass, 1, 0)
        return G

    return descend(x, direction, weights, config)

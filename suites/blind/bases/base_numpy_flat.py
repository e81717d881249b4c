
# --- all heads in one flat product, with in-place steps, precomputed tables and one mask --------------------


def table(R, J, dtype):
    theta = angles(R, J)
    return np.cos(theta).astype(dtype), np.sin(theta).astype(dtype)


def spin(a, cos, sin):
    """(B, J, K, R)"""
    half = a.shape[-1] // 2
    out = a * np.concatenate([cos, cos], -1)[:, None]
    out[..., :half] -= a[..., half:] * sin[:, None]
    out[..., half:] += a[..., :half] * sin[:, None]
    return out


def attend(x, h, weights, config):
    B, J, D = h.shape
    K, R = config.heads, config.R
    dtype = x.dtype
    WQ = np.ascontiguousarray(weights["W_Q"]).reshape(K * R, D)
    WK = np.ascontiguousarray(weights["W_K"]).reshape(K * R, D)
    keys = (h.reshape(-1, D) @ WK.T).reshape(B, J, K, R)
    if config.position == "rotary":
        cos, sin = table(R, J, dtype)
        keys = spin(keys, cos, sin)
    if config.diagonal != "none":
        d = np.broadcast_to(weights["diagonal"], (K, D))
    place = np.arange(J)
    bias = bias_of(weights, config, place, place, dtype)
    seen = place[None, :] <= place[:, None]
    state = np.array(x, order="C", copy=True)
    for _ in range(config.steps):
        u = normalise(state, weights, config)
        q = (u.reshape(-1, D) @ WQ.T).reshape(B, J, K, R)
        if config.position == "rotary":
            q = spin(q, cos, sin)
        s = np.einsum("bikr,bjkr->bkij", q, keys)
        if config.diagonal != "none":
            s += np.einsum("bid,kd,bjd->bkij", u, d, h, optimize=True)
        s /= dtype.type(config.temperature)
        s += bias
        np.copyto(s, -np.inf, where=~seen)
        s -= s.max(-1, keepdims=True)
        np.exp(s, out=s)
        s /= s.sum(-1, keepdims=True)
        heads = np.einsum("bkij,bjkr->bikr", s, keys)
        if config.position == "rotary":
            heads = spin(heads, cos, -sin)
        G = np.einsum("bikr,krd->bkid", heads, weights["W_Q"])
        if config.diagonal != "none":
            G += d[:, None] * np.matmul(s, h[:, None])
        state += dtype.type(config.step_size) * precondition(G, weights, config)
    return state


# --- cumulative log-sum-exps over keys; the preconditioner as a matrix; decoding by rows -----------------------


def all_scores(u, keys, h, weights, config, first):
    """(B, K, n, J) with nothing masked; row 0 is token `first`."""
    n, J = u.shape[1], h.shape[1]
    q = np.tensordot(u, weights["W_Q"], ([2], [2])).transpose(0, 2, 1, 3)
    if config.position == "rotary":
        q = rotate(q, first)
    s = q @ keys.swapaxes(2, 3)
    if config.diagonal != "none":
        s = s + (u[:, None] * diagonal_of(weights, config)[:, None]) @ h[:, None].swapaxes(2, 3)
    s = s / s.dtype.type(config.temperature)
    return s + bias_of(weights, config, np.arange(first, first + n), np.arange(J), s.dtype)


def log_masses(s, first):
    """log sum_{j <= i} exp(s_ij) by a cumulative log-sum-exp over the keys, read off on the diagonal."""
    n = s.shape[2]
    running = np.logaddexp.accumulate(s, axis=-1)
    i = np.arange(n)
    return running[:, :, i, first + i]


def attention_direction(u, keys, h, weights, config, start):
    s = all_scores(u, keys, h, weights, config, start)
    lse = log_masses(s, start)
    later = np.arange(h.shape[1]) > np.arange(start, start + u.shape[1])[:, None]
    a = np.exp(np.where(later, -np.inf, s - lse[..., None]))
    a = a / a.sum(-1, keepdims=True)
    heads = a @ keys
    if config.position == "rotary":
        heads = rotate(heads, start, back=True)
    G = heads @ weights["W_Q"]
    if config.diagonal != "none":
        G = G + diagonal_of(weights, config)[:, None] * (a @ h[:, None])
    return G


def matrix(d, U, V, kind):
    """P itself, (D, D)."""
    S = softplus(d)
    if kind == "diagonal":
        return np.diag(S)
    mixed = U @ V.T
    mixed = mixed + mixed.T
    if kind == "low-rank-printed":
        return np.diag(S) + mixed
    size = 2 * np.sqrt(np.sum(U * U)) * np.sqrt(np.sum(V * V))
    c = 0.99 / size if size > 0.99 else size.dtype.type(1)
    root = np.sqrt(S)
    return np.diag(S) + c * (root[:, None] * mixed * root)


def precondition(G, weights, config):
    p = config.preconditioner
    if config.norm == "folded":
        G = G * weights["gain"]
    if p.kind == "identity":
        return G.sum(1)
    d, U, V = weights["P_d"], weights.get("P_U"), weights.get("P_V")
    if not p.per_head:
        return G.sum(1) @ matrix(d, U, V, p.kind).T
    low = p.kind != "diagonal"
    return sum(G[:, k] @ matrix(d[k], U[k] if low else None, V[k] if low else None, p.kind).T for k in range(len(d)))


def attend(x, h, weights, config):
    return attend_rows(x, keys_of(h, weights, config), h, weights, config, 0)


def mlp_direction(u, gate, weights, config):
    flat = u.reshape(-1, u.shape[-1])
    hidden = SIGMA[config.activation](flat @ weights["V"].T) * gate.reshape(len(flat), -1)
    return (hidden @ weights["V"]).reshape(u.shape)


def attention_energy(x, h, weights, config):
    s = all_scores(x, keys_of(h, weights, config), h, weights, config, 0)
    return -x.dtype.type(config.temperature) * log_masses(s, 0).sum(1)


def mlp_energy(x, h, weights, config):
    return -np.einsum("bjm,bjm->bj", h @ weights["W"].T, PHI[config.activation](x @ weights["V"].T))


# --- one head of one row, mapped over heads and rows by vmap; a step is one function of a token's row ---------


def one_head(q_weight, k_weight, d, own, others, m, x, keys, tokens, rows, columns, config):
    """The direction of one head for one row of the batch: (n, D)."""
    q = x @ q_weight.T
    if config.position == "rotary":
        q = swing(q, rows, 1)
    s = q @ keys.T
    if d is not None:
        s = s + (x * d) @ tokens.T
    s = s / config.temperature
    gap = rows[:, None] - columns
    if m is not None:
        s = s - m * gap.to(s.dtype)
    if own is not None:
        s = s + torch.where(gap == 0, own, others)
    a = torch.softmax(torch.where(gap < 0, -math.inf, s), -1)
    out = a @ keys
    if config.position == "rotary":
        out = swing(out, rows, -1)
    out = out @ q_weight
    if d is not None:
        out = out + d * (a @ tokens)
    return out


def swing(a, places, sign):
    """(n, R) as complex numbers would turn, without complex numbers."""
    n = a.shape[-1] // 2
    power = torch.arange(n, dtype=torch.float64, device=a.device) / n
    angle = places.to(torch.float64)[:, None] * torch.exp(-math.log(10000.0) * power)
    c, s = torch.cos(angle).to(a.dtype), torch.sin(angle).to(a.dtype) * sign
    pairs = a.unflatten(-1, (2, n))
    return (pairs * c[:, None] + pairs.flip(-2) * torch.stack([-s, s], -2)).flatten(-2)


def all_heads(u, keys, tokens, rows, columns, weights, config):
    K = config.heads
    d = weights["diagonal"].expand(K, config.dim) if config.diagonal != "none" else None
    m = torch.tensor(slopes(K), dtype=u.dtype, device=u.device) if config.position == "alibi" else None
    own, others = weights.get("to_self"), weights.get("to_others")
    given = (d, own, others, m)
    inside = tuple(None if one is None else 0 for one in given)

    def of_row(x, k, t):
        heads = torch.vmap(
            lambda wq, wk, d, own, others, m, k: one_head(wq, wk, d, own, others, m, x, k, t, rows, columns, config),
            in_dims=(0, 0, *inside, 0),
        )
        return heads(weights["W_Q"], weights["W_K"], *given, k)

    return torch.vmap(of_row)(u, keys, tokens)


def head_keys(h, rows, weights, config):
    def one(wk, row):
        k = row @ wk.T
        return swing(k, rows, 1) if config.position == "rotary" else k

    return torch.vmap(lambda row: torch.vmap(lambda wk: one(wk, row))(weights["W_K"]))(h)


def move(x, keys, tokens, rows, columns, weights, config):
    G = all_heads(normalise(x, weights, config), keys, tokens, rows, columns, weights, config)
    return x + config.step_size * precondition(fold(G, weights, config), weights, config)


def attend(x, h, weights, config):
    rows = positions_of(h)
    keys = head_keys(h, rows, weights, config)
    for _ in range(config.steps):
        x = move(x, keys, h, rows, rows, weights, config)
    return x


def decode(h, weights, config):
    given, h, weights = h.dtype, widen(h), widen_all(weights)
    places = positions_of(h)
    keys, answers = h.new_zeros(h.shape[0], config.heads, 0, config.R), []
    for i in range(h.shape[1]):
        now = slice(i, i + 1)
        keys = torch.cat([keys, head_keys(h[:, now], places[now], weights, config)], 2)
        x = h[:, now]
        for _ in range(config.steps):
            x = move(x, keys, h[:, : i + 1], places[now], places[: i + 1], weights, config)
        answers.append(x)
    return torch.cat(answers, 1).to(given)


def mlp_direction(u, gate, weights, config):
    sigma = SIGMA[config.activation]

    def token(one, g):
        return weights["V"].T @ (g * sigma(weights["V"] @ one))

    return torch.vmap(torch.vmap(token))(u, gate)

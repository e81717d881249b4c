
# --- plain products only; log-sum-exps run along the keys; P as a matrix ----------------------------------------


def phases(places, R):
    n = R // 2
    return places.to(torch.float64).unsqueeze(-1) * torch.pow(10000.0, -torch.arange(n, dtype=torch.float64, device=places.device) / n)


def rotate(heads, positions, sign):
    angle = phases(positions, heads.shape[-1])
    real, imaginary = torch.cos(angle), torch.sin(angle) * sign
    first, second = heads.tensor_split(2, -1)
    real, imaginary = real.to(heads.dtype), imaginary.to(heads.dtype)
    return torch.cat((first * real - second * imaginary, second * real + first * imaginary), -1)


def remember(h, weights, config, columns):
    B, J, D = h.shape
    K, R = config.heads, config.R
    keys = torch.matmul(h, weights["W_K"].reshape(K * R, D).T).reshape(B, J, K, R).permute(0, 2, 1, 3)
    return Memory(rotate(keys, columns, 1.0) if config.position == "rotary" else keys, h, columns)


def scores(u, memory, weights, config, rows):
    """What is not masked yet: (B, K, n, J)."""
    B, n, D = u.shape
    K, R = config.heads, config.R
    q = torch.matmul(u, weights["W_Q"].reshape(K * R, D).T).reshape(B, n, K, R).permute(0, 2, 1, 3)
    q = rotate(q, rows, 1.0) if config.position == "rotary" else q
    s = torch.matmul(q, memory.keys.transpose(2, 3))
    if config.diagonal != "none":
        d = diagonal_of(weights, config)
        s = s + torch.matmul(u.unsqueeze(1) * d.unsqueeze(1), memory.tokens.unsqueeze(1).transpose(2, 3))
    s = s / config.temperature
    b = bias(weights, config, rows, memory.columns, s)
    return s if b is None else s + b


def masses(s, memory, rows):
    """log sum over visible keys, from sums that run along the keys."""
    running = torch.logcumsumexp(s, -1)
    place = (rows - memory.columns[:1]).reshape(1, 1, -1, 1).expand(s.shape[0], s.shape[1], -1, 1)
    return torch.gather(running, -1, place)


def attention_direction(u, memory, weights, config, rows):
    s = scores(u, memory, weights, config, rows)
    hidden = memory.columns.unsqueeze(0) > rows.unsqueeze(1)
    s = s.masked_fill(hidden, -math.inf)
    top = s.amax(-1, keepdim=True).detach()
    e = torch.exp(s - top)
    a = e / e.sum(-1, keepdim=True)
    heads = torch.matmul(a, memory.keys)
    heads = rotate(heads, rows, -1.0) if config.position == "rotary" else heads
    G = torch.matmul(heads, weights["W_Q"])
    if config.diagonal != "none":
        G = G + diagonal_of(weights, config).unsqueeze(1) * torch.matmul(a, memory.tokens.unsqueeze(1))
    return G


def matrix(weights, config):
    """(N, D, D) for N heads, or one."""
    p, D = config.preconditioner, config.dim
    S = softplus(weights["P_d"]).reshape(-1, D)
    if p.kind == "diagonal":
        return torch.diag_embed(S)
    U, V = weights["P_U"].reshape(-1, D, p.rank), weights["P_V"].reshape(-1, D, p.rank)
    mixed = torch.matmul(U, V.transpose(1, 2))
    mixed = mixed + mixed.transpose(1, 2)
    if p.kind == "low-rank-printed":
        return torch.diag_embed(S) + mixed
    root = torch.sqrt(S)
    return torch.diag_embed(S) + contraction(U, V) * root.unsqueeze(2) * mixed * root.unsqueeze(1)


def precondition(G, weights, config):
    """(B, K, n, D) -> (B, n, D)"""
    if config.preconditioner.kind == "identity":
        return G.sum(1)
    P = matrix(weights, config)
    if not config.preconditioner.per_head:
        return torch.matmul(G.sum(1), P[0])
    return torch.matmul(G, P).sum(1)


def normalise(x, weights, config):
    if config.norm == "none":
        return x
    power = x.square().sum(-1, keepdim=True) / x.shape[-1]
    return weights["gain"] * (x * torch.rsqrt(power + config.norm_eps))


def attention_energy(x, h, weights, config):
    given, x, h, weights = x.dtype, widen(x), widen(h), widen_all(weights)
    rows = positions_of(h)
    memory = remember(h, weights, config, rows)
    lse = masses(scores(x, memory, weights, config, rows), memory, rows)
    return (-config.temperature * lse.sum((1, 3))).to(given)


def mlp_direction(u, gate, weights, config):
    z = torch.matmul(u, weights["V"].transpose(0, 1))
    return torch.matmul(torch.mul(gate, SIGMA[config.activation](z)), weights["V"])

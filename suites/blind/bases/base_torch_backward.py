
# --- every part of a step with its own backward pass ---------------------------------------------------------


class Attend(torch.autograd.Function):
    """Heads and tokens read: softmax(scale * q k^T + bias) times the keys, recomputed from the log-sum-exp."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q, k, own, others, slope, scale, rows):
        s = logits_of(q, k, own, others, slope, scale, rows)
        lse = torch.logsumexp(s, -1, keepdim=True)
        return torch.exp(s - lse) @ k, lse

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, own, others, slope, scale, rows = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(q, k, own, others, slope, rows, output[0], output[1])
        ctx.scale = scale

    @staticmethod
    def backward(ctx, g, _):
        q, k, own, others, slope, rows, out, lse = ctx.saved_tensors
        p = torch.exp(logits_of(q, k, own, others, slope, ctx.scale, rows) - lse)
        delta = (g * out).sum(-1, keepdim=True)
        ds = p * (g @ k.mT - delta)
        dq = (ds @ k) * ctx.scale
        dk = p.mT @ g + (ds.mT @ q) * ctx.scale
        mine = rows[:, None] == rows[None, :]
        down = own_down = None
        if own is not None:
            own_down = (ds * mine).sum((0, 2, 3))
            down = (ds * ~mine).sum((0, 2, 3))
        return dq, dk, own_down, down, None, None, None


def logits_of(q, k, own, others, slope, scale, rows):
    s = (q @ k.mT) * scale
    gap = rows[:, None] - rows[None, :]
    if slope is not None:
        s = s - slope[:, None, None] * gap.to(s.dtype)
    if own is not None:
        s = s + torch.where(gap == 0, own[:, None, None], others[:, None, None])
    return s.masked_fill(gap < 0, -math.inf)


class Turn(torch.autograd.Function):
    """Rotary positions; its backward turns the other way."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a, cos, sin):
        left, right = a.chunk(2, -1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        left, right = g.chunk(2, -1)
        return torch.cat([left * cos + right * sin, right * cos - left * sin], -1), None, None


class Norm(torch.autograd.Function):
    """x / rms, without the gain."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, eps):
        inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        return x * inverse, inverse

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx, g, _):
        n, inverse = ctx.saved_tensors
        return inverse * (g - n * (g * n).mean(-1, keepdim=True)), None


class LowRank(torch.autograd.Function):
    """root * (I + c (U V^T + V U^T)) (root * G), of one head or of all; (N, n, D), (N, D), (N, D, r), (N, D, r)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(G, S, U, V):
        root = S.sqrt()[:, None]
        inner = root * G
        c, _, _ = shrinkage(U, V)
        return root * (inner + c * sandwich(inner, U, V))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        G, S, U, V = ctx.saved_tensors
        root = S.sqrt()[:, None]
        inner, back = root * G, root * g
        c, of_U, of_V = shrinkage(U, V)
        mixed = sandwich(inner, U, V)
        d_inner = back + c * sandwich(back, U, V)
        d_root = (g * (inner + c * mixed) + d_inner * G).sum(1)
        dc = (back * mixed).sum((1, 2))[:, None, None]
        dU = c * (back.mT @ (inner @ V) + inner.mT @ (back @ V)) + dc * of_U
        dV = c * (inner.mT @ (back @ U) + back.mT @ (inner @ U)) + dc * of_V
        return root * d_inner, d_root / (2 * S.sqrt()), dU, dV


def sandwich(G, U, V):
    return (G @ V) @ U.mT + (G @ U) @ V.mT


def shrinkage(U, V):
    """c, and its derivatives by U and by V."""
    uu, vv = U.square().sum((1, 2), keepdim=True), V.square().sum((1, 2), keepdim=True)
    active = 2 * torch.sqrt(uu) * torch.sqrt(vv) > 0.99
    one = torch.ones_like(uu)
    uu, vv = torch.where(active, uu, one), torch.where(active, vv, one)
    c = torch.where(active, 0.495 * torch.rsqrt(uu) * torch.rsqrt(vv), one)
    return c, torch.where(active, -c / uu, 0 * one) * U, torch.where(active, -c / vv, 0 * one) * V


class Gate(torch.autograd.Function):
    """(gate * sigma(u V^T)) V, keeping nothing but its inputs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(u, gate, V, name):
        return (gate * SIGMA[name](u @ V.mT)) @ V

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:3])
        ctx.name = inputs[3]

    @staticmethod
    def backward(ctx, g):
        u, gate, V = ctx.saved_tensors
        z = u @ V.mT
        back = g @ V.mT
        dz = back * gate * SLOPE[ctx.name](z)
        hidden = gate * SIGMA[ctx.name](z)
        flat = lambda a: a.flatten(0, -2)
        dV = flat(dz).mT @ flat(u) + flat(hidden).mT @ flat(g)
        return dz @ V, back * SIGMA[ctx.name](z), dV, None


def slope_silu(z):
    p = torch.sigmoid(z)
    return p + z * p * torch.sigmoid(-z)


def slope_gelu(z):
    return 0.5 * torch.erfc(-z * math.sqrt(0.5)) + z * torch.exp(-0.5 * z * z) * (1 / math.sqrt(2 * math.pi))


def slope_gelu_tanh(z):
    a, b = math.sqrt(2 / math.pi), 0.044715
    t = torch.tanh(a * (z + b * z * z * z))
    return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * a * (1 + 3 * b * z * z)


SLOPE = {
    "silu": slope_silu,
    "gelu": slope_gelu,
    "gelu-tanh": slope_gelu_tanh,
    "relu": lambda z: (z > 0).to(z.dtype),
    "relu2": lambda z: 2 * F.relu(z),
    "sigmoid": lambda z: torch.sigmoid(z) * torch.sigmoid(-z),
    "tanh": lambda z: 1 - torch.tanh(z) ** 2,
    "softplus": torch.sigmoid,
    "identity": torch.ones_like,
}


def turned(heads, rows, back=False):
    theta = rows.to(torch.float64)[:, None] * frequencies(heads.shape[-1], heads.device)
    cos, sin = theta.cos().to(heads.dtype), theta.sin().to(heads.dtype)
    return Turn.apply(heads, cos, -sin if back else sin)


def normalise(x, weights, config):
    if config.norm == "none":
        return x
    return weights["gain"] * Norm.apply(x, config.norm_eps)[0]


def precondition(G, weights, config):
    p = config.preconditioner
    if p.kind != "low-rank":
        return plain_precondition(G, weights, config)
    B, K, J, D = G.shape
    S = softplus(weights["P_d"]).reshape(-1, D)
    U, V = weights["P_U"].reshape(-1, D, p.rank), weights["P_V"].reshape(-1, D, p.rank)
    if p.per_head:
        return LowRank.apply(G.transpose(0, 1).flatten(1, 2), S, U, V).sum(0).reshape(B, J, D)
    return LowRank.apply(G.sum(1).reshape(1, B * J, D), S, U, V).reshape(B, J, D)


def plain_precondition(G, weights, config):
    p = config.preconditioner
    if p.kind == "identity":
        return G.sum(1)
    D = G.shape[-1]
    if not p.per_head:
        G = G.sum(1, keepdim=True)
    out = softplus(weights["P_d"]).reshape(-1, 1, D) * G
    if p.kind == "low-rank-printed":
        out = out + sandwich(G, weights["P_U"].reshape(-1, D, p.rank), weights["P_V"].reshape(-1, D, p.rank))
    return out.sum(1)


def attend(x, h, weights, config):
    K, R = config.heads, config.R
    rows = positions_of(h)
    rotary = config.position == "rotary"
    keys = h[:, None] @ weights["W_K"].mT
    keys = turned(keys, rows) if rotary else keys
    wide = config.diagonal != "none"
    if wide:
        d = diagonal_of(weights, config).expand(K, -1)[:, None]
        keys = torch.cat([keys, h[:, None].expand(-1, K, -1, -1)], -1)
    own, others = weights.get("to_self"), weights.get("to_others")
    slope = None
    if config.position == "alibi":
        slope = torch.tensor(slopes(K), dtype=h.dtype, device=h.device)
    for _ in range(config.steps):
        u = normalise(x, weights, config)
        q = u[:, None] @ weights["W_Q"].mT
        q = turned(q, rows) if rotary else q
        if wide:
            q = torch.cat([q, d * u[:, None]], -1)
        read, _ = Attend.apply(q, keys, own, others, slope, 1 / config.temperature, rows)
        heads = read[..., :R]
        heads = turned(heads, rows, back=True) if rotary else heads
        G = heads @ weights["W_Q"]
        if wide:
            G = G + d * read[..., R:]
        x = x + config.step_size * precondition(fold(G, weights, config), weights, config)
    return x


def mlp_direction(u, gate, weights, config):
    return Gate.apply(u, gate, weights["V"], config.activation)

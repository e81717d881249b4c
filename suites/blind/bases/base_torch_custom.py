
# --- autograd functions with their own backward passes ------------------------------------------------------


class Gated(torch.autograd.Function):
    """V^T (gate * sigma(V u)) for the activations whose derivative is known, else by autograd."""

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
        value, slope = sigma_and_slope(z, ctx.name)
        back = g @ V.mT
        inner = back * gate * slope
        grad_V = torch.einsum("bjm,bjd->md", inner, u) + torch.einsum("bjm,bjd->md", gate * value, g)
        return inner @ V, back * value, grad_V, None


def sigma_and_slope(z, name):
    if name == "silu":
        p = torch.sigmoid(z)
        return z * p, p * (1 + z * (1 - p))
    if name == "sigmoid":
        p = torch.sigmoid(z)
        return p, p * (1 - p)
    if name == "tanh":
        t = torch.tanh(z)
        return t, 1 - t * t
    if name == "relu":
        return F.relu(z), (z > 0).to(z.dtype)
    if name == "relu2":
        return F.relu(z) ** 2, 2 * F.relu(z)
    if name == "identity":
        return z, torch.ones_like(z)
    if name == "softplus":
        return softplus(z), torch.sigmoid(z)
    if name == "gelu":
        cdf = 0.5 * torch.erfc(-z / math.sqrt(2))
        return z * cdf, cdf + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    c, b = math.sqrt(2 / math.pi), 0.044715
    t = torch.tanh(c * (z + b * z**3))
    return 0.5 * z * (1 + t), 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * c * (1 + 3 * b * z * z)


def mlp_direction(u, gate, weights, config):
    return Gated.apply(u, gate, weights["V"], config.activation)


class Read(torch.autograd.Function):
    """softmax(s) @ keys"""

    generate_vmap_rule = True

    @staticmethod
    def forward(s, keys):
        a = torch.softmax(s, -1)
        return a @ keys, a

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1], inputs[1])

    @staticmethod
    def backward(ctx, g, _):
        a, keys = ctx.saved_tensors
        da = g @ keys.mT
        return a * (da - (a * da).sum(-1, keepdim=True)), a.mT @ g


class Scaled(torch.autograd.Function):
    """gain * x / rms"""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, gain, eps):
        return gain * (x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2])
        ctx.eps = inputs[2]

    @staticmethod
    def backward(ctx, g):
        x, gain = ctx.saved_tensors
        r = torch.sqrt((x * x).mean(-1, keepdim=True) + ctx.eps)
        n = x / r
        gg = g * gain
        dx = (gg - n * (gg * n).mean(-1, keepdim=True)) / r
        dgain = (g * n).flatten(0, -2).sum(0)
        if gain.shape[0] == 1:
            dgain = dgain.sum(0, keepdim=True)
        return dx, dgain, None


def normalise(x, weights, config):
    return x if config.norm == "none" else Scaled.apply(x, weights["gain"], config.norm_eps)


def attention_direction(u, memory, weights, config, rows):
    s = scores(u, memory, weights, config, rows)
    values = memory.keys
    if config.diagonal != "none":
        values = torch.cat([values, memory.tokens[:, None].expand(-1, config.heads, -1, -1)], -1)
    both, _ = Read.apply(s, values)
    heads, tokens = both[..., : config.R], both[..., config.R :]
    if config.position == "rotary":
        heads = rotate(heads, rows, -1.0)
    G = torch.einsum("krd,bkir->bkid", weights["W_Q"], heads)
    return G + diagonal_of(weights, config)[:, None] * tokens if config.diagonal != "none" else G


# --- everything is checked; attention is one call of scaled_dot_product_attention with widened keys --------------


def refuse(name, array, shape=None):
    if not isinstance(array, torch.Tensor):
        raise TypeError(f"{name} must be a tensor, not {type(array).__name__}")
    if not array.is_floating_point():
        raise TypeError(f"{name} must be of a floating dtype, not {array.dtype}")
    if shape is not None and tuple(array.shape) != tuple(shape):
        raise ValueError(f"{name} must have the shape {tuple(shape)}, not {tuple(array.shape)}")


def visible(array):
    """Whether the values may be looked at: not while compiling, and not under vmap or grad of torch.func."""
    return not torch.compiler.is_compiling() and not torch._C._functorch.is_functorch_wrapped_tensor(array)


def check(x, h, weights, config, shapes):
    refuse("x", x)
    refuse("h", h)
    if x.ndim != 3 or h.ndim != 3 or x.shape[2] != config.dim:
        raise ValueError(f"x and h must be (B, J, {config.dim}), not {tuple(x.shape)} and {tuple(h.shape)}")
    if x.shape[1] != h.shape[1]:
        raise ValueError(f"x has {x.shape[1]} tokens and h has {h.shape[1]}")
    if x.shape != h.shape:
        raise ValueError(f"x and h must have one shape, not {tuple(x.shape)} and {tuple(h.shape)}")
    missing = sorted(set(shapes) - set(weights))
    if missing:
        raise ValueError(f"weights are missing: {', '.join(missing)}")
    for name, shape in shapes.items():
        refuse(name, weights[name], shape)
    if config.steps < 1:
        raise ValueError(f"there must be at least one step, not {config.steps}")
    if not config.step_size >= 0:
        raise ValueError(f"the step size must not be negative: {config.step_size}")
    for name, array in (("x", x), ("h", h), *weights.items()):
        if visible(array) and not bool(torch.isfinite(array.detach()).all()):
            raise ValueError(f"{name} has values that are not finite")


def check_attention(x, h, weights, config):
    if not config.temperature > 0:
        raise ValueError(f"the temperature must be positive, not {config.temperature}")
    check(x, h, weights, config, attention_shapes(config))


def widened(first, tokens, weights, config, scaled):
    if config.diagonal == "none":
        return first
    tokens = tokens[:, None]
    d = diagonal_of(weights, config)[:, None].expand(config.heads, -1, -1)
    return torch.cat([first, tokens * d if scaled else tokens.expand(-1, config.heads, -1, -1)], -1)


def attention_direction(u, memory, weights, config, rows):
    q = u[:, None] @ weights["W_Q"].mT
    if config.position == "rotary":
        q = rotate(q, rows, 1.0)
    q = widened(q, u, weights, config, True)
    k = widened(memory.keys, memory.tokens, weights, config, False)
    future = memory.columns[None, :] > rows[:, None]
    b = bias(weights, config, rows, memory.columns, q)
    b = torch.zeros((), dtype=q.dtype, device=q.device) if b is None else b
    mask = b.masked_fill(future, -math.inf)
    mask = mask.expand(q.shape[0], config.heads, *future.shape)
    read = F.scaled_dot_product_attention(q, k, k, attn_mask=mask, scale=1 / config.temperature)
    heads = read[..., : config.R]
    if config.position == "rotary":
        heads = rotate(heads, rows, -1.0)
    G = heads @ weights["W_Q"]
    if config.diagonal != "none":
        G = G + diagonal_of(weights, config)[:, None] * read[..., config.R :]
    return G

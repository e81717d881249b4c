
# --- online softmax over tiles of queries and keys; the MLP in tiles of hidden units; a growing cache -------

ROWS, COLUMNS, UNITS, GROW = 24, 16, 32, 8


def attention_direction(u, memory, weights, config, rows):
    return torch.cat([tile(u[:, a : a + ROWS], memory, weights, config, rows[a : a + ROWS]) for a in range(0, u.shape[1], ROWS)], 2)


def tile(u, memory, weights, config, rows):
    n = memory.keys.shape[2]
    end = n
    peak = mass = total = extra = None
    for low in range(0, end, COLUMNS):
        high = min(low + COLUMNS, end)
        part = Memory(memory.keys[:, :, low:high], memory.tokens[:, low:high], memory.columns[low:high])
        s = scores(u, part, weights, config, rows)
        top = s.amax(-1, keepdim=True)
        new = top if peak is None else torch.maximum(peak, top)
        safe = torch.where(torch.isinf(new), torch.zeros_like(new), new).detach()
        e = torch.exp(s - safe)
        m, t = e.sum(-1, keepdim=True), e @ part.keys
        x = e @ part.tokens[:, None] if config.diagonal != "none" else None
        if peak is None:
            mass, total, extra = m, t, x
        else:
            shrink = torch.exp(kept - safe)
            mass, total = mass * shrink + m, total * shrink + t
            if x is not None:
                extra = extra * shrink + x
        peak, kept = new, safe
    heads = total / mass
    if config.position == "rotary":
        heads = rotate(heads, rows, -1.0)
    G = torch.einsum("krd,bkir->bkid", weights["W_Q"], heads)
    if config.diagonal != "none":
        G = G + diagonal_of(weights, config)[:, None] * (extra / mass)
    return G


def mlp_direction(u, gate, weights, config):
    total = 0
    for low in range(0, config.hidden, UNITS):
        V = weights["V"][low : low + UNITS]
        total = total + (gate[..., low : low + UNITS] * SIGMA[config.activation](u @ V.T)) @ V
    return total


def decode(h, weights, config):
    given, h, weights = h.dtype, widen(h), widen_all(weights)
    B, J, D = h.shape
    positions = positions_of(h)
    room, keys, answers = 0, None, []
    for i in range(J):
        here = positions[i : i + 1]
        mine = remember(h[:, i : i + 1], weights, config, here).keys
        if i == room:
            fresh = mine.new_zeros(B, config.heads, GROW, config.R)
            keys = fresh if keys is None else torch.cat([keys, fresh], 2)
            room += GROW
        at = torch.arange(room, device=h.device) == i
        keys = torch.where(at[:, None], mine, keys)
        cache = Memory(keys[:, :, : i + 1], h[:, : i + 1], positions[: i + 1])
        x = h[:, i : i + 1]
        for _ in range(config.steps):
            x = attention_step(x, cache, weights, config, here)
        answers.append(x)
    return torch.cat(answers, 1).to(given)

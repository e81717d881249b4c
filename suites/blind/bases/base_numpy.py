"""CEM layers in NumPy, in blocks of tokens with a running softmax, written from docs/contract.md alone."""

import math

import numpy as np
from scipy.special import erfc

BLOCK = 64
ROWS = 96
UNITS = 512
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_NODES = ((_NODES + 1) / 2 + np.arange(8)[:, None]).ravel() / 8
_WEIGHTS = np.tile(_WEIGHTS / 16, 8)


# --- activations -------------------------------------------------------------------------------------------


def sigmoid(z):
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1 / (1 + e), e / (1 + e))


def softplus(z):
    return np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))


def silu(z):
    return z * sigmoid(z)


def gelu(z):
    return (z * (0.5 * erfc(-z / math.sqrt(2)))).astype(z.dtype)


def gelu_tanh(z):
    return 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


def relu(z):
    return np.maximum(z, 0)


SIGMA = {
    "silu": silu,
    "gelu": gelu,
    "gelu-tanh": gelu_tanh,
    "relu": relu,
    "relu2": lambda z: relu(z) ** 2,
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "softplus": softplus,
    "identity": lambda z: z,
}


def log_cosh(z):
    a = np.abs(z)
    near = np.log1p(2 * np.sinh(np.minimum(a, 1) / 2) ** 2)
    far = a + np.log1p(np.exp(-2 * a)) - math.log(2)
    return np.where(a < 1, near, far)


def phi_by_parts(z, sigma, reach):
    w = np.clip(z, -reach, reach)
    total = np.zeros_like(z)
    for node, weight in zip(_NODES.tolist(), _WEIGHTS.tolist(), strict=True):
        total += weight * sigma(-np.abs(w) * node)
    return relu(z) ** 2 / 2 + w * total


PHI = {
    "silu": lambda z: phi_by_parts(z, silu, 45.0),
    "gelu": lambda z: phi_by_parts(z, gelu, 12.0),
    "gelu-tanh": lambda z: phi_by_parts(z, gelu_tanh, 12.0),
    "relu": lambda z: relu(z) ** 2 / 2,
    "relu2": lambda z: relu(z) ** 3 / 3,
    "sigmoid": lambda z: z / 2 + log_cosh(z / 2),
    "tanh": log_cosh,
    "softplus": lambda z: phi_by_parts(z, softplus, 45.0),
    "identity": lambda z: z**2 / 2,
}


# --- validation --------------------------------------------------------------------------------------------


def expected_shapes(config, attention):
    D, p = config.dim, config.preconditioner
    shapes = {}
    if attention:
        K, R = config.heads, config.R
        shapes.update(W_Q=(K, R, D), W_K=(K, R, D))
        if config.diagonal != "none":
            shapes["diagonal"] = (K, D) if config.diagonal == "per-head" else (D,)
        if config.position == "self-cross":
            shapes.update(to_self=(K,), to_others=(K,))
        lead = (K,) if p.per_head else ()
    else:
        shapes.update(V=(config.hidden, D), W=(config.hidden, D))
        lead = ()
    if p.kind != "identity":
        shapes["P_d"] = (*lead, D)
    if p.kind in ("low-rank", "low-rank-printed"):
        shapes["P_U"] = shapes["P_V"] = (*lead, D, p.rank)
    if config.norm != "none":
        shapes["gain"] = (1,) if config.norm == "scalar" else (D,)
    return shapes


def check(x, h, weights, config, attention):
    for name, array in [("x", x), ("h", h), *weights.items()]:
        if not np.issubdtype(array.dtype, np.floating):
            raise TypeError(f"{name} has dtype {array.dtype}")
    if x.ndim != 3 or x.shape != h.shape or x.shape[2] != config.dim:
        raise ValueError(f"x and h must be (B, J, {config.dim}), not {x.shape} and {h.shape}")
    for name, shape in expected_shapes(config, attention).items():
        if name not in weights or weights[name].shape != shape:
            raise ValueError(f"{name} must have the shape {shape}")
    if not all(np.isfinite(array).all() for array in (x, h, *weights.values())):
        raise ValueError("there is NaN or infinity")
    if config.steps < 1:
        raise ValueError("no steps")
    if config.step_size < 0:
        raise ValueError("negative step size")
    if attention and config.temperature <= 0:
        raise ValueError("the temperature must be positive")


# --- parts -------------------------------------------------------------------------------------------------


def normalise(x, weights, config):
    if config.norm == "none":
        return x
    rms = np.sqrt(np.mean(np.square(x), -1, keepdims=True) + x.dtype.type(config.norm_eps))
    return weights["gain"] * x / rms


def slopes(K):
    n = 1
    while 2 * n <= K:
        n *= 2
    first = [2.0 ** (-8 * (k + 1) / n) for k in range(n)]
    rest = [2.0 ** (-4 * (2 * k + 1) / n) for k in range(K - n)]
    return np.array(first + rest)


def angles(R, J):
    inverse = 10000.0 ** (-np.arange(R // 2) * 2.0 / R)
    return np.arange(J)[:, None] * inverse


def rotate(a, start, back=False):
    """(B, K, n, R); its tokens begin at start."""
    n, R = a.shape[-2:]
    theta = angles(R, start + n)[start:]
    cos, sin = np.cos(theta).astype(a.dtype), np.sin(theta).astype(a.dtype)
    if back:
        sin = -sin
    out = np.empty_like(a)
    left, right = a[..., : R // 2], a[..., R // 2 :]
    out[..., : R // 2] = left * cos - right * sin
    out[..., R // 2 :] = right * cos + left * sin
    return out


def keys_of(h, weights, config, start=0):
    keys = np.matmul(h[:, None], weights["W_K"].swapaxes(-1, -2)[None])
    return rotate(keys, start) if config.position == "rotary" else keys


def diagonal_of(weights, config):
    d = weights["diagonal"]
    return d[None] if config.diagonal == "shared" else d


def bias_of(weights, config, i, j, dtype):
    """(K or 1, rows, columns)."""
    if config.position == "alibi":
        return (-slopes(config.heads)[:, None, None] * np.abs(i[:, None] - j[None, :])).astype(dtype)
    if config.position == "self-cross":
        own = i[:, None] == j[None, :]
        return np.where(own, weights["to_self"][:, None, None], weights["to_others"][:, None, None])
    return np.zeros((1, 1, 1), dtype)


def scores(q, ud, keys, h, weights, config, i, j):
    s = np.matmul(q, keys.swapaxes(-1, -2))
    if config.diagonal != "none":
        s = s + np.matmul(ud, h[:, None].swapaxes(-1, -2))
    s = s / s.dtype.type(config.temperature)
    s = s + bias_of(weights, config, i, j, s.dtype)
    return np.where(j[None, :] > i[:, None], -np.inf, s)


def queries_of(u, weights, config, start):
    q = np.matmul(u[:, None], weights["W_Q"].swapaxes(-1, -2)[None])
    if config.position == "rotary":
        q = rotate(q, start)
    ud = u[:, None] * diagonal_of(weights, config)[:, None] if config.diagonal != "none" else None
    return q, ud


def sweep(u, keys, h, weights, config, start):
    """The running softmax of rows start, start + 1, ... over all blocks of keys: peak, mass, sums of keys and h."""
    q, ud = queries_of(u, weights, config, start)
    B, K, n, R = q.shape
    i = np.arange(start, start + n)
    peak = np.full((B, K, n, 1), -np.inf, u.dtype)
    mass = np.zeros((B, K, n, 1), u.dtype)
    of_keys = np.zeros((B, K, n, R), u.dtype)
    with_h = config.diagonal != "none"
    of_h = np.zeros((B, K, n, h.shape[-1]), u.dtype) if with_h else None
    end = start + n
    for low in range(0, end, BLOCK):
        high = min(low + BLOCK, end)
        j = np.arange(low, high)
        s = scores(q, ud, keys[:, :, low:high], h[:, low:high], weights, config, i, j)
        top = np.maximum(peak, s.max(-1, keepdims=True))
        safe = np.where(np.isneginf(top), 0, top)
        e = np.exp(s - safe)
        shrink = np.exp(peak - safe)
        mass = mass * shrink + e.sum(-1, keepdims=True)
        of_keys = of_keys * shrink + np.matmul(e, keys[:, :, low:high])
        if with_h:
            of_h = of_h * shrink + np.matmul(e, h[:, None, low:high])
        peak = top
    return peak, mass, of_keys, of_h


def attention_direction(u, keys, h, weights, config, start):
    """(B, K, n, D)"""
    _, mass, of_keys, of_h = sweep(u, keys, h, weights, config, start)
    heads = of_keys / mass
    if config.position == "rotary":
        heads = rotate(heads, start, back=True)
    G = np.matmul(heads, weights["W_Q"][None])
    if config.diagonal != "none":
        G = G + diagonal_of(weights, config)[:, None] * (of_h / mass)
    return G


def low_rank(G, U, V):
    return np.matmul(np.matmul(G, V), U.swapaxes(-1, -2)) + np.matmul(np.matmul(G, U), V.swapaxes(-1, -2))


def apply(G, d, U, V, kind):
    S = softplus(d)
    if kind == "diagonal":
        return S * G
    if kind == "low-rank-printed":
        return S * G + low_rank(G, U, V)
    size = 2 * np.linalg.norm(U) * np.linalg.norm(V)
    c = min(1.0, 0.99 / float(size)) if size > 0 else 1.0
    root = np.sqrt(S)
    inner = root * G
    return root * (inner + G.dtype.type(c) * low_rank(inner, U, V))


def precondition(G, weights, config):
    """(B, K, n, D) -> (B, n, D)"""
    p = config.preconditioner
    if config.norm == "folded":
        G = G * weights["gain"]
    if p.kind == "identity":
        return G.sum(1)
    d, U, V = weights["P_d"], weights.get("P_U"), weights.get("P_V")
    if not p.per_head:
        return apply(G.sum(1), d, U, V, p.kind)
    total = np.zeros_like(G[:, 0])
    for k in range(G.shape[1]):
        total = total + apply(G[:, k], d[k], None if U is None else U[k], None if V is None else V[k], p.kind)
    return total


def attend_rows(x, keys, h, weights, config, start):
    eta = x.dtype.type(config.step_size)
    for _ in range(config.steps):
        u = normalise(x, weights, config)
        x = x + eta * precondition(attention_direction(u, keys, h, weights, config, start), weights, config)
    return x


def attend(x, h, weights, config):
    keys = keys_of(h, weights, config)
    out = np.empty(x.shape, x.dtype)
    for low in range(0, x.shape[1], ROWS):
        high = low + ROWS
        out[:, low:high] = attend_rows(x[:, low:high], keys, h, weights, config, low)
    return out


def mlp_direction(u, gate, weights, config):
    sigma = SIGMA[config.activation]
    total = np.zeros_like(u)
    for low in range(0, config.hidden, UNITS):
        V = weights["V"][low : low + UNITS]
        total = total + np.matmul(gate[..., low : low + UNITS] * sigma(np.matmul(u, V.T)), V)
    return total


def feed(x, h, weights, config):
    gate = np.matmul(h, weights["W"].T)
    eta = x.dtype.type(config.step_size)
    for _ in range(config.steps):
        G = mlp_direction(normalise(x, weights, config), gate, weights, config)
        x = x + eta * precondition(G[:, None], weights, config)
    return x


# --- the functions -----------------------------------------------------------------------------------------


def attention(x, h, weights, config):
    check(x, h, weights, config, attention=True)
    return attend(x, h, weights, config)


def mlp(x, h, weights, config):
    check(x, h, weights, config, attention=False)
    return feed(x, h, weights, config)


def part(weights, name):
    return {key.split(".", 1)[1]: weights[key] for key in weights if key.split(".", 1)[0] == name}


def block(h, weights, config):
    first, second = part(weights, "attention"), part(weights, "mlp")
    m = attend(h, normalise(h, first, config.attention), first, config.attention)
    return feed(m, normalise(m, second, config.mlp), second, config.mlp)


def decode(h, weights, config):
    B, J, D = h.shape
    cache = np.empty((B, config.heads, J, config.R), h.dtype)
    out = np.empty(h.shape, h.dtype)
    for i in range(J):
        cache[:, :, i : i + 1] = keys_of(h[:, i : i + 1], weights, config, i)
        out[:, i : i + 1] = attend_rows(h[:, i : i + 1], cache[:, :, : i + 1], h[:, : i + 1], weights, config, i)
    return out


def attention_energy(x, h, weights, config):
    keys = keys_of(h, weights, config)
    out = np.empty(x.shape[:2], x.dtype)
    for low in range(0, x.shape[1], ROWS):
        high = low + ROWS
        peak, mass, _, _ = sweep(x[:, low:high], keys, h, weights, config, low)
        out[:, low:high] = -x.dtype.type(config.temperature) * (np.log(mass) + peak).sum((1, 3))
    return out


def mlp_energy(x, h, weights, config):
    phi = PHI[config.activation]
    total = np.zeros(x.shape[:2], x.dtype)
    for low in range(0, config.hidden, UNITS):
        W, V = weights["W"][low : low + UNITS], weights["V"][low : low + UNITS]
        total = total - (np.matmul(h, W.T) * phi(np.matmul(x, V.T))).sum(-1)
    return total

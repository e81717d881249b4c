"""CEM layers in torch, written from docs/contract.md and docs/mathematics.md alone."""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_NODES = ((_NODES + 1) / 2 + np.arange(8)[:, None]).ravel() / 8
_WEIGHTS = np.tile(_WEIGHTS / 16, 8)


@dataclass
class Memory:
    keys: torch.Tensor
    tokens: torch.Tensor
    columns: torch.Tensor


# --- activations -------------------------------------------------------------------------------------------


def softplus(z):
    return F.softplus(z, threshold=40.0)


SIGMA = {
    "silu": F.silu,
    "gelu": lambda z: F.gelu(z),
    "gelu-tanh": lambda z: F.gelu(z, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda z: F.relu(z) ** 2,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": softplus,
    "identity": lambda z: z,
}


def log_cosh(z):
    near = z.abs() < 1
    small = torch.where(near, z, torch.zeros_like(z))
    a = z.abs()
    far = a + torch.log1p(torch.exp(-2 * a)) - math.log(2.0)
    return torch.where(near, torch.log1p(2 * torch.sinh(small / 2) ** 2), far)


def phi_by_parts(z, sigma, reach):
    w = z.clamp(-reach, reach)
    nodes = torch.as_tensor(_NODES, device=z.device).to(z.dtype)
    weights = torch.as_tensor(_WEIGHTS, device=z.device).to(z.dtype)
    inner = (sigma(-w.abs()[..., None] * nodes) * weights).sum(-1)
    value = (F.relu(z) ** 2 / 2 + w * inner).detach()
    return value + sigma(z.detach()) * (z - z.detach())  # the derivative is sigma itself


PHI = {
    "silu": lambda z: phi_by_parts(z, F.silu, 45.0),
    "gelu": lambda z: phi_by_parts(z, F.gelu, 12.0),
    "gelu-tanh": lambda z: phi_by_parts(z, SIGMA["gelu-tanh"], 12.0),
    "relu": lambda z: F.relu(z) ** 2 / 2,
    "relu2": lambda z: F.relu(z) ** 3 / 3,
    "sigmoid": lambda z: z / 2 + log_cosh(z / 2),
    "tanh": log_cosh,
    "softplus": lambda z: phi_by_parts(z, softplus, 45.0),
    "identity": lambda z: z**2 / 2,
}


# --- validation --------------------------------------------------------------------------------------------


def shapes_of_preconditioner(config, heads):
    p = config.preconditioner
    lead = (heads,) if p.per_head else ()
    shapes = {}
    if p.kind != "identity":
        shapes["P_d"] = (*lead, config.dim)
    if p.kind.startswith("low-rank"):
        shapes["P_U"] = (*lead, config.dim, p.rank)
        shapes["P_V"] = (*lead, config.dim, p.rank)
    return shapes


def shapes_of_norm(config):
    if config.norm == "none":
        return {}
    return {"gain": (1,) if config.norm == "scalar" else (config.dim,)}


def attention_shapes(config):
    K, R, D = config.heads, config.R, config.dim
    shapes = {"W_Q": (K, R, D), "W_K": (K, R, D)}
    if config.diagonal == "shared":
        shapes["diagonal"] = (D,)
    elif config.diagonal == "per-head":
        shapes["diagonal"] = (K, D)
    if config.position == "self-cross":
        shapes["to_self"] = (K,)
        shapes["to_others"] = (K,)
    return {**shapes, **shapes_of_preconditioner(config, K), **shapes_of_norm(config)}


def mlp_shapes(config):
    M, D = config.hidden, config.dim
    return {"V": (M, D), "W": (M, D), **shapes_of_preconditioner(config, 1), **shapes_of_norm(config)}


def quiet():
    return torch.compiler.is_compiling()


def is_not_finite(array):
    if quiet() or torch._C._functorch.is_batchedtensor(array):
        return False
    return not bool(torch.isfinite(array.detach()).all())


def check(x, h, weights, config, shapes):
    for name, array in (("x", x), ("h", h), *weights.items()):
        if not array.is_floating_point():
            raise TypeError(f"{name} must be of a floating dtype, not {array.dtype}")
    for name, array in (("x", x), ("h", h)):
        if array.ndim != 3 or array.shape[-1] != config.dim:
            raise ValueError(f"{name} must be (B, J, {config.dim}), not {tuple(array.shape)}")
    if x.shape[1] != h.shape[1]:
        raise ValueError(f"x has {x.shape[1]} tokens, h has {h.shape[1]}")
    if x.shape[0] != h.shape[0]:
        raise ValueError(f"x has {x.shape[0]} rows, h has {h.shape[0]}")
    for name, shape in shapes.items():
        if name not in weights:
            raise ValueError(f"there is no {name}")
        if tuple(weights[name].shape) != shape:
            raise ValueError(f"{name} must be {shape}, not {tuple(weights[name].shape)}")
    if config.steps < 1:
        raise ValueError("there must be at least one step")
    if config.step_size < 0:
        raise ValueError("the step size must be positive")
    if any(is_not_finite(array) for array in (x, h, *weights.values())):
        raise ValueError("there is NaN or infinity")


def check_attention(x, h, weights, config):
    check(x, h, weights, config, attention_shapes(config))
    if config.temperature <= 0:
        raise ValueError("the temperature must be positive")


def check_mlp(x, h, weights, config):
    check(x, h, weights, config, mlp_shapes(config))


# --- parts -------------------------------------------------------------------------------------------------


def working(dtype):
    return torch.float32 if dtype == torch.bfloat16 else dtype


def widen(array):
    return array.to(working(array.dtype))


def widen_all(weights):
    return {name: widen(array) for name, array in weights.items()}


def normalise(x, weights, config):
    if config.norm == "none":
        return x
    square = (x * x).mean(-1, keepdim=True)
    return weights["gain"] * x / torch.sqrt(square + config.norm_eps)


def low_rank(G, U, V):
    return (G @ V) @ U.transpose(-1, -2) + (G @ U) @ V.transpose(-1, -2)


def frobenius(A):
    square = (A * A).sum((-2, -1))
    return torch.where(square > 0, torch.sqrt(torch.where(square > 0, square, torch.ones_like(square))), square)


def contraction(U, V):
    size = 2 * frobenius(U) * frobenius(V)
    large = size > 0.99
    c = torch.where(large, 0.99 / torch.where(large, size, torch.ones_like(size)), torch.ones_like(size))
    return c[:, None, None]


def precondition(G, weights, config):
    """(B, K, J, D) -> (B, J, D)."""
    p = config.preconditioner
    if p.kind == "identity":
        return G.sum(1)
    if not p.per_head:
        G = G.sum(1, keepdim=True)
    D = G.shape[-1]
    scale = softplus(weights["P_d"]).reshape(-1, 1, D)
    if p.kind == "diagonal":
        return (scale * G).sum(1)
    U = weights["P_U"].reshape(-1, D, p.rank)
    V = weights["P_V"].reshape(-1, D, p.rank)
    if p.kind == "low-rank-printed":
        return (scale * G + low_rank(G, U, V)).sum(1)
    root = torch.sqrt(scale)
    inner = root * G
    inner = inner + contraction(U, V) * low_rank(inner, U, V)
    return (root * inner).sum(1)


def slopes(K):
    def powers(n):
        return [2.0 ** (-8.0 * k / n) for k in range(1, n + 1)]

    below = 2 ** int(math.floor(math.log2(K)))
    if below == K:
        return powers(K)
    return powers(below) + powers(2 * below)[0::2][: K - below]


def frequencies(R, device):
    exponents = torch.arange(0, R, 2, dtype=torch.float64, device=device) / R
    return 10000.0 ** (-exponents)


def rotate(heads, positions, sign):
    """(B, K, J, R), rotated by sign times the angles of the positions."""
    R = heads.shape[-1]
    angles = positions.to(torch.float64)[:, None] * frequencies(R, heads.device)
    cos = torch.cos(angles).to(heads.dtype)
    sin = (sign * torch.sin(angles)).to(heads.dtype)
    first, second = heads[..., : R // 2], heads[..., R // 2 :]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def diagonal_of(weights, config):
    """(K, D), or (1, D) where it is shared."""
    return weights["diagonal"].reshape(-1, config.dim)


def remember(h, weights, config, columns):
    keys = torch.einsum("krd,bjd->bkjr", weights["W_K"], h)
    if config.position == "rotary":
        keys = rotate(keys, columns, 1.0)
    return Memory(keys, h, columns)


def bias(weights, config, rows, columns, like):
    if config.position == "alibi":
        m = torch.tensor(slopes(config.heads), dtype=torch.float64, device=like.device)
        distance = (rows[:, None] - columns[None, :]).abs().to(torch.float64)
        return (-m[:, None, None] * distance).to(like.dtype)
    if config.position == "self-cross":
        own = rows[:, None] == columns[None, :]
        return torch.where(own, weights["to_self"][:, None, None], weights["to_others"][:, None, None])
    return None


def scores(u, memory, weights, config, rows):
    queries = torch.einsum("krd,bid->bkir", weights["W_Q"], u)
    if config.position == "rotary":
        queries = rotate(queries, rows, 1.0)
    s = queries @ memory.keys.transpose(-1, -2)
    if config.diagonal != "none":
        d = diagonal_of(weights, config)
        s = s + (u[:, None] * d[:, None]) @ memory.tokens[:, None].transpose(-1, -2)
    s = s / config.temperature
    b = bias(weights, config, rows, memory.columns, s)
    if b is not None:
        s = s + b
    future = memory.columns[None, :] > rows[:, None]
    return s.masked_fill(future, -math.inf)


def softmax(s):
    return torch.softmax(s, -1)


def attention_direction(u, memory, weights, config, rows):
    a = softmax(scores(u, memory, weights, config, rows))
    heads = a @ memory.keys
    if config.position == "rotary":
        heads = rotate(heads, rows, -1.0)
    G = torch.einsum("krd,bkir->bkid", weights["W_Q"], heads)
    if config.diagonal != "none":
        d = diagonal_of(weights, config)
        G = G + d[:, None] * (a @ memory.tokens[:, None])
    return G


def fold(G, weights, config):
    return G * weights["gain"] if config.norm == "folded" else G


def attention_step(x, memory, weights, config, rows):
    u = normalise(x, weights, config)
    G = fold(attention_direction(u, memory, weights, config, rows), weights, config)
    return x + config.step_size * precondition(G, weights, config)


def positions_of(h):
    return torch.arange(h.shape[1], device=h.device)


def attend(x, h, weights, config):
    rows = positions_of(h)
    memory = remember(h, weights, config, rows)
    for _ in range(config.steps):
        x = attention_step(x, memory, weights, config, rows)
    return x


def mlp_direction(u, gate, weights, config):
    return (gate * SIGMA[config.activation](u @ weights["V"].T)) @ weights["V"]


def mlp_step(x, gate, weights, config):
    u = normalise(x, weights, config)
    G = fold(mlp_direction(u, gate, weights, config), weights, config)
    return x + config.step_size * precondition(G[:, None], weights, config)


def feed(x, h, weights, config):
    gate = h @ weights["W"].T
    for _ in range(config.steps):
        x = mlp_step(x, gate, weights, config)
    return x


# --- the functions -----------------------------------------------------------------------------------------


def attention(x, h, weights, config):
    check_attention(x, h, weights, config)
    return attend(widen(x), widen(h), widen_all(weights), config).to(x.dtype)


def mlp(x, h, weights, config):
    check_mlp(x, h, weights, config)
    return feed(widen(x), widen(h), widen_all(weights), config).to(x.dtype)


def part(weights, name):
    return {key[len(name) + 1 :]: array for key, array in weights.items() if key.startswith(name + ".")}


def block(h, weights, config):
    first, second = part(widen_all(weights), "attention"), part(widen_all(weights), "mlp")
    x = widen(h)
    m = attend(x, normalise(x, first, config.attention), first, config.attention)
    y = feed(m, normalise(m, second, config.mlp), second, config.mlp)
    return y.to(h.dtype)


def decode(h, weights, config):
    given, h, weights = h.dtype, widen(h), widen_all(weights)
    keys, answers = [], []
    positions = positions_of(h)
    for i in range(h.shape[1]):
        here = positions[i : i + 1]
        keys.append(remember(h[:, i : i + 1], weights, config, here).keys)
        cache = Memory(torch.cat(keys, 2), h[:, : i + 1], positions[: i + 1])
        x = h[:, i : i + 1]
        for _ in range(config.steps):
            x = attention_step(x, cache, weights, config, here)
        answers.append(x)
    return torch.cat(answers, 1).to(given)


def attention_energy(x, h, weights, config):
    given, x, h, weights = x.dtype, widen(x), widen(h), widen_all(weights)
    rows = positions_of(h)
    s = scores(x, remember(h, weights, config, rows), weights, config, rows)
    return (-config.temperature * torch.logsumexp(s, -1).sum(1)).to(given)


def mlp_energy(x, h, weights, config):
    given, x, h, weights = x.dtype, widen(x), widen(h), widen_all(weights)
    gate = h @ weights["W"].T
    return (-(gate * PHI[config.activation](x @ weights["V"].T)).sum(-1)).to(given)

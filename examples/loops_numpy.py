"""Every formula in NumPy, token by token and head by head: `cemverify check examples.loops_numpy:mine`.

Slow and plain. An energy is a sum over heads or hidden units, its gradient too, and a layer goes down that gradient.
All that the contract knows is here: three kinds of diagonal, four of positions, five preconditioners, four norms.
"""

import math
from typing import Any

import numpy as np

from cemverify import implementation

# --- attention: eps(x_i) = -tau sum_k log sum_j exp(beta_kj . x_i / tau + b_ijk), beta_kj = A_k h_j --------------


def attention(x: Any, h: Any, weights: Any, config: Any) -> Any:
    """x^(T): (B, J, D)."""
    x = x.copy()
    for _ in range(config.steps):
        moved = x.copy()
        for b, i in np.ndindex(x.shape[:2]):
            moved[b, i] += token_step(x[b, i], h[b, : i + 1], weights, config)
        x = moved
    return x


def decode(h: Any, weights: Any, config: Any) -> Any:
    """Attention of h on itself, one token after the other: each reads what came before and itself."""
    rows = [attention_row(h[:, i], h[:, : i + 1], weights, config) for i in range(h.shape[1])]
    return np.stack(rows, axis=1)


def attention_row(x: Any, past: Any, weights: Any, config: Any) -> Any:
    """The last token of a row: x (B, D), its past (B, S, D)."""
    x = x.copy()
    for _ in range(config.steps):
        for b in range(x.shape[0]):
            x[b] += token_step(x[b], past[b], weights, config)
    return x


def token_step(x: Any, past: Any, weights: Any, config: Any) -> Any:
    """eta sum_k P_k (-grad eps_k) of one token: x (D,), its past (S, D), itself last."""
    n = norm(x, weights, config)
    step = np.zeros_like(x)
    for k in range(config.heads):
        step += precondition(attention_direction(n, past, k, weights, config), k, weights, config)
    return config.step_size * step


def attention_direction(n: Any, past: Any, k: int, weights: Any, config: Any) -> Any:
    """sum_j a_kj beta_kj = W_Q^T R(i)^T sum_j a_kj key_j + d sum_j a_kj h_j: (D,)."""
    keys, logits = keys_and_logits(n, past, k, weights, config)
    a = np.exp(logits - logits.max())
    a /= a.sum()
    attended = rotated(a @ keys, -(len(past) - 1), config)
    return weights["W_Q"][k].T @ attended + diagonal(k, weights, config, n) * (a @ past)


def attention_energy(x: Any, h: Any, weights: Any, config: Any) -> Any:
    """eps at x: (B, J)."""
    energy = np.zeros_like(x[..., 0])
    for b, i, k in np.ndindex(*x.shape[:2], config.heads):
        _, logits = keys_and_logits(x[b, i], h[b, : i + 1], k, weights, config)
        top = logits.max()
        energy[b, i] -= config.tau * (top + np.log(np.exp(logits - top).sum()))
    return energy


def keys_and_logits(n: Any, past: Any, k: int, weights: Any, config: Any) -> Any:
    """Keys (S, R), which are the values too, and beta_kj . n / tau + b_j: (S,)."""
    i = len(past) - 1
    keys = np.stack([rotated(weights["W_K"][k] @ h, j, config) for j, h in enumerate(past)])
    query = rotated(weights["W_Q"][k] @ n, i, config)
    scores = keys @ query + past @ (diagonal(k, weights, config, n) * n)
    logits = scores / config.tau
    for j in range(len(past)):
        logits[j] += bias(i, j, k, weights, config)
    return keys, logits


def diagonal(k: int, weights: Any, config: Any, like: Any) -> Any:
    """d_k: (D,)."""
    if config.diagonal == "none":
        return np.zeros_like(like)
    return weights["diagonal"][k] if config.diagonal == "per-head" else weights["diagonal"]


def bias(i: int, j: int, k: int, weights: Any, config: Any) -> Any:
    """What is added to the logit of token j, as token i sees it."""
    if config.position == "alibi":
        return -slope(k, config.heads) * (i - j)
    if config.position == "self-cross":
        return weights["to_self"][k] if i == j else weights["to_others"][k]
    return 0.0


def slope(k: int, heads: int) -> float:
    """ALiBi's: 2^(-8/n), 2^(-16/n) ... for a power of two; the heads beyond one take every second of the next."""
    n = 2 ** math.floor(math.log2(heads))
    if k < n:
        return float(2.0 ** (-8 * (k + 1) / n))
    return float(2.0 ** (-4 * (2 * (k - n) + 1) / n))


def rotated(v: Any, position: int, config: Any) -> Any:
    """R(position) v, feature r turning with feature r + R/2; a negative position turns back."""
    if config.position != "rotary":
        return v
    half = len(v) // 2
    turned = np.empty_like(v)
    for r in range(half):
        angle = position * 10000.0 ** (-r / half)
        turned[r] = v[r] * math.cos(angle) - v[half + r] * math.sin(angle)
        turned[half + r] = v[half + r] * math.cos(angle) + v[r] * math.sin(angle)
    return turned


# --- the gated MLP: xi(x) = -sum_m (W h)_m phi((V x)_m), phi' = sigma ----------------------------------------


def mlp(x: Any, h: Any, weights: Any, config: Any) -> Any:
    """x^(T): (B, J, D)."""
    x = x.copy()
    sigma = np.vectorize(SIGMA[config.activation], otypes=[x.dtype])
    for _ in range(config.steps):
        for b, i in np.ndindex(x.shape[:2]):
            n = norm(x[b, i], weights, config)
            hidden = (weights["W"] @ h[b, i]) * sigma(weights["V"] @ n)  # (M,)
            x[b, i] += config.step_size * precondition(weights["V"].T @ hidden, 0, weights, config)
    return x


def mlp_energy(x: Any, h: Any, weights: Any, config: Any) -> Any:
    """xi at x: (B, J)."""
    sigma = SIGMA[config.activation]
    energy = np.zeros_like(x[..., 0])
    for b, i in np.ndindex(x.shape[:2]):
        phi = np.array([integral(sigma, float(z)) for z in weights["V"] @ x[b, i]])
        energy[b, i] = -((weights["W"] @ h[b, i]) @ phi)
    return energy


SIGMA = {
    "silu": lambda z: z / (1 + math.exp(-z)) if z > 0 else z * math.exp(z) / (1 + math.exp(z)),
    "gelu": lambda z: z * math.erfc(-z / math.sqrt(2)) / 2,
    "gelu-tanh": lambda z: z * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))) / 2,
    "relu": lambda z: max(z, 0.0),
    "relu2": lambda z: max(z, 0.0) ** 2,
    "sigmoid": lambda z: 1 / (1 + math.exp(-z)) if z > 0 else math.exp(z) / (1 + math.exp(z)),
    "tanh": math.tanh,
    "softplus": lambda z: max(z, 0.0) + math.log1p(math.exp(-abs(z))),
    "identity": lambda z: z,
}

NODES, SHARES = np.polynomial.legendre.leggauss(16)


def integral(sigma: Any, z: float) -> float:
    """phi(z), the integral of sigma from 0 to z, by Gauss-Legendre on panels no longer than one."""
    panels = max(1, math.ceil(abs(z)))
    width = z / panels
    return math.fsum(
        width / 2 * share * sigma(width * (p + (1 + node) / 2))
        for p in range(panels)
        for node, share in zip(NODES, SHARES, strict=True)
    )


# --- around both ---------------------------------------------------------------------------------------------------


def block(h: Any, weights: Any, config: Any) -> Any:
    """The pre-norm block: each half starts at h and reads N(h)."""
    for name, layer, own in (("attention", attention, config.attention), ("mlp", mlp, config.mlp)):
        mine = {key.removeprefix(f"{name}."): w for key, w in weights.items() if key.startswith(f"{name}.")}
        memory = h.copy()
        for b, i in np.ndindex(h.shape[:2]):
            memory[b, i] = norm(h[b, i], mine, own)
        h = layer(h, memory, mine, own)
    return h


def norm(x: Any, weights: Any, config: Any) -> Any:
    """RMSNorm of one token, if there is one inside the recursion: (D,)."""
    if config.norm == "none":
        return x
    return weights["gain"] * x / np.sqrt((x * x).mean() + config.norm_eps)


def precondition(g: Any, k: int, weights: Any, config: Any) -> Any:
    """P_k g; with a folded norm the gain comes first: (D,)."""
    if config.norm == "folded":
        g = weights["gain"] * g
    kind, own = config.preconditioner.kind, (k,) if config.preconditioner.per_head else ()
    if kind == "identity":
        return g
    d = weights["P_d"][own]
    S = np.maximum(d, 0) + np.log1p(np.exp(-np.abs(d)))  # softplus, (D,)
    if kind == "diagonal":
        return S * g
    U, V = weights["P_U"][own], weights["P_V"][own]  # (D, r)
    if kind == "low-rank-printed":
        return S * g + U @ (V.T @ g) + V @ (U.T @ g)
    # S^1/2 (I + c (U V^T + V U^T)) S^1/2 with c so small that it stays positive definite
    c = 0.99 / max(0.99, 2 * np.sqrt((U * U).sum()) * np.sqrt((V * V).sum()))
    g = np.sqrt(S) * g
    return np.sqrt(S) * (g + c * (U @ (V.T @ g) + V @ (U.T @ g)))


mine = implementation(
    attention=attention,
    mlp=mlp,
    block=block,
    decode=decode,
    attention_energy=attention_energy,
    mlp_energy=mlp_energy,
    arrays="numpy",
    not_offered=("validation",),
)

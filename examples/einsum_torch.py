"""Attention and MLP in einsums, with errors of their own: `cemverify check examples.einsum_torch:mine`.

Every diagonal and preconditioner, one function per formula; A_k is never formed. Like any careful layer, it answers
bad input with an error message instead of broadcasting it.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, einsum
from torch.nn import functional as F

from cemverify import implementation

Weights = Mapping[str, Tensor]


def attention(x: Tensor, h: Tensor, weights: Weights, config: Any) -> Tensor:
    K, D = config.heads, config.dim
    diagonal = (K, D) if config.diagonal == "per-head" else (D,)
    refuse(x, h, weights, config, {"W_Q": (K, config.R, D), "W_K": (K, config.R, D), "diagonal": diagonal})
    W_Q, keys = weights["W_Q"], einsum("krd,bjd->bkjr", weights["W_K"], h)
    J = h.shape[1]
    future = torch.full((J, J), -math.inf, dtype=x.dtype, device=x.device).triu(1)
    d = weights["diagonal"].expand(config.heads, -1) if "diagonal" in weights else None  # (K, D)
    for _ in range(config.steps):
        scores = einsum("krd,bid,bkjr->bkij", W_Q, x, keys)
        if d is not None:
            scores = scores + einsum("kd,bid,bjd->bkij", d, x, h)
        a = torch.softmax(scores / config.tau + future, dim=-1)
        direction = einsum("krd,bkij,bkjr->bkid", W_Q, a, keys)
        if d is not None:
            direction = direction + einsum("kd,bkij,bjd->bkid", d, a, h)
        x = x + config.step_size * precondition(direction, weights, config).sum(1)
    return x


def mlp(x: Tensor, h: Tensor, weights: Weights, config: Any) -> Tensor:
    refuse(x, h, weights, config, dict.fromkeys(("V", "W"), (config.hidden, config.dim)))
    V, gate = weights["V"], einsum("md,bjd->bjm", weights["W"], h)
    for _ in range(config.steps):
        hidden = gate * SIGMA[config.activation](einsum("md,bjd->bjm", V, x))
        direction = einsum("bjm,md->bjd", hidden, V)
        x = x + config.step_size * precondition(direction[:, None], weights, config).sum(1)
    return x


SIGMA: Mapping[str, Any] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu-tanh": lambda z: F.gelu(z, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda z: F.relu(z) ** 2,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": lambda z: torch.logaddexp(z, torch.zeros_like(z)),
    "identity": lambda z: z,
}


def precondition(g: Tensor, weights: Weights, config: Any) -> Tensor:
    """P_k g_k, one P for all heads or one for each: (B, K, J, D)."""
    kind = config.preconditioner.kind
    if kind == "identity":
        return g
    S = torch.logaddexp(weights["P_d"], torch.zeros_like(weights["P_d"])).expand(g.shape[1], -1)[:, None]  # (K, 1, D)
    if kind == "diagonal":
        return S * g
    U, V = (weights[name].expand(g.shape[1], -1, -1) for name in ("P_U", "P_V"))  # (K, D, r)
    if kind == "low-rank-printed":
        return S * g + crossed(g, U, V)
    size = torch.linalg.vector_norm(U, dim=(1, 2)) * torch.linalg.vector_norm(V, dim=(1, 2))  # (K,)
    c = 0.99 / torch.clamp(2 * size, min=0.99)[:, None, None]  # 1 where U or V is zero, and a gradient there too
    inner = S.sqrt() * g
    return S.sqrt() * (inner + c * crossed(inner, U, V))


def crossed(g: Tensor, U: Tensor, V: Tensor) -> Tensor:
    """(U V^T + V U^T) g."""
    return einsum("kdr,ker,bkje->bkjd", U, V, g) + einsum("kdr,ker,bkje->bkjd", V, U, g)


def refuse(x: Tensor, h: Tensor, weights: Weights, config: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises a sentence about whatever is wrong with the input."""
    if config.steps < 1 or not config.step_size > 0 or not getattr(config, "tau", 1.0) > 0:
        raise ValueError("steps, step size and temperature must be positive")
    if x.shape != h.shape:
        raise ValueError(f"x is {tuple(x.shape)} but h is {tuple(h.shape)}: they must be alike")
    p = config.preconditioner
    lead = (config.heads,) if p.per_head else ()
    shapes = {**shapes, "P_d": (*lead, config.dim), **dict.fromkeys(("P_U", "P_V"), (*lead, config.dim, p.rank))}
    for name, array in {"x": x, "h": h, **weights}.items():
        if not array.is_floating_point():
            raise TypeError(f"{name} must be floating point, not {array.dtype}")
        if name in weights and tuple(array.shape) != shapes[name]:
            raise ValueError(f"{name} must be {shapes[name]}, not {tuple(array.shape)}")
        if not bool(array.isfinite().all()):
            raise ValueError(f"{name} has NaN or infinite values")


# no function that looks at its numbers, for NaN say, can be mapped
mine = implementation(attention=attention, mlp=mlp, not_offered=("position", "norm", "vmap"))

"""CEM attention on PyTorch's fused kernel, with positions and a cache: `cemverify check examples.sdpa_torch:mine`.

`scaled_dot_product_attention(q, k, k)` is all it takes: the values are the keys. A bias is passed as an additive
mask. With rotary positions the *rotated* keys are the values, and the output is rotated back before W_Q^T
(docs/mathematics.md §13). The cache of decoding is one tensor, not two.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify import implementation


def attention(x: Tensor, h: Tensor, weights: Mapping[str, Tensor], config: Any) -> Tensor:
    keys = turn(project(h, weights["W_K"]), torch.arange(h.shape[1]), config, 1)  # (B, K, J, R)
    for _ in range(config.steps):
        x = x + config.step_size * direction(x, keys, weights, config)
    return x


def decode(h: Tensor, weights: Mapping[str, Tensor], config: Any) -> Tensor:
    cache: list[Tensor] = []  # one (B, K, 1, R) per token
    outputs = []
    for i in range(h.shape[1]):
        x = h[:, i : i + 1]
        cache.append(turn(project(x, weights["W_K"]), torch.tensor([i]), config, 1))
        keys = torch.cat(cache, dim=2)
        for _ in range(config.steps):
            x = x + config.step_size * direction(x, keys, weights, config)
        outputs.append(x)
    return torch.cat(outputs, dim=1)


def direction(x: Tensor, keys: Tensor, weights: Mapping[str, Tensor], config: Any) -> Tensor:
    """Minus the energy's gradient at x, the last tokens of the keys' row: (B, J, D)."""
    S = keys.shape[2]
    rows = torch.arange(S - x.shape[1], S, device=x.device)
    queries = turn(project(x, weights["W_Q"]), rows, config, 1)
    mask = bias(rows, torch.arange(S, device=x.device), weights, config).to(x)
    attended = F.scaled_dot_product_attention(queries, keys, keys, attn_mask=mask, scale=1 / config.tau)
    return torch.einsum("bkjr,krd->bjd", turn(attended, rows, config, -1), weights["W_Q"])


def project(states: Tensor, W: Tensor) -> Tensor:
    """(B, J, D), (K, R, D) -> (B, K, J, R)."""
    return torch.einsum("bjd,krd->bkjr", states, W)


def bias(rows: Tensor, columns: Tensor, weights: Mapping[str, Tensor], config: Any) -> Tensor:
    """What is added to the logits, minus infinity in the future: (K, J, S)."""
    distance = rows[:, None] - columns  # (J, S)
    b = torch.zeros(config.heads, *distance.shape, dtype=torch.float64, device=rows.device)
    if config.position == "alibi":
        b = b - slopes(config.heads).to(b)[:, None, None] * distance
    elif config.position == "self-cross":
        own, others = (weights[name][:, None, None].to(b) for name in ("to_self", "to_others"))
        b = b + torch.where(distance == 0, own, others)
    return b.masked_fill(distance < 0, -math.inf)


def slopes(heads: int) -> Tensor:
    """ALiBi's, (K,): powers of 2^(-8/n) for the largest power of two n, then odd powers of its square root."""
    n = 1 << (heads.bit_length() - 1)
    ratio = torch.tensor(2.0, dtype=torch.float64) ** (-8 / n)
    first = ratio ** torch.arange(1, n + 1)
    rest = ratio.sqrt() ** torch.arange(1, 2 * n, 2)
    return torch.cat((first, rest))[:heads]


def turn(states: Tensor, positions: Tensor, config: Any, sign: int) -> Tensor:
    """R(i) v_i for sign 1 and its transpose for -1, Llama's layout: (B, K, J, R)."""
    if config.position != "rotary":
        return states
    half = states.shape[-1] // 2
    plane = torch.arange(half, dtype=torch.float64, device=states.device) / half
    angle = positions.to(plane)[:, None] / 10000**plane  # (J, R/2)
    cos, sin = angle.cos().repeat(1, 2).to(states), (sign * angle.sin()).repeat(1, 2).to(states)
    swapped = torch.cat((-states[..., half:], states[..., :half]), dim=-1)
    return states * cos + swapped * sin


mine = implementation(
    attention=attention, decode=decode, not_offered=("diagonal", "preconditioner", "norm", "validation")
)

"""Kimi delta attention (arXiv 2510.26692): the gated delta rule with a gate of its own for each channel of the keys.

    R_t = diag(exp(g_t)) S_{t-1},    S_t = R_t - beta_t k_t (R_t^T k_t - v_t)^T,    o_t = S_t^T q_t / sqrt(K)

`cemverify check examples.online_layers.kimi_delta_attention:mine`
"""

from typing import Any

import torch
from torch import Tensor

from cemverify import online_layer

K, V = 4, 3


def kimi_delta_attention(S: Tensor | None, m: Any) -> tuple[Tensor, Tensor]:
    S = m.k.new_zeros(len(m.k), K, V) if S is None else S  # (B, K, V)
    outputs = []
    for q, k, v, beta, g in zip(*(a.unbind(1) for a in (m.q, m.k, m.v, m.beta, m.g)), strict=True):
        S = g.exp()[..., None] * S
        S = S + torch.einsum("b,bk,bv->bkv", beta, k, v - torch.einsum("bk,bkv->bv", k, S))
        outputs.append(torch.einsum("bk,bkv->bv", q * K**-0.5, S))
    return torch.stack(outputs, 1), S


mine = online_layer(
    update=kimi_delta_attention,
    loss=lambda S, m: ((torch.einsum("bk,bkv->bv", m.k, S) - m.v) ** 2).sum(-1) / 2,
    step_size=lambda _, m: m.beta,
    retain=lambda S, m: m.g.exp()[..., None] * S,
    gradient_at="retained",
    read=lambda S, m: torch.einsum("bk,bkv->bv", m.q, S) / K**0.5,
    state=(K, V),
    tokens={"q": ("J", K), "k": ("J", K), "v": ("J", V), "beta": ("J",), "g": ("J", K)},
    output=("J", V),
    domain={"k": "sphere", "beta": (0, 1), "g": (-5, 0)},
)

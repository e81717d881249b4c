"""Gated delta product (arXiv 2502.10297): two steps of the delta rule for each token, after forgetting once.

    R = exp(g_t) S_{t-1};    for each i:  R <- R - beta_ti k_ti (R^T k_ti - v_ti)^T;    S_t = R,    o_t = S_t^T q_t

`cemverify check examples.online_layers.delta_product:mine`
"""

from typing import Any

import torch
from torch import Tensor

from cemverify import online_layer

K, V, STEPS = 4, 3, 2


def delta_product(S: Tensor | None, m: Any) -> tuple[Tensor, Tensor]:
    S = m.k.new_zeros(len(m.k), K, V) if S is None else S  # (B, K, V)
    outputs = []
    for t in range(m.k.shape[1]):
        S = m.g[:, t].exp()[:, None, None] * S
        for i in range(STEPS):
            k, v, beta = m.k[:, t, i], m.v[:, t, i], m.beta[:, t, i]
            S = S + torch.einsum("b,bk,bv->bkv", beta, k, v - torch.einsum("bk,bkv->bv", k, S))
        outputs.append(torch.einsum("bk,bkv->bv", m.q[:, t], S))
    return torch.stack(outputs, 1), S


mine = online_layer(
    update=delta_product,
    loss=lambda S, m: ((torch.einsum("bk,bkv->bv", m.k, S) - m.v) ** 2).sum(-1) / 2,
    several=("k", "v", "beta"),
    step_size=lambda _, m: m.beta,
    retain=lambda S, m: m.g.exp()[:, None, None] * S,
    gradient_at="retained",
    read=lambda S, m: torch.einsum("bk,bkv->bv", m.q, S),
    state=(K, V),
    tokens={"q": ("J", K), "k": ("J", STEPS, K), "v": ("J", STEPS, V), "beta": ("J", STEPS), "g": ("J",)},
    output=("J", V),
    domain={"k": "sphere", "beta": (0, 2), "g": (-5, 0)},
)

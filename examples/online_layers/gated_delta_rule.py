"""The gated delta rule (Yang et al., arXiv 2412.06464): forget, then take the step from what is kept.

    R_t = exp(g_t) S_{t-1},    S_t = R_t - beta_t k_t (R_t^T k_t - v_t)^T,    o_t = S_t^T q_t / sqrt(K)

`cemverify check examples.online_layers.gated_delta_rule:mine`
"""

from typing import Any

import torch
from torch import Tensor

from cemverify import online_layer

K, V = 4, 3


def gated_delta_rule(S: Tensor | None, m: Any) -> tuple[Tensor, Tensor]:
    S = m.k.new_zeros(len(m.k), K, V) if S is None else S  # (B, K, V)
    outputs = []
    for t in range(m.k.shape[1]):
        S = m.g[:, t, None, None].exp() * S
        off = m.v[:, t, None] - m.k[:, t, None] @ S  # (B, 1, V)
        S = S + (m.beta[:, t, None] * m.k[:, t])[..., None] * off
        outputs.append(m.q[:, t, None] @ S / K**0.5)
    return torch.cat(outputs, 1), S


mine = online_layer(
    update=gated_delta_rule,
    loss=lambda S, m: ((torch.einsum("bk,bkv->bv", m.k, S) - m.v) ** 2).sum(-1) / 2,
    step_size=lambda _, m: m.beta,
    retain=lambda S, m: m.g.exp()[:, None, None] * S,
    gradient_at="retained",
    read=lambda S, m: torch.einsum("bk,bkv->bv", m.q, S) / K**0.5,
    state=(K, V),
    tokens={"q": ("J", K), "k": ("J", K), "v": ("J", V), "beta": ("J",), "g": ("J",)},
    output=("J", V),
    domain={"k": "sphere", "beta": (0, 2), "g": (-5, 0)},
)

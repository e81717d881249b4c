"""The delta rule (Yang et al., arXiv 2406.06484): each token is one step of least squares on its key and value.

    S_t = S_{t-1} - beta_t k_t (S_{t-1}^T k_t - v_t)^T,    o_t = S_t^T q_t

`cemverify check examples.online_layers.delta_rule:mine`
"""

from typing import Any

import torch
from torch import Tensor

from cemverify import online_layer

K, V = 4, 3


def delta_rule(S: Tensor | None, m: Any) -> tuple[Tensor, Tensor]:
    S = m.k.new_zeros(len(m.k), K, V) if S is None else S  # (B, K, V)
    outputs = []
    for q, k, v, beta in zip(m.q.unbind(1), m.k.unbind(1), m.v.unbind(1), m.beta.unbind(1), strict=True):
        off = torch.einsum("bk,bkv->bv", k, S) - v
        S = S - torch.einsum("b,bk,bv->bkv", beta, k, off)
        outputs.append(torch.einsum("bk,bkv->bv", q, S))
    return torch.stack(outputs, 1), S


mine = online_layer(
    update=delta_rule,
    loss=lambda S, m: ((torch.einsum("bk,bkv->bv", m.k, S) - m.v) ** 2).sum(-1) / 2,
    step_size=lambda _, m: m.beta,
    read=lambda S, m: torch.einsum("bk,bkv->bv", m.q, S),
    state=(K, V),
    tokens={"q": ("J", K), "k": ("J", K), "v": ("J", V), "beta": ("J",)},
    output=("J", V),
    domain={"k": "sphere", "beta": (0, 2)},
)

"""The delta rule with a diagonal preconditioner, positive and one for each channel of the keys.

    S_t = S_{t-1} - beta_t diag(p) k_t (S_{t-1}^T k_t - v_t)^T,    o_t = S_{t-1}^T q_t

`cemverify check examples.online_layers.preconditioned_delta_rule:mine`
"""

from typing import Any

import torch
from torch import Tensor

from cemverify import online_layer

K, V = 4, 3


def preconditioned(S: Tensor | None, m: Any) -> tuple[Tensor, Tensor]:
    S = m.k.new_zeros(len(m.k), K, V) if S is None else S  # (B, K, V)
    outputs = []
    for q, k, v, beta in zip(*(a.unbind(1) for a in (m.q, m.k, m.v, m.beta)), strict=True):
        outputs.append(torch.einsum("bk,bkv->bv", q, S))
        S = S - torch.einsum("b,bk,bv->bkv", beta, m.p * k, torch.einsum("bk,bkv->bv", k, S) - v)
    return torch.stack(outputs, 1), S


mine = online_layer(
    update=preconditioned,
    loss=lambda S, m: ((torch.einsum("bk,bkv->bv", m.k, S) - m.v) ** 2).sum(-1) / 2,
    step_size=lambda _, m: m.beta,
    preconditioner=lambda _, v, m: m.p[..., None] * v,
    read=lambda S, m: torch.einsum("bk,bkv->bv", m.q, S),
    reads="before",
    state=(K, V),
    tokens={"q": ("J", K), "k": ("J", K), "v": ("J", V), "beta": ("J",), "p": (K,)},
    output=("J", V),
    domain={"k": "sphere", "beta": (0, 1), "p": (0, 2)},
)

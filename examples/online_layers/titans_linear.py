"""Titans' memory as a linear map (Behrouz et al., arXiv 2501.00663): surprise with momentum, and forgetting.

    M_t = eta_t M_{t-1} - theta_t dl/dS(S_{t-1}, m_t),    S_t = (1 - alpha_t) S_{t-1} + M_t,    l = |S^T k - v|^2

`cemverify check examples.online_layers.titans_linear:mine`
"""

from typing import Any

import torch
from torch import Tensor

from cemverify import online_layer

K, V = 4, 3


def titans(x: Any, m: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    S, surprise = (m.k.new_zeros(len(m.k), K, V) for _ in range(2)) if x is None else x  # (B, K, V)
    outputs = []
    for q, k, v, theta, eta, alpha in zip(*(a.unbind(1) for a in m), strict=True):
        gradient = 2 * k[..., None] * (torch.einsum("bk,bkv->bv", k, S) - v)[:, None]
        surprise = eta[:, None, None] * surprise - theta[:, None, None] * gradient
        S = (1 - alpha)[:, None, None] * S + surprise
        outputs.append(torch.einsum("bk,bkv->bv", q, S))
    return torch.stack(outputs, 1), (S, surprise)


mine = online_layer(
    update=titans,
    loss=lambda S, m: ((torch.einsum("bk,bkv->bv", m.k, S) - m.v) ** 2).sum(-1),
    step_size=lambda _, m: m.theta,
    momentum=lambda _, m: m.eta,
    last_step={"S": "M"},
    retain=lambda S, m: (1 - m.alpha)[:, None, None] * S,
    read=lambda S, m: torch.einsum("bk,bkv->bv", m.q, S),
    state={"S": (K, V), "M": (K, V)},
    tokens={"q": ("J", K), "k": ("J", K), "v": ("J", V), "theta": ("J",), "eta": ("J",), "alpha": ("J",)},
    output=("J", V),
    domain={"k": "sphere", "theta": (0, 0.4), "eta": (0, 0.9), "alpha": (0, 1)},
)

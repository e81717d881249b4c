"""TTT-linear (Sun et al., arXiv 2407.04620): mini-batches of tokens, whose gradients are taken at their first state.

    l = |LN(S^T k + b) - (v - k)|^2 / 2,    o = q + LN(S^T q + b),    LN the layer norm with gain w and shift c

`cemverify check examples.online_layers.ttt_linear:mine`
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from cemverify import online_layer

BATCH, D = 4, 6


def predicted(S: Tensor, b: Tensor, k: Tensor, m: Any) -> Tensor:
    return torch.addcmul(m.c[:, None], layer_norm(k @ S + b[:, None], (D,), eps=1e-6), m.w[:, None])  # (B, C, D)


def ttt(x: Any, m: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    S, b = (m.k.new_zeros(len(m.k), D, D), m.k.new_zeros(len(m.k), D)) if x is None else x
    outputs = []
    for q, k, v, eta in zip(*(a.split(BATCH, 1) for a in (m.q, m.k, m.v, m.eta)), strict=True):
        z = k @ S + b[:, None]  # (B, C, D)
        one = (z - z.mean(-1, keepdim=True)) * (z.var(-1, correction=0, keepdim=True) + 1e-6).rsqrt()
        off = m.w[:, None] * (m.w[:, None] * one + m.c[:, None] - (v - k))
        off = off - off.mean(-1, keepdim=True) - one * (off * one).mean(-1, keepdim=True)
        step = -eta[..., None] * off * (z.var(-1, correction=0, keepdim=True) + 1e-6).rsqrt()  # (B, C, D)
        there = q @ S + (q @ k.mT).tril() @ step + b[:, None] + step.cumsum(1)
        outputs.append(q + m.w[:, None] * layer_norm(there, (D,), eps=1e-6) + m.c[:, None])
        S, b = S + k.mT @ step, b + step.sum(1)
    return torch.cat(outputs, 1), (S, b)


def of_one(x: Any, k: Tensor, m: Any) -> Tensor:
    return predicted(x.S, x.b, k[:, None], m)[:, 0]


mine = online_layer(
    update=ttt,
    loss=lambda x, m: ((of_one(x, m.k, m) - (m.v - m.k)) ** 2).sum(-1) / 2,
    step_size=lambda _, m: m.eta,
    gradient_at=BATCH,
    read=lambda x, m: m.q + of_one(x, m.q, m),
    state={"S": (D, D), "b": (D,)},
    tokens={"q": ("J", D), "k": ("J", D), "v": ("J", D), "eta": ("J",), "w": (D,), "c": (D,)},
    output=("J", D),
    domain={"eta": (0, 1)},
)

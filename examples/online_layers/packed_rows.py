"""The gated delta rule on rows of many lengths: laid end to end (as with `cu_seqlens`), or padded.

A token that is padding has no step and forgets nothing: beta = 0 and g = 0.

`cemverify check examples.online_layers.packed_rows:mine`
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from cemverify import online_layer

K, V = 4, 3


def gated_delta_rule(S: Tensor | None, m: Any) -> tuple[Tensor, Tensor]:
    S = m.k.new_zeros(len(m.k), K, V) if S is None else S  # (B, K, V)
    outputs = []
    for q, k, v, beta, g in zip(*(a.unbind(1) for a in (m.q, m.k, m.v, m.beta, m.g)), strict=True):
        S = g.exp()[:, None, None] * S
        S = S + torch.einsum("b,bk,bv->bkv", beta, k, v - torch.einsum("bk,bkv->bv", k, S))
        outputs.append(torch.einsum("bk,bkv->bv", q, S))
    return torch.stack(outputs, 1), S


def packed(S: Tensor | None, m: Any, bounds: Tensor) -> tuple[Tensor, Tensor]:
    rows = []
    for i, (begin, end) in enumerate(pairwise(bounds.tolist())):
        row = m._replace(**{name: a[:, begin:end] for name, a in m._asdict().items()})
        rows.append(gated_delta_rule(None if S is None else S[i : i + 1], row))
    return torch.cat([o for o, _ in rows], 1), torch.cat([S for _, S in rows])


def padded(S: Tensor | None, m: Any, mask: Tensor) -> tuple[Tensor, Tensor]:
    return gated_delta_rule(S, m._replace(beta=m.beta * mask, g=m.g * mask))


mine = online_layer(
    update=gated_delta_rule,
    update_packed=packed,
    update_padded=padded,
    loss=lambda S, m: ((torch.einsum("bk,bkv->bv", m.k, S) - m.v) ** 2).sum(-1) / 2,
    step_size=lambda _, m: m.beta,
    retain=lambda S, m: m.g.exp()[:, None, None] * S,
    gradient_at="retained",
    read=lambda S, m: torch.einsum("bk,bkv->bv", m.q, S),
    state=(K, V),
    tokens={"q": ("J", K), "k": ("J", K), "v": ("J", V), "beta": ("J",), "g": ("J",)},
    output=("J", V),
    domain={"k": "sphere", "beta": (0, 1), "g": (-5, 0)},
)

"""Linear attention with decay (Sun et al., arXiv 2307.08621; Yang et al., arXiv 2312.06635), all tokens at once.

    S_t = a_t S_{t-1} + k_t v_t^T,    o_t = S_t^T q_t,    a step down -v_t . S^T k_t from what is kept

`cemverify check examples.online_layers.linear_attention:mine`
"""

from typing import Any

import torch
from torch import Tensor

from cemverify import online_layer

K, V = 4, 3


def in_parallel(S: Tensor | None, m: Any) -> tuple[Tensor, Tensor]:
    S = m.k.new_zeros(len(m.k), K, V) if S is None else S  # (B, K, V)
    # in bfloat16 a sum of hundreds has no digits left for the differences
    kept = m.log_decay.cumsum(1, dtype=torch.promote_types(m.k.dtype, torch.float32))  # (B, J)
    weights = (kept[:, :, None] - kept[:, None]).tril().exp().tril().to(m.k)  # (B, J, J): a_t ... a_{s+1}
    outputs = (m.q @ m.k.mT * weights) @ m.v + kept.exp().to(S)[..., None] * (m.q @ S)
    left = (kept[:, -1:] - kept).exp().to(m.k)[..., None]  # of each token, at the end
    return outputs, kept[:, -1:].exp().to(S)[..., None] * S + (left * m.k).mT @ m.v


mine = online_layer(
    update=in_parallel,
    loss=lambda S, m: -torch.einsum("bk,bkv,bv->b", m.k, S, m.v),
    retain=lambda S, m: m.log_decay.exp()[:, None, None] * S,
    read=lambda S, m: torch.einsum("bk,bkv->bv", m.q, S),
    state=(K, V),
    tokens={"q": ("J", K), "k": ("J", K), "v": ("J", V), "log_decay": ("J",)},
    output=("J", V),
    domain={"log_decay": (-5, 0)},
)

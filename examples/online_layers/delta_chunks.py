"""The delta rule in chunks, by the UT transform (Yang et al., arXiv 2406.06484, Sec. 3).

Within a chunk, T = (I + tril(diag(beta) K K^T, -1))^{-1} diag(beta) solves all its steps together: the rows of
U = T V - T K S are the corrections beta_t (v_t - S_{t-1}^T k_t).

`cemverify check examples.online_layers.delta_chunks:mine`
"""

from typing import Any

import torch
from torch import Tensor

from cemverify import online_layer

CHUNK, K, V = 16, 4, 3


def in_chunks(S: Tensor | None, m: Any) -> tuple[Tensor, Tensor]:
    S = m.k.new_zeros(len(m.k), K, V) if S is None else S  # (B, K, V)
    outputs = []
    for q, k, v, beta in zip(*(a.split(CHUNK, 1) for a in (m.q, m.k, m.v, m.beta[..., None])), strict=True):
        one = torch.eye(k.shape[1], dtype=k.dtype)
        T = torch.linalg.solve_triangular(one + (beta * (k @ k.mT)).tril(-1), beta * one, upper=False)
        U = T @ v - T @ k @ S  # (B, C, V)
        outputs.append(q @ S + (q @ k.mT).tril() @ U)
        S = S + k.mT @ U
    return torch.cat(outputs, 1), S


mine = online_layer(
    update=in_chunks,
    loss=lambda S, m: ((torch.einsum("bk,bkv->bv", m.k, S) - m.v) ** 2).sum(-1) / 2,
    step_size=lambda _, m: m.beta,
    read=lambda S, m: torch.einsum("bk,bkv->bv", m.q, S),
    state=(K, V),
    tokens={"q": ("J", K), "k": ("J", K), "v": ("J", V), "beta": ("J",)},
    output=("J", V),
    domain={"k": "sphere", "beta": (0, 1)},
    not_offered=("dtype:bfloat16",),  # torch has no solver for it
)

"""The delta rule in chunks (Yang et al., arXiv 2406.06484), and the loop that it replaces as its stated reference.

    S_t = S_{t-1} - beta_t k_t (k_t^T S_{t-1} - v_t^T),    a step down |S^T k_t - v_t|^2 / 2 for each token

Within a chunk the steps are solved together: U - W S has in its rows the corrections of all tokens.

`cemverify check examples.energy_layers.delta_chunks:mine`
"""

from typing import Any

import torch
from torch import Tensor

from cemverify import energy_layer

CHUNK, KEYS, VALUES = 16, 4, 3


def loop(S: Tensor, m: Any) -> Tensor:  # S (B, KEYS, VALUES)
    for k, v, beta in zip(m.k.unbind(1), m.v.unbind(1), m.beta.unbind(1), strict=True):
        off = torch.einsum("bk,bkv->bv", k, S) - v
        S = S - torch.einsum("b,bk,bv->bkv", beta, k, off)
    return S


def in_chunks(S: Tensor, m: Any) -> Tensor:
    for start in range(0, m.k.shape[1], CHUNK):
        k, v, beta = (a[:, start : start + CHUNK] for a in (m.k, m.v, m.beta[..., None]))  # (B, C, ...)
        one = torch.eye(k.shape[1], dtype=k.dtype)
        T = torch.linalg.solve_triangular(one + (beta * (k @ k.mT)).tril(-1), beta * one, upper=False)
        S = S + k.mT @ (T @ v - T @ k @ S)
    return S


mine = energy_layer(
    update=in_chunks,
    reference=loop,
    state=(KEYS, VALUES),
    memory={"k": ("J", KEYS), "v": ("J", VALUES), "beta": ("J",)},
    domain={"k": "sphere", "beta": (0, 1)},
    returns="next state",
    not_offered=("dtype:bfloat16",),  # there is no solver for it
)

"""MesaNet's layer (arXiv 2506.05233): the ridge regression of all pairs so far, solved at each token.

    H_t = gamma_t H_{t-1} + beta_t k_t k_t^T,    G_t = gamma_t G_{t-1} + beta_t v_t k_t^T
    o_t = G_t (H_t + diag(lambda))^{-1} q_t

Both sums are steps on losses that are linear in the state. What is solved is what is read.

`cemverify check examples.online_layers.mesa_net:mine`
"""

from typing import Any

import torch
from torch import Tensor

from cemverify import online_layer

K, V = 4, 3


def mesa_net(state: Any, m: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """All tokens at once: the sums by a matrix of cumulative decays, the solves by Cholesky."""
    decays = m.g.cumsum(1)  # (B, J)
    weights = (decays[:, :, None] - decays[:, None, :]).tril().exp().tril() * m.beta[:, None, :]  # (B, J, J)
    H = torch.einsum("bji,bik,bil->bjkl", weights, m.k, m.k)
    G = torch.einsum("bji,biv,bik->bjvk", weights, m.v, m.k)
    if state is not None:
        H, G = (sums + decays.exp()[..., None, None] * first[:, None] for sums, first in ((H, state.H), (G, state.G)))
    factor = torch.linalg.cholesky(H + torch.diag_embed(m.ridge)[:, None])
    solved = torch.cholesky_solve(m.q[..., None], factor)  # (B, J, K, 1)
    return (G @ solved)[..., 0], (H[:, -1], G[:, -1])


def read(S: Any, m: Any) -> Tensor:
    solved = torch.linalg.solve(S.H + torch.diag_embed(m.ridge), m.q)
    return torch.einsum("bvk,bk->bv", S.G, solved)


def kept(S: Any, m: Any) -> tuple[Tensor, Tensor]:
    return m.g.exp()[:, None, None] * S.H, m.g.exp()[:, None, None] * S.G


def positive(A: Tensor) -> Tensor:
    """The nearest positive semidefinite matrices, of (B, K, K)."""
    values, vectors = torch.linalg.eigh((A + A.mT) / 2)
    nearest: Tensor = vectors @ torch.diag_embed(values.clamp(min=0)) @ vectors.mT
    return nearest


mine = online_layer(
    update=mesa_net,
    loss=lambda S, m: -torch.einsum("bk,bkl,bl->b", m.k, S.H, m.k) - torch.einsum("bv,bvk,bk->b", m.v, S.G, m.k),
    step_size=lambda _, m: m.beta,
    retain=kept,
    read=read,
    state={"H": (K, K), "G": (V, K)},
    tokens={"q": ("J", K), "k": ("J", K), "v": ("J", V), "beta": ("J",), "g": ("J",), "ridge": (K,)},
    output=("J", V),
    not_offered=("dtype:bfloat16",),  # which torch's Cholesky does not take
    domain={"H": positive, "k": "sphere", "beta": (0, 1), "g": (-5, 0), "ridge": (0.25, 4)},
)

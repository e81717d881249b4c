"""A layer whose every token is a step, for the verifier: `cemverify check online_layer:mine`.

Its state takes a step down the loss of each token in turn. This one is correct as it stands: it is the delta rule, a
least-squares step for each key and value. Put your own layer in its place, and declare what its paper says.

B batch, J tokens, K features of a key, V of a value.
"""

from typing import Any

import torch
from torch import Tensor

from cemverify import online_layer

K, V = 4, 3  # keep them small: a fault shows in few dimensions, and is easy to read there


def update(S: Tensor | None, tokens: Any) -> tuple[Tensor, Tensor]:
    """The outputs of a row (B, J, V), and its last state (B, K, V); S is the state before it, or None for zeros."""
    if S is None:
        S = tokens.k.new_zeros(len(tokens.k), K, V)
    outputs = []
    for t in range(tokens.k.shape[1]):
        q, k, v, beta = tokens.q[:, t], tokens.k[:, t], tokens.v[:, t], tokens.beta[:, t]
        off = torch.einsum("bk,bkv->bv", k, S) - v
        S = S - torch.einsum("b,bk,bv->bkv", beta, k, off)
        outputs.append(torch.einsum("bk,bkv->bv", q, S))
    return torch.stack(outputs, 1), S


def loss(S: Tensor, token: Any) -> Tensor:
    """What the step of one token goes down: (B, K, V), a token's arrays without the axis J -> (B,)."""
    off = torch.einsum("bk,bkv->bv", token.k, S) - token.v
    squares: Tensor = (off * off).sum(-1)
    return squares / 2


def read(S: Tensor, token: Any) -> Tensor:
    """The output of one token: (B, K, V) -> (B, V)."""
    return torch.einsum("bk,bkv->bv", token.q, S)


# Declare what is true of your layer: forgetting, momentum, mini-batches, a preconditioner, ...
# docs/online-layers.md lists the arguments.
mine = online_layer(
    update=update,
    loss=loss,
    read=read,
    step_size=lambda _, token: token.beta,
    state=(K, V),
    tokens={"q": ("J", K), "k": ("J", K), "v": ("J", V), "beta": ("J",)},
    output=("J", V),
    domain={"k": "sphere", "beta": (0, 1)},
)

"""The delta rule in NumPy, whose loss is differentiated by differences.

`cemverify check examples.online_layers.delta_numpy:mine`
"""

from typing import Any

import numpy as np

from cemverify import online_layer

K, V = 4, 3


def delta_rule(S: Any, m: Any) -> tuple[Any, Any]:
    S = np.zeros((len(m.k), K, V), m.k.dtype) if S is None else S  # (B, K, V)
    outputs = np.empty_like(m.v)
    for t in range(m.k.shape[1]):
        off = np.einsum("bk,bkv->bv", m.k[:, t], S) - m.v[:, t]
        S = S - np.einsum("b,bk,bv->bkv", m.beta[:, t], m.k[:, t], off)
        outputs[:, t] = np.einsum("bk,bkv->bv", m.q[:, t], S)
    return outputs, S


mine = online_layer(
    update=delta_rule,
    loss=lambda S, m: ((np.einsum("bk,bkv->bv", m.k, S) - m.v) ** 2).sum(-1) / 2,
    step_size=lambda _, m: m.beta,
    read=lambda S, m: np.einsum("bk,bkv->bv", m.q, S),
    state=(K, V),
    tokens={"q": ("J", K), "k": ("J", K), "v": ("J", V), "beta": ("J",)},
    output=("J", V),
    domain={"k": "sphere", "beta": (0, 1)},
    arrays="numpy",
)

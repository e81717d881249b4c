"""CEM attention in ten lines of NumPy, ready to be judged: `cemverify check examples.attention_numpy:mine`."""

from typing import Any

import numpy as np

from cemverify import implementation


def attention(x: Any, h: Any, weights: Any, config: Any) -> Any:
    W_Q, W_K = weights["W_Q"], weights["W_K"]  # (K, R, D)
    keys = np.einsum("krd,bjd->bkjr", W_K, h)  # (B, K, J, R), which are the values too
    future = np.triu(np.full((h.shape[1], h.shape[1]), -np.inf, x.dtype), 1)
    for _ in range(config.steps):
        scores = np.einsum("krd,bid,bkjr->bkij", W_Q, x, keys) / config.temperature + future
        a = np.exp(scores - scores.max(-1, keepdims=True))
        a /= a.sum(-1, keepdims=True)
        x = x + config.step_size * np.einsum("krd,bkij,bkjr->bid", W_Q, a, keys)
    return x


absent = ("diagonal", "position", "preconditioner", "norm", "validation")
mine = implementation(attention=attention, arrays="numpy", not_offered=absent)

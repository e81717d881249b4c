"""CEM layers for the verifier: `cemverify check cem_layer:mine`.

This file is correct as it stands. Replace the body of each function with a call to your code, and drop the function
that you do not have.

B batch, J tokens, D model dimension, K heads, R head dimension, M hidden units.
"""

from typing import Any

import numpy as np
from scipy.special import expit

from cemverify import implementation


def attention(x: Any, h: Any, weights: Any, config: Any) -> Any:
    """Takes `config.steps` steps from the state x, with the memory h: (B, J, D), (B, J, D) -> (B, J, D)."""
    W_Q, W_K = weights["W_Q"], weights["W_K"]  # (K, R, D) each
    keys = np.einsum("krd,bjd->bkjr", W_K, h)  # (B, K, J, R): the values too
    later = np.triu(np.full((h.shape[1], h.shape[1]), -np.inf, x.dtype), 1)  # (J, J)
    for _ in range(config.steps):
        scores = np.einsum("krd,bid,bkjr->bkij", W_Q, x, keys) / config.temperature + later  # (B, K, J, J)
        a = np.exp(scores - scores.max(-1, keepdims=True))
        a /= a.sum(-1, keepdims=True)
        x = x + config.step_size * np.einsum("krd,bkij,bkjr->bid", W_Q, a, keys)
    return x


def mlp(x: Any, h: Any, weights: Any, config: Any) -> Any:
    """Takes `config.steps` steps from the state x, with the memory h: (B, J, D), (B, J, D) -> (B, J, D)."""
    V, W = weights["V"], weights["W"]  # (M, D) each
    gate = h @ W.T  # (B, J, M)
    for _ in range(config.steps):
        z = x @ V.T  # (B, J, M)
        x = x + config.step_size * (gate * z * expit(z)) @ V  # config.activation is "silu"
    return x


# The features that these functions lack. Delete what yours have: everything that is not named here is tested.
# `cemverify list --features` explains the names.
absent = (
    *("diagonal", "position", "preconditioner", "norm", "validation"),
    *("activation:gelu", "activation:gelu-tanh", "activation:relu", "activation:relu2", "activation:sigmoid"),
    *("activation:tanh", "activation:softplus", "activation:identity"),
)
mine = implementation(attention=attention, mlp=mlp, arrays="numpy", not_offered=absent)

"""A diagonal in A_k through wider heads of the fused kernel: `cemverify check examples.augmented_sdpa:mine`.

With A_k = W_Q^T W_K + diag(d_k) the logit is x . A_k h = [W_Q x; d_k * x] . [W_K h; h]: a head of R + D features. Its
value is the same [W_K h; h], of which the first R leave through W_Q^T and the last D through d_k. One call, exact,
and K times the cost of the D extra features: good as a check, not as a layer (docs/mathematics.md §14).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify import implementation


def attention(x: Tensor, h: Tensor, weights: Mapping[str, Tensor], config: Any) -> Tensor:
    W_Q, W_K, K = weights["W_Q"], weights["W_K"], config.heads  # (K, R, D)
    keys = torch.einsum("krd,bjd->bkjr", W_K, h)
    if config.diagonal == "none":
        augment = W_Q  # (K, R, D)
    else:
        d = weights["diagonal"].expand(K, -1)  # (K, D)
        augment = torch.cat((W_Q, torch.diag_embed(d)), dim=1)  # (K, R + D, D)
        keys = torch.cat((keys, h[:, None].expand(-1, K, -1, -1)), dim=-1)
    for _ in range(config.steps):
        queries = torch.einsum("krd,bjd->bkjr", augment, x)
        attended = F.scaled_dot_product_attention(queries, keys, keys, is_causal=True, scale=1 / config.tau)
        x = x + config.step_size * torch.einsum("krd,bkjr->bjd", augment, attended)
    return x


absent = ("position", "preconditioner", "norm", "validation")
# torch.compile (2.13) raises where D = 1: it takes a view of an array whose strides are others than it assumes
mine = implementation(attention=attention, not_offered=(*absent, "compile"))

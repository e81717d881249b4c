"""ALiBi as three more features of queries and keys, for torch's fused attention, which is slow with a bias.

    tau m_k j = f_1 + f_2 + f_3,   (x, 1, 1, 1) . (k_j, f_1, f_2, f_3) / tau = x . k_j / tau + m_k j

A term that is the same in a whole row does not change its softmax, so m_k j serves as m_k (j - i). Three bfloat16
numbers hold as much as one of float32, and products are summed in float32, so attention is as close to float64 as
without ALiBi. In float32 it would not be, because scores in the thousands lose digits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify.cem.devices import kind
from cemverify.cem.positions import Alibi

# The devices on which ALiBi is given as features; on a CPU tiles are as fast.
FEATURES_ON = {"cuda"}
TERMS = 3
# The widest heads of FlashAttention-2. It has kernels for 32, 64, 96, 128, 192 and 256 features; others take the
# next: with three more features, a head of 64 needs the kernel of 96, and one of 72 or 84 the same as before.
WIDEST = 256


@dataclass(frozen=True, eq=False)
class FeaturedKeys:
    """Keys with their features.

    Attributes:
        keys: (B, K, S, R + 3 and some zeros, a multiple of 8, as kernels need).
        temperature: tau, by which the scores are divided.
    """

    keys: Tensor
    temperature: float


def fits(keys: Tensor) -> bool:
    """Whether features are as exact as a bias for keys (B, K, S, R), and fused attention takes them."""
    narrow = keys.dtype in (torch.bfloat16, torch.float16)
    return kind(keys) in FEATURES_ON and narrow and keys.shape[2] > 1 and keys.shape[3] + TERMS <= WIDEST


def featured(keys: Tensor, bias: Alibi, temperature: float) -> FeaturedKeys:
    """The keys (B, K, S, R) of causal attention with ALiBi."""
    B, K, S, R = keys.shape
    columns = torch.arange(1 - S, 1, device=keys.device)  # small where most rows attend most
    left = -bias.sign * temperature * bias.slopes.double()[:, None] * columns  # (K, S)
    terms = []
    for _ in range(TERMS):
        terms.append(left.to(keys.dtype))
        left = left - terms[-1]
    terms += [torch.zeros_like(terms[0])] * (-(R + TERMS) % 8)
    return FeaturedKeys(torch.cat((keys, torch.stack(terms, -1).expand(B, K, S, -1)), -1), temperature)


def attention(queries: Tensor, to: FeaturedKeys, values: Tensor | None = None) -> Tensor:
    """Causal attention of queries (B, K, S, R) to keys that are also the values, or to other values: (B, K, S, R)."""
    R, wide = queries.shape[-1], to.keys.shape[-1]
    ones = (torch.arange(wide - R, device=queries.device) < TERMS).to(queries.dtype)
    queries = torch.cat((queries, ones.expand(*queries.shape[:-1], -1)), -1)
    values = to.keys if values is None else F.pad(values, (0, wide - R))
    attended = F.scaled_dot_product_attention(queries, to.keys, values, is_causal=True, scale=1 / to.temperature)
    return attended[..., :R]

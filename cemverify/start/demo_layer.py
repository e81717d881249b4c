"""The attention of `cemverify demo`: once with an easy mistake, once fixed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, einsum

from cemverify.conformance.implementations.contract import implementation


def mistaken(x: Tensor, h: Tensor, weights: Mapping[str, Tensor], config: Any) -> Tensor:
    W_Q, W_K = weights["W_Q"], weights["W_K"]  # (K, R, D)
    keys = einsum("krd,bjd->bkjr", W_K, h)
    later = torch.full((h.shape[1], h.shape[1]), -torch.inf, dtype=h.dtype).triu(1)
    for _ in range(config.steps):
        scores = einsum("krd,bid,bkjr->bkij", W_Q, x, keys)
        a = torch.softmax(scores / config.temperature + later, dim=-1)
        x = x + config.step_size * einsum("krd,bkij,bkjr->bid", W_K, a, keys)
    return x


def fixed(x: Tensor, h: Tensor, weights: Mapping[str, Tensor], config: Any) -> Tensor:
    W_Q, W_K = weights["W_Q"], weights["W_K"]  # (K, R, D)
    keys = einsum("krd,bjd->bkjr", W_K, h)
    later = torch.full((h.shape[1], h.shape[1]), -torch.inf, dtype=h.dtype).triu(1)
    for _ in range(config.steps):
        scores = einsum("krd,bid,bkjr->bkij", W_Q, x, keys)
        a = torch.softmax(scores / config.temperature + later, dim=-1)
        x = x + config.step_size * einsum("krd,bkij,bkjr->bid", W_Q, a, keys)
    return x


ABSENT = ("diagonal", "position", "preconditioner", "norm", "validation")
with_mistake = implementation(attention=mistaken, not_offered=ABSENT)
without = implementation(attention=fixed, not_offered=ABSENT)

"""What a language model costs, before it is trained: counted on the meta device, where nothing is computed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from cemverify.cem.models import LanguageModel, LanguageModelConfig
from synthetic.flops import matmul_flops


@dataclass(frozen=True)
class Cost:
    """What one predicted token costs in matrix products, causal attention counted as if dense.

    Attributes:
        forward: FLOPs of predicting. training: of predicting and of the backward pass.
    """

    forward: float
    training: float


def on_meta(config: LanguageModelConfig) -> LanguageModel:
    """The model without storage: shapes and counts only."""
    with torch.device("meta"):
        return LanguageModel(config, torch.Generator("cpu"))


def parameters(config: LanguageModelConfig) -> int:
    """How many a model has; a tied weight counts once."""
    return sum(parameter.numel() for parameter in on_meta(config).parameters())


@cache
def cost(config: LanguageModelConfig, context: int) -> Cost:
    """The cost per token in windows of J = context tokens."""
    return cost_of(on_meta(config), context)


def cost_of(model: LanguageModel, context: int) -> Cost:
    """The cost per token of a model on the meta device, in windows of J = context tokens."""
    with torch.device("meta"):
        tokens = torch.zeros(1, context, dtype=torch.int64)
    logits: list[Any] = []
    forward = matmul_flops(lambda: logits.append(model(tokens)))
    backward = matmul_flops(lambda: logits[0].sum().backward())
    return Cost(forward / context, (forward + backward) / context)

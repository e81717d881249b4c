"""How a language model is trained: the paper's Table 2, and what one may change of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from cemverify.console.errors import UsageError


@dataclass(frozen=True)
class Recipe:
    """AdamW, a linear warm-up and a cosine; the defaults are the paper's (Table 2)."""

    steps: int  # optimiser steps, one batch each
    batch: int  # B, over all processes
    context: int  # J
    accumulate: int = 1  # the number of passes in which a process's share of a batch goes through the model
    learning_rate: float = 2e-3  # at the end of the warm-up
    final: float = 0.1  # the share of that left at the end of the cosine
    warm_up: float = 0.05  # the share of the steps in which it rises linearly
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-9
    weight_decay: float = 0.1  # of matrices (`training.adamw`)
    embedding_decay: float = 0.1  # of the embedding, also a matrix
    clip: float = 1.0  # the largest norm of the gradient
    # "bfloat16": matrix products in bfloat16, parameters in float32; "float64" is for yardsticks
    precision: Literal["float32", "bfloat16", "float64"] = "float32"

    @property
    def tokens(self) -> int:
        """The number of tokens predicted in training."""
        return self.steps * self.batch * self.context

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of step 0 ... steps-1."""
        rising = max(1, round(self.warm_up * self.steps))
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        progress = (step - rising) / max(1, self.steps - 1 - rising)
        return self.learning_rate * (self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2)


def check_heads(dim: int, heads: int) -> None:
    """Refuses head dimensions that rotary positions cannot rotate."""
    if dim % heads or dim // heads % 2:
        raise UsageError(
            f"{heads} heads do not split a model dimension of {dim} into equal, even parts, as rotary positions need;"
            " choose --dim as an even multiple of --heads"
        )

"""How a language model is trained: the paper's Table 2."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from cemverify.errors import UsageError


@dataclass(frozen=True)
class Recipe:
    """AdamW, a linear warm-up and a cosine; the defaults are the paper's (Table 2).

    Attributes:
        steps: optimiser steps, one batch each. batch, context: B, over all processes, and J.
        accumulate: in how many passes a process's share of a batch goes through the model.
        learning_rate: at the end of the warm-up; final: the share of it at the end of the cosine.
        warm_up: the share of the steps that rise linearly.
        weight_decay: on matrices only (`training.adamw`). clip: the largest norm of the gradient.
        precision: "bfloat16" multiplies matrices in it and keeps float32 parameters; "float64" is for yardsticks.

    Raises:
        UsageError: a number is out of its range.
    """

    steps: int
    batch: int
    context: int
    accumulate: int = 1
    learning_rate: float = 2e-3
    final: float = 0.1
    warm_up: float = 0.05
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-9
    weight_decay: float = 0.1
    clip: float = 1.0
    precision: Literal["float32", "bfloat16", "float64"] = "float32"

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "context", "accumulate"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} must be at least 1, not {getattr(self, name)}")

    @property
    def tokens(self) -> int:
        """How many tokens are predicted in training."""
        return self.steps * self.batch * self.context

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of step 0 ... steps-1."""
        rising = max(1, round(self.warm_up * self.steps))
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        progress = (step - rising) / max(1, self.steps - 1 - rising)
        return self.learning_rate * (self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2)

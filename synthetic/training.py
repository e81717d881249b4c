"""Training a regressor: AdamW on the squared error, mini-batches drawn by a given generator, best weights kept.

The last points of the training set are held out and choose the weights. Without that the number of steps
would decide which depth wins: shallow models still learn when deep ones already learn the noise.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from synthetic.errors import UsageError


@dataclass(frozen=True)
class TrainingConfig:
    """How a regressor is trained.

    Attributes:
        steps: optimiser steps. batch: points in each. learning_rate: at the start; it falls to 0 as half a cosine.
        weight_decay: decoupled, as in AdamW.
        held_out: share of the training points that choose the weights. check_every: steps between looks at them.

    Raises:
        UsageError: no steps, an empty batch, nothing or everything held out.
    """

    steps: int = 1200
    batch: int = 128
    learning_rate: float = 1e-2
    weight_decay: float = 0.1
    held_out: float = 0.125
    check_every: int = 20

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "check_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"training {name} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.held_out < 1:
            raise UsageError(f"the share of points held out must lie between 0 and 1, not {self.held_out}")


@dataclass(frozen=True)
class Fit:
    """How a training ended.

    Attributes:
        best_step: after how many steps the model had the weights it now has.
        diverged_at: the step at which the loss was no longer finite, where training stopped; None if it always was.
    """

    best_step: int
    diverged_at: int | None


def fit(model: nn.Module, inputs: Tensor, targets: Tensor, config: TrainingConfig, batches: torch.Generator) -> Fit:
    """Trains the model in place, and leaves it with the weights that were best on the points held out.

    Args:
        model: inputs (b, d) -> predictions (b,).
        inputs, targets: (n, d) and (n,), n at least 2, in the dtype of the model.
        batches: draws the order of the points; each pass is a new permutation without its incomplete last batch.
    """
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, foreach=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: (1 + math.cos(math.pi * step / config.steps)) / 2
    )
    n = len(targets) - max(1, round(config.held_out * len(targets)))
    batch = min(config.batch, n)
    best, best_step, best_weights = math.inf, 0, copy.deepcopy(model.state_dict())
    diverged_at: int | None = None
    order = torch.empty(0)
    for step in range(config.steps):
        position = step % (n // batch)
        if position == 0:
            order = torch.randperm(n, generator=batches)
        chosen = order[position * batch : (position + 1) * batch]
        loss = squared_error(model, inputs[chosen], targets[chosen])
        if not math.isfinite(loss.item()):
            diverged_at = step
            break
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        if (step + 1) % config.check_every == 0 or step + 1 == config.steps:
            with torch.no_grad():
                error = squared_error(model, inputs[n:], targets[n:]).item()
            if error < best:
                best, best_step, best_weights = error, step + 1, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_weights)
    return Fit(best_step, diverged_at)


def squared_error(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error (), what training minimises."""
    error: Tensor = (model(inputs) - targets) ** 2
    return error.mean()

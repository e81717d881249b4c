"""Trains stacked regressors: AdamW on every replicate's own squared error, each on its own batches.

For each replicate's weights, the gradient of the summed losses is that of its own loss; AdamW and the choice of the
best weights are element-wise. So every replicate is trained as if alone. One that diverges is reported and affects no
other.

The last points of each training set are held out to choose the weights. Otherwise the number of training steps would
decide which depth wins: shallow models still learn when deep ones already fit the noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from synthetic.studies.recursion.blocks import BlockStack
from synthetic.studies.recursion.own import OwnStack
from synthetic.studies.recursion.regressors import DrawnSpec, RegressorStack

Stack = RegressorStack | OwnStack | BlockStack


@dataclass(frozen=True)
class Recipe:
    """How regressors are trained: optimiser steps, batches, learning rate, and the choice of weights."""

    steps: int = 1200  # optimiser steps
    batch: int = 128  # points in each
    learning_rate: float = 1e-2  # at the start; it falls to 0 along half a cosine
    weight_decay: float = 0.1  # decoupled, as in AdamW
    held_out: float = 0.125  # share of the training points that are held out to choose the weights
    check_every: int = 20  # steps between two evaluations of these points
    # whether torch compiles the loss. That takes about ten seconds for each kind of model and saves a quarter to a
    # half of each step, so it pays from several thousand steps on; the last digits differ
    compiled: bool = False
    device: str = "cpu"  # "cpu", "cuda", "cuda:1"


@dataclass(frozen=True)
class Fit:
    """How one replicate's training ended."""

    # the smallest on the held-out points, which chose the weights; infinite if it was never finite
    held_out_rmse: float
    best_step: int  # the step after which the model had its final weights
    diverged_at: int | None  # the step at which its loss ceased to be finite; None if it never did


def fit(
    model: Stack, inputs: Tensor, targets: Tensor, recipe: Recipe, batches: Sequence[torch.Generator]
) -> list[Fit]:
    """Trains all replicates in place, and leaves each with the weights that were best on its held-out points.

    Args:
        inputs, targets: (S, n, d) and (S, n), n at least 2, in the dtype and on the device of the model; for
            sequences (S, n, J, d + 1) and (S, n, J).
        batches: generators for the order of each replicate's points; each pass is a new permutation, without its
            incomplete last batch.
    """
    S, points = targets.shape[:2]
    n = points - max(1, round(recipe.held_out * points))
    size = min(recipe.batch, n)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: (1 + math.cos(math.pi * step / recipe.steps)) / 2
    )
    errors = torch.compile(squared_errors, dynamic=False) if recipe.compiled else squared_errors
    best = _Best(model, targets)
    never = recipe.steps
    diverged_at = torch.full((S,), never, device=targets.device)
    rows = torch.arange(S, device=targets.device)[:, None]  # (S, 1)
    depths = _depths(model, recipe.steps)
    order = torch.empty(0)
    for step in range(recipe.steps):
        position = step % (n // size)
        if position == 0:
            order = torch.stack([torch.randperm(n, generator=g) for g in batches])  # (S, n)
            order = order.to(targets.device, non_blocking=True)
        chosen = order[:, position * size : (position + 1) * size]  # (S, b)
        losses = errors(model, inputs[rows, chosen], targets[rows, chosen], depths[step])  # (S,)
        diverged_at = torch.where(losses.isfinite(), diverged_at, diverged_at.clamp_max(step))
        optimiser.zero_grad()
        losses.sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        if (step + 1) % recipe.check_every == 0 or step + 1 == recipe.steps:
            if bool((diverged_at < never).all()):  # here, and in no other step, the CPU waits for a GPU
                break
            with torch.no_grad():
                best.keep(_held_out(model, inputs[:, n:], targets[:, n:]), step + 1)
    best.restore()
    return [
        Fit(math.sqrt(error), step, at if at < never else None)
        for error, step, at in zip(best.errors.tolist(), best.steps.tolist(), diverged_at.tolist(), strict=True)
    ]


def squared_errors(model: Stack, inputs: Tensor, targets: Tensor, steps: int | None = None) -> Tensor:
    """Each replicate's mean squared error (S,), which training minimises, with `steps` or the model's own T."""
    error: Tensor = (model(inputs, steps) - targets) ** 2
    return error.flatten(1).mean(-1)


def _depths(model: Stack, steps: int) -> list[int | None]:
    """The model's T in each training step, the same for all replicates; None means its own T."""
    if not isinstance(model.spec, DrawnSpec):
        return [None] * steps
    drawn: list[int] = torch.randint(
        1, model.spec.depth + 1, (steps,), generator=torch.Generator().manual_seed(model.spec.depth)
    ).tolist()
    return list(drawn)


def _held_out(model: Stack, inputs: Tensor, targets: Tensor) -> Tensor:
    """The error (S,) that chooses the weights: at T, or the mean over 1, 2, 4 ... T for a model trained for all T."""
    if not isinstance(model.spec, DrawnSpec):
        return squared_errors(model, inputs, targets)
    depths = [2**i for i in range(model.spec.depth.bit_length()) if 2**i <= model.spec.depth]
    return torch.stack([squared_errors(model, inputs, targets, T) for T in depths]).mean(0)


class _Best:
    """Each replicate's best weights so far, with their buffers."""

    def __init__(self, model: Stack, targets: Tensor) -> None:
        self.state = list(model.state_dict().values())
        self.errors = targets.new_full((len(targets),), math.inf)
        self.steps = torch.zeros_like(self.errors, dtype=torch.int64)
        self.weights = [tensor.clone() for tensor in self.state]

    def keep(self, errors: Tensor, step: int) -> None:
        """Keeps the weights of the replicates whose error (S,) is smaller than before; NaN never is."""
        better = errors < self.errors  # (S,)
        self.errors = torch.where(better, errors, self.errors)
        self.steps = torch.where(better, step, self.steps)
        for best, tensor in zip(self.weights, self.state, strict=True):
            taken = better.view(-1, *(1,) * (best.dim() - 1))
            best.copy_(torch.where(taken, tensor, best))

    def restore(self) -> None:
        """Puts the best weights into the model."""
        for best, tensor in zip(self.weights, self.state, strict=True):
            tensor.copy_(best)

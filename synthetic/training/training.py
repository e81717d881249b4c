"""Training a language model, and scoring it."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cemverify.cem.models import LanguageModel
from cemverify.console.errors import UsageError
from synthetic.corpora.tokens import Batches
from synthetic.training.checkpoints import TrainingState, restore, save
from synthetic.training.machine import Machine, synchronise
from synthetic.training.recipe import Recipe
from synthetic.training.steps import first_non_finite, first_non_finite_gradient

VECTORS_PER_HEAD = frozenset({"p", "diagonal"})  # may have two axes, as one vector for each head

HERE = Machine()


@dataclass(frozen=True)
class TrainingStep:
    """What an observer is told after each update."""

    step: int  # updates done
    bits: float  # the loss in bits per token
    norm: float  # of the gradient before it was clipped
    learning_rate: float  # of this update
    rate: float  # tokens per second since the start
    warm_up: float  # seconds of the pass before the first update, in which libraries start and models are compiled


@dataclass(frozen=True)
class Training:
    """What happened while a model was trained."""

    bits: tuple[float, ...]  # the loss of each step in bits per token, before the first that is not finite
    diverged_at: int | None  # the step whose loss or gradient was not finite, counted from 1; None if all were
    where: str | None  # the first layer and recursion step that was not finite then
    # predicted tokens over wall time, not counting the first pass, which warms up, and the observers
    tokens_per_second: float
    batches: str  # a fingerprint of the batches trained on; if equal, the batches and their order are


@dataclass(frozen=True)
class Saving:
    """Where and how often a training is saved."""

    path: Path  # of the checkpoint
    every: int  # steps between two; the last step is saved too
    specification: Mapping[str, Any]  # JSON that decides the run
    resume: bool = False  # whether to resume from a checkpoint if there is one
    # plain values that an observer adds to; the checkpoint keeps them, and resuming restores them
    notes: list[Any] = field(default_factory=list)


def check_shares(recipe: Recipe) -> None:
    """Refuses a batch that cannot be divided equally among the passes.

    Raises:
        UsageError: it cannot be.
    """
    if recipe.batch % recipe.accumulate:
        raise UsageError(
            f"a batch of {recipe.batch} windows cannot be shared equally by {recipe.accumulate} passes; choose a"
            " --batch that is a multiple of --accumulate"
        )


def train(
    model: LanguageModel,
    recipe: Recipe,
    batches: Batches,
    machine: Machine = HERE,
    *,
    saving: Saving | None = None,
    until: int | None = None,
    prepare: Callable[[int], None] = lambda _step: None,
    observe: Callable[[TrainingStep], None] = lambda _step: None,
) -> Training:
    """Trains a model in place; stops before the update of a step whose loss or gradient is not finite.

    Args:
        until: the step after which to stop, by default the recipe's last; the schedule stays the recipe's.
        prepare: called before each step with the number of updates done.
        observe: called after each update; its time does not count.
    """
    check_shares(recipe)
    wrapped = machine.wrap(model)
    optimiser = adamw(model, recipe)
    state = TrainingState()
    if saving and saving.resume and saving.path.exists():
        state = restore(saving.path, model, optimiser, saving.specification)
        saving.notes[:] = state.notes
    last = recipe.steps if until is None else min(until, recipe.steps)
    started = time.perf_counter()
    _backward(wrapped, batches(0), recipe, machine).item()  # libraries start lazily, so this is not timed
    warm_up = time.perf_counter() - started
    optimiser.zero_grad()
    bits, digest = list(state.bits), state.batches
    seconds, began_at = 0.0, state.step
    diverged_at, where = None, None
    for step in range(state.step, last):
        synchronise(machine.device)
        started = time.perf_counter()
        prepare(step)
        tokens = batches(step)  # (B, J+1)
        rate = recipe.learning_rate_at(step)
        for group in optimiser.param_groups:
            group["lr"] = rate
        loss, norm = update(model, wrapped, optimiser, tokens, recipe, machine).tolist()  # here the CPU waits
        if not (math.isfinite(loss) and math.isfinite(norm)):
            diverged_at, where = step + 1, _where(model, tokens, recipe, machine)
            break
        synchronise(machine.device)
        seconds += time.perf_counter() - started
        bits.append(loss / math.log(2))
        digest = hashlib.sha256(digest.encode() + batches(step).numpy().tobytes()).hexdigest()
        speed = (step + 1 - began_at) * recipe.batch * recipe.context / seconds
        observe(TrainingStep(step + 1, bits[-1], norm, rate, speed, warm_up))
        if saving and ((step + 1) % saving.every == 0 or step + 1 == last):
            done = TrainingState(step + 1, tuple(bits), digest, tuple(saving.notes))
            save(saving.path, model, optimiser, done, saving.specification)
    trained = len(bits) - began_at
    speed = trained * recipe.batch * recipe.context / seconds if trained else math.nan
    return Training(tuple(bits), diverged_at, where, speed, digest)


def update(
    model: LanguageModel,
    wrapped: nn.Module,
    optimiser: torch.optim.AdamW,
    tokens: Tensor,
    recipe: Recipe,
    machine: Machine = HERE,
) -> Tensor:
    """One step, queued on the device without waiting: the loss in nats and the norm of its gradient, (2,).

    If either is not finite the weights stay as they are; the optimiser tests that on the device.

    Args:
        wrapped: the model as `machine` trains it. tokens: the batch, (B, J+1).
    """
    loss = _backward(wrapped, tokens, recipe, machine)
    norm = nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    loss_and_norm = torch.stack((loss, norm.to(loss.dtype)))
    optimiser.found_inf = (~loss_and_norm.isfinite()).any().float()  # type: ignore[attr-defined]  # of fused optimisers
    optimiser.step()
    optimiser.zero_grad()
    return loss_and_norm


@torch.no_grad()
def score(model: LanguageModel, windows: Tensor, recipe: Recipe, machine: Machine = HERE) -> Tensor:
    """Bits per token of each window: windows (W, J+1) -> (W,) of float64 on the CPU."""
    share = max(1, recipe.batch // recipe.accumulate)
    scored = [nats(model, chunk.to(machine.device), recipe, surprisals) for chunk in torch.split(windows, share)]
    return torch.cat(scored).double().mean(1).cpu() / math.log(2)


def adamw(model: LanguageModel, recipe: Recipe) -> torch.optim.AdamW:
    """The recipe's optimiser: one group of parameters for each weight decay.

    The paper does not say what is decayed. Here gains, biases and diagonals are not. Decay pulls a parameter to 0.
    For a matrix that is the simplest map, but not for these vectors: a gain of 0 silences a layer, and p = 0 makes a
    preconditioner ln 2 instead of 1.
    """
    groups = dict[float, list[nn.Parameter]]()
    for name, parameter in model.named_parameters():
        last = name.rpartition(".")[2]
        one_each = parameter.dim() < 2 or last in VECTORS_PER_HEAD
        of_a_matrix = recipe.embedding_decay if last == "embedding" else recipe.weight_decay
        groups.setdefault(0.0 if one_each else of_a_matrix, []).append(parameter)
    return torch.optim.AdamW(
        [{"params": parameters, "weight_decay": decay} for decay, parameters in groups.items()],
        lr=recipe.learning_rate,
        betas=recipe.betas,
        eps=recipe.eps,
        fused=True,
    )


def autocast(recipe: Recipe, device: str) -> torch.autocast:
    """The precision in which a recipe multiplies matrices."""
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=recipe.precision == "bfloat16")


def nats(model: nn.Module, tokens: Tensor, recipe: Recipe, of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """-log p of each token but a window's first: tokens (B, J+1) -> (B, J), at least float32.

    Args:
        of: `surprisals`, possibly compiled.
    """
    with autocast(recipe, tokens.device.type):
        logits = model(tokens[:, :-1])  # (B, J, V)
    return of(logits, tokens[:, 1:])


def surprisals(logits: Tensor, targets: Tensor) -> Tensor:
    """-log p(target) of each token, at least float32: logits (B, J, V), targets (B, J) -> (B, J).

    The classes are the last axis: as the middle one, which torch also accepts, it takes 1.6 times as long on a CPU.
    """
    exact = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(exact.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)


def _backward(model: nn.Module, tokens: Tensor, recipe: Recipe, machine: Machine) -> Tensor:
    """The mean loss () of a batch (B, J+1) in nats, and its gradients, in several passes."""
    total = torch.zeros((), device=machine.device, dtype=torch.float64)
    passes = tokens.to(machine.device, non_blocking=True).chunk(recipe.accumulate)
    for chunk in passes:
        loss = nats(model, chunk, recipe, machine.fused(surprisals)).mean() / len(passes)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return total


def _where(model: LanguageModel, tokens: Tensor, recipe: Recipe, machine: Machine) -> str | None:
    """The first place that is not finite."""
    where = None
    for chunk in tokens.to(machine.device).chunk(recipe.accumulate):
        with autocast(recipe, machine.device):
            where = where or first_non_finite(model, chunk[:, :-1])
    return where or first_non_finite_gradient(model, lambda: _backward(model, tokens, recipe, machine))

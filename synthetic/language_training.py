"""Training a language model on bytes, and scoring it."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from synthetic.language_presets import Recipe

READ_EVERY = 10  # steps between looks at the losses: reading one makes a GPU wait
VECTORS_PER_HEAD = frozenset({"p", "diagonal"})  # one vector for each head may make a parameter of two axes

Progress = Callable[[int, float, float], None]


@dataclass(frozen=True)
class Training:
    """What happened while a model was trained.

    Attributes:
        bits: the loss of each step in bits per byte, up to and without the first that is not finite.
        diverged_at: the step whose loss was not finite, counted from 1; None if all were.
        bytes_per_second: predicted bytes over wall time, without the first pass, which warms up.
        batches: a fingerprint of the batches trained on; equal ones, equal batches in equal order.
    """

    bits: tuple[float, ...]
    diverged_at: int | None
    bytes_per_second: float
    batches: str


def train(
    model: nn.Module,
    recipe: Recipe,
    batch_of: Callable[[int], Tensor],
    device: str,
    progress: Progress = lambda _step, _bits, _rate: None,
) -> Training:
    """Trains a model in place; stops within a few steps of a loss that is not finite.

    Args:
        model: tokens (B, J) -> logits (B, J, V).
        batch_of: step -> tokens (B, J+1) on the CPU, for step 0 ... steps-1.
        progress: told now and then how many steps are done, the latest loss in bits per byte, and bytes/s.
    """
    optimiser = adamw(model, recipe)
    fingerprint = hashlib.sha256()
    first = _next_byte_nats(model, batch_of(0).to(device), recipe).mean()
    first.backward()  # type: ignore[no-untyped-call]  # libraries start lazily: let them do so off the clock
    optimiser.zero_grad()
    bits: list[float] = []
    unread: list[Tensor] = []
    started = time.monotonic()
    rate = math.nan
    for step in range(recipe.steps):
        tokens = batch_of(step)
        fingerprint.update(tokens.numpy().tobytes())
        for group in optimiser.param_groups:
            group["lr"] = recipe.learning_rate_at(step)
        loss = _next_byte_nats(model, tokens.to(device, non_blocking=True), recipe).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimiser.step()
        optimiser.zero_grad()
        unread.append(loss.detach())
        if len(unread) == READ_EVERY or step + 1 == recipe.steps:
            bits += (torch.stack(unread).double() / math.log(2)).tolist()
            unread.clear()
            rate = len(bits) * recipe.batch * recipe.context / (time.monotonic() - started)
            progress(len(bits), bits[-1], rate)
            if not all(map(math.isfinite, bits)):
                break
    finite = next((i for i, value in enumerate(bits) if not math.isfinite(value)), len(bits))
    diverged_at = None if finite == len(bits) else finite + 1
    return Training(tuple(bits[:finite]), diverged_at, rate, fingerprint.hexdigest())


@torch.no_grad()
def score(model: nn.Module, windows: Tensor, recipe: Recipe, device: str) -> Tensor:
    """Bits per byte of each window: windows (W, J+1) -> (W,) of float64 on the CPU."""
    nats = [_next_byte_nats(model, chunk.to(device), recipe) for chunk in torch.split(windows, recipe.batch)]
    return torch.cat(nats).double().mean(1).cpu() / math.log(2)


def adamw(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """The recipe's optimiser; gains, biases and diagonals are spared the weight decay."""
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        one_each = parameter.dim() < 2 or name.rpartition(".")[2] in VECTORS_PER_HEAD
        (vectors if one_each else matrices).append(parameter)
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=recipe.betas, fused=True)


def _next_byte_nats(model: nn.Module, tokens: Tensor, recipe: Recipe) -> Tensor:
    """-log p(next byte) of each byte but a window's first: tokens (B, J+1) -> (B, J) of float32."""
    reduced = recipe.precision == "bfloat16"
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=reduced):
        logits = model(tokens[:, :-1])  # (B, J, V)
    return F.cross_entropy(logits.float().mT, tokens[:, 1:], reduction="none")

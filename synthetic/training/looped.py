"""Models whose layers may be applied several times in a row, and initial weights that models share.

Reusing a layer differs from recursing inside it (§12 of the mathematics): a layer that is used twice reads its memory
anew from its own output, whereas a descent of T = 2 steps keeps its memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from cemverify.cem.layers import CEMLayer
from cemverify.cem.models import Block, BlockConfig, LanguageModel, LanguageModelConfig, Walk
from cemverify.console.errors import UsageError

LOW_RANK_STD = 0.02  # of a preconditioner's U, whatever the width (App. C.4)


@dataclass(frozen=True)
class LoopedConfig:
    """A language model, and how often each of its layers is applied in a row."""

    model: LanguageModelConfig  # its parameters
    # attention, mlp: how often; once is the plain model
    attention: int = 1
    mlp: int = 1

    def __post_init__(self) -> None:
        if self.model.block.rounds > 1 and max(self.attention, self.mlp) > 1:
            raise UsageError("layers that take turns in several rounds cannot also be applied several times in a row")


class LoopedBlock(Block):
    """A block that applies its attention, and then its MLP, several times in a row.

    Parameters: those of `Block`.
    """

    def __init__(self, attention: int, mlp: int, config: BlockConfig, generator: torch.Generator) -> None:
        super().__init__(config, generator)
        self.attention_times, self.mlp_times = attention, mlp

    def walk(self, h: Tensor, past: Any = None) -> Walk:
        """The block's output and every state on the way to it."""
        if self.attention_times == self.mlp_times == 1:
            return super().walk(h, past)
        states = [h]
        for _ in range(self.attention_times):
            states.append(self.attention.residual(states[-1])[0])
        for _ in range(self.mlp_times):
            states.append(self.mlp.residual(states[-1]))
        return Walk(tuple(states), None)


def looped(config: LoopedConfig, generator: torch.Generator) -> LanguageModel:
    """A language model whose blocks apply their attention, and then their MLP, several times in a row.

    It decodes only without a cache: a layer that is applied twice would need two.
    """
    return LanguageModel(config.model, generator, partial(LoopedBlock, config.attention, config.mlp))


def looped_on_meta(config: LoopedConfig) -> LanguageModel:
    """The model without storage: shapes and counts only."""
    with torch.device("meta"):
        return looped(config, torch.Generator("cpu"))


def paired(config: LoopedConfig, seed: int) -> LanguageModel:
    """The model with initial weights that depend only on the seed, the parameter's name and its shape.

    Two models share the initial value of every parameter that both have. They then differ by design and not by the
    luck of the draw.
    """
    model = looped(config, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            std = first_std(name, config.model)
            if std is not None:
                generator = torch.Generator().manual_seed(
                    int.from_bytes(sha256(f"{seed}/{name}".encode()).digest()[:8]) >> 1
                )
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
    return model


def first_std(name: str, config: LanguageModelConfig) -> float | None:
    """The standard deviation of a parameter's initial values; None where they are constants."""
    *path, last = name.split(".")
    if last == "embedding" and config.embedding_std is not None:
        return config.embedding_std
    if last in ("embedding", "head"):
        return config.init_std
    if any("preconditioner" in part for part in path):
        return LOW_RANK_STD if last == "U" else None
    if last in ("W_Q", "W_K", "W_V", "W_O"):
        return config.block.attention.init_std
    if last in ("gate", "up", "down", "V", "W"):
        return config.block.mlp.init_std
    return None


# --- any number of steps ----------------------------------------------------------------------------


def turn(model: nn.Module, steps: int, step_size: float, least_fall: float = 0.0) -> None:
    """From now on every CEM layer of the model takes this many steps of this size.

    Args:
        least_fall: tokens stop earlier, after a step that lowers the energy by less than this share of what their
            first step did; with 0 none stops early.

    Raises:
        ValueError: the steps of a layer differ from one another.
    """
    for layer in model.modules():
        if isinstance(layer, CEMLayer):
            layer.set_steps(steps, step_size, least_fall)


def drawn_depth(most: int, seed: int, step: int) -> int:
    """T of one training step, uniform in 1 ... most; the same whether or not the training was resumed."""
    return Random(f"depth/{seed}/{step}").randint(1, most)  # noqa: S311  (no secret)

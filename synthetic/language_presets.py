"""What the language study runs: plain functions that return a complete, frozen configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.cem.llama import LlamaAttentionConfig, SwiGLUConfig
from cemverify.cem.models import BlockConfig, LanguageModelConfig
from synthetic.errors import UsageError
from synthetic.text import VOCABULARY


@dataclass(frozen=True)
class Recipe:
    """How every model of a study is trained: AdamW, warm-up, cosine.

    Attributes:
        steps: batches trained on. batch, context: B and J of each.
        learning_rate: at the end of the warm-up; final: the share of it at the end of the cosine.
        warm_up: the share of the steps that rise linearly.
        weight_decay: on matrices only. clip: the largest norm of the gradient.
        precision: "bfloat16" multiplies matrices in it and keeps float32 parameters.
    """

    steps: int
    batch: int
    context: int
    learning_rate: float = 3e-3
    final: float = 0.1
    warm_up: float = 0.05
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    clip: float = 1.0
    precision: Literal["float32", "bfloat16"] = "float32"

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of step 0 ... steps-1."""
        rising = max(1, round(self.warm_up * self.steps))
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        progress = (step - rising) / max(1, self.steps - 1 - rising)
        return self.learning_rate * (self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2)


@dataclass(frozen=True)
class Contender:
    """A model and what the tables call it."""

    name: str
    model: LanguageModelConfig


@dataclass(frozen=True)
class Study:
    """All that decides a language study but its seed.

    Attributes:
        contenders: the models compared. recipe: how each is trained.
        validation_windows: how many windows of the validation text, of J bytes each, are scored.
    """

    contenders: tuple[Contender, ...]
    recipe: Recipe
    validation_windows: int


def contenders(dim: int, layers: int, heads: int) -> tuple[Contender, ...]:
    """Llama with rotary positions, and CEM at T = 1 and T = 2, of the same depth and width.

    CEM is the paper's full CEM (`cemverify.cem.presets.full_cem`) but for its preconditioners, which are diagonal
    and shared by the heads: the low-rank ones per head make a step 1.5 times as long and, the paper reports, buy
    little. The diagonal of A_k stays, as the paper finds that it matters, at a tenth of the time of a step.
    CEM's MLP has two projections where Llama's has three, so 3/2 of the hidden units make equal parameters; both
    are rounded to a multiple of 8. CEM's attention has half of Llama's parameters, as it always does.

    Weights start at N(0, 1/D): the usual 0.02 is made for D in the thousands, and a model as narrow as these
    then spends much of so short a training on growing its weights.
    """
    std = dim**-0.5
    hidden = 8 * round(dim * 8 / 3 / 8)
    llama = BlockConfig(LlamaAttentionConfig(dim, heads, init_std=std), SwiGLUConfig(dim, hidden, init_std=std))
    diagonal = PreconditionerConfig("diagonal")

    def cem(steps: int) -> BlockConfig:
        return BlockConfig(
            AttentionConfig(
                dim,
                heads,
                diagonal="shared",
                position="alibi",
                preconditioner=diagonal,
                steps=steps,
                norm="channel",
                init_std=std,
            ),
            MLPConfig(
                dim, 8 * round(dim * 4 / 8), preconditioner=diagonal, steps=steps, norm="channel", init_std=std
            ),
        )

    blocks = {"Llama": llama, "CEM T=1": cem(1), "CEM T=2": cem(2)}
    return tuple(
        Contender(name, LanguageModelConfig(VOCABULARY, layers, block, std)) for name, block in blocks.items()
    )


def tiny() -> Study:
    """Seconds on one CPU core: shows that all parts work together."""
    recipe = Recipe(steps=600, batch=8, context=32, learning_rate=1e-2)
    return Study(contenders(dim=32, layers=2, heads=2), recipe, validation_windows=256)


def smoke() -> Study:
    """About a minute and a half on one CPU core; small batches, as more steps of fewer bytes learn faster here."""
    return Study(contenders(dim=128, layers=4, heads=4), Recipe(steps=320, batch=4, context=128), 256)


def smoke_on_cuda() -> Study:
    """The same models on a hundred times as many bytes."""
    recipe = Recipe(steps=1000, batch=64, context=256, precision="bfloat16")
    return Study(contenders(dim=128, layers=4, heads=4), recipe, validation_windows=2048)


def tiny_on_cuda() -> Study:
    """`tiny` in the precision that a GPU trains in."""
    study = tiny()
    return replace(study, recipe=replace(study.recipe, precision="bfloat16"))


PRESETS: Mapping[str, Mapping[str, Callable[[], Study]]] = MappingProxyType(
    {"tiny": {"cpu": tiny, "cuda": tiny_on_cuda}, "smoke": {"cpu": smoke, "cuda": smoke_on_cuda}}
)


def preset(name: str, device: str) -> Study:
    """The preset of that name for "cpu" or "cuda".

    Raises:
        UsageError: there is none; the message lists those there are.
    """
    if name not in PRESETS:
        raise UsageError(f"no preset {name!r}; there are: {', '.join(PRESETS)}")
    return PRESETS[name][device]()

"""How a language model is trained: the paper's Table 2, and what one may change of it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from cemverify.console.errors import UsageError


@dataclass(frozen=True)
class Recipe:
    """AdamW, a linear warm-up and a cosine; the defaults are the paper's (Table 2)."""

    steps: int  # optimiser steps, one batch each
    batch: int  # B, over all processes
    context: int  # J
    accumulate: int = 1  # in how many passes a process's share of a batch goes through the model
    learning_rate: float = 2e-3  # at the end of the warm-up
    final: float = 0.1  # the share of it at the end of the cosine
    warm_up: float = 0.05  # the share of the steps that rise linearly
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-9
    weight_decay: float = 0.1  # of matrices (`training.adamw`)
    embedding_decay: float = 0.1  # of the embedding, which is one, too
    clip: float = 1.0  # the largest norm of the gradient
    # "bfloat16" multiplies matrices in it and keeps float32 parameters; "float64" is for yardsticks
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    # the size from which rates are scaled (`Base`); None: one rate for all parameters
    base: Base | None = field(default=None, metadata={"added": True})

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


@dataclass(frozen=True)
class RecipeChanges:
    """Numbers of a recipe that somebody wants otherwise; None keeps the recipe's own."""

    steps: int | None = None
    batch: int | None = None
    context: int | None = None
    accumulate: int | None = None
    learning_rate: float | None = None

    def of(self, recipe: Recipe) -> Recipe:
        """The recipe with these numbers."""
        return replace(recipe, **{name: value for name, value in asdict(self).items() if value is not None})


def chinchilla(parameters: int, recipe: Recipe) -> Recipe:
    """The recipe with as many steps as 20 tokens for each parameter take (Hoffmann et al. 2022)."""
    return replace(recipe, steps=math.ceil(20 * parameters / (recipe.batch * recipe.context)))


def check_heads(dim: int, heads: int) -> None:
    """Refuses heads that rotary positions cannot turn."""
    if dim % heads or dim // heads % 2:
        raise UsageError(
            f"{heads} heads do not split a model dimension of {dim} into equal, even parts, as rotary positions need;"
            " choose --dim as an even multiple of --heads"
        )


# --- maximal-update scaling -------------------------------------------------------------------------


@dataclass(frozen=True)
class Base:
    """The size at which rates were tuned: what changes with width and depth, so that they stay right.

    Yang et al. 2022 ("Tensor Programs V") ask that, however wide a model is, one update moves every feature, score
    and logit by as much as it can without blowing up. From that follow the first weights and how Adam's rate shrinks
    with the width D; from the same wish for deep models, steps of eta / sqrt(L) (Yang et al. 2023, "Tensor Programs
    VI"). In CEM a tied weight is an input and an output projection at once, which want the same scale as D, R K and M
    grow together:

        embedding     N(0, 1)            rate 1
        W_Q, W_K, V, W and Llama's       N(0, 1/D)     rate 1/(D sqrt(L)), as the updates of all layers add up
        head          N(0, 1/D^2)        rate 1/D      first logits vanish with width, as a random head knows nothing
        tau           R                  and not sqrt(R): trained queries and keys are aligned
        diagonal d    0                  rate 1/(D sqrt(L)), as a score sums D of its entries
        p of P        its start          rate 1/sqrt(D), as d = sqrt(D) p (App. C.4)
        U, V of P     their start        rate 1/(D sqrt(L))
        gains, biases, momentum, log_step              rate 1
        eta           1/sqrt(L)

    All is relative to a base: a model of its size is what it would be without. What the paper does is no different at
    one size; it has no such scaling between its sizes.
    """

    # dim, layers, heads: D, L and K
    dim: int
    layers: int
    heads: int

    @property
    def head_dim(self) -> int:
        """R = D / K, the dimension of a head of the base."""
        return self.dim // self.heads

    def rate_share(self, name: str, dim: int, layers: int) -> float:
        """What the rate of a parameter of that name is multiplied by in a model of width D with L layers.

        Raises:
            ValueError: nobody has said how it scales.
        """
        *path, last = name.split(".")
        narrow = self.dim / dim
        if last in _CONSTANT or "norm" in path:
            return 1.0
        if last == "p":
            return math.sqrt(narrow)
        if last == "head":
            return narrow
        if last in _MATRICES:
            return narrow * self.step_share(layers)
        raise ValueError(f"how the rate of {name} scales with the width is not said")

    def head_std(self, dim: int) -> float:
        """The standard deviation of a head's first weights at width D: sqrt(D_base) / D, D_base^-1/2 at the base."""
        return math.sqrt(self.dim) / dim

    def temperature(self, head_dim: int) -> float:
        """tau of attention with heads of dimension R: R / sqrt(R_base), sqrt(R) at the base."""
        return head_dim / math.sqrt(self.head_dim)

    def step_share(self, layers: int) -> float:
        """What the step size is multiplied by in a model of L layers."""
        return math.sqrt(self.layers / layers)


_CONSTANT = frozenset({"embedding", "gain", "to_self", "to_others", "momentum", "log_step"})
_MATRICES = frozenset({"W_Q", "W_K", "W_V", "W_O", "V", "W", "U", "gate", "up", "down", "diagonal"})

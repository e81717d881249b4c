"""Maximal-update scaling: what changes with width and depth, so that a rate tuned at a small size stays right.

Yang et al. 2022 ("Tensor Programs V") ask that, however wide a model is, one update moves every feature, score and
logit by as much as it can without blowing up. From that follow the first weights and how Adam's rate shrinks with the
width D; from the same wish for deep models, steps of eta / sqrt(L) (Yang et al. 2023, "Tensor Programs VI"). In CEM
a tied weight is an input and an output projection at once, which want the same scale as D, R K and M grow together:

    embedding     N(0, 1)            rate 1
    W_Q, W_K, V, W and Llama's       N(0, 1/D)     rate 1/(D sqrt(L)), as the updates of all layers add up
    head          N(0, 1/D^2)        rate 1/D      first logits vanish with width, as a random head knows nothing
    tau           R                  and not sqrt(R): trained queries and keys are aligned
    diagonal d    0                  rate 1/(D sqrt(L)), as a score sums D of its entries
    p of P        its start          rate 1/sqrt(D), as d = sqrt(D) p (App. C.4)
    U, V of P     their start        rate 1/(D sqrt(L))
    gains, biases, momentum, log_step              rate 1
    eta           1/sqrt(L)

All is relative to a base: a model of its size is what it would be without. What the paper does is no different at one
size; it has no such scaling between its sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Base:
    """The size at which rates were tuned.

    Attributes:
        dim, layers, heads: D, L and K.
    """

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
        """Of the first weights of the head of a model of width D: sqrt(D_base) / D, D_base^-1/2 at the base."""
        return math.sqrt(self.dim) / dim

    def temperature(self, head_dim: int) -> float:
        """tau of attention with heads of dimension R: R / sqrt(R_base), sqrt(R) at the base."""
        return head_dim / math.sqrt(self.head_dim)

    def step_share(self, layers: int) -> float:
        """What the step size is multiplied by in a model of L layers."""
        return math.sqrt(self.layers / layers)


_CONSTANT = frozenset({"embedding", "gain", "to_self", "to_others", "momentum", "log_step"})
_MATRICES = frozenset({"W_Q", "W_K", "W_V", "W_O", "V", "W", "U", "gate", "up", "down", "diagonal"})

"""Faults of the recursion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Zoo

ZOO = Zoo("recursion")


@ZOO.killed_by("recursion/attention/is-not-reuse", "distance to the recursion*", also=("recursion/*/is-not-reuse",))
class MemoryMoves(Plain):
    """Each step reads the state that the last one wrote: layer reuse."""

    def attention(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        for t in range(c.steps):
            x = super().attention(x, h if t == 0 else x, w, replace(c, steps=1))
        return x

    def mlp(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        for t in range(c.steps):
            x = super().mlp(x, h if t == 0 else x, w, replace(c, steps=1))
        return x


@ZOO.killed_by("recursion/attention/steps-compose", "T steps = T times one step", also=("recursion/*/steps-compose",))
class DecayingSteps(Plain):
    """The step size shrinks as the recursion goes on."""

    def attention(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        for t in range(c.steps):
            x = super().attention(x, h, w, replace(c, steps=1, step_size=c.step_size / (1 + t)))
        return x

    def mlp(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        for t in range(c.steps):
            x = super().mlp(x, h, w, replace(c, steps=1, step_size=c.step_size / (1 + t)))
        return x


@ZOO.killed_by("recursion/attention/equals-descent", also=("recursion/*/equals-descent*",))
class AtMostTwoSteps(Plain):
    """The recursion stops after two steps."""

    def steps(self, c: Any) -> int:
        return min(2, super().steps(c))


@ZOO.killed_by("gradient/attention/any-options", needs=("steps",))
class AtMostFourSteps(Plain):
    """The recursion stops after four steps."""

    def steps(self, c: Any) -> int:
        return min(4, super().steps(c))


@ZOO.killed_by(
    "recursion/attention/equals-descent", also=("tying/attention/untying-breaks-the-field",), needs=("start",)
)
class QueriesFromTheMemory(Plain):
    """Queries are made of h at every step, so that no step sees the one before."""

    def attention_direction(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().attention_direction(h[:, -x.shape[1] :] + 0 * x, h, w, c)


@ZOO.killed_by(
    "recursion/attention/steps-compose", "T steps = T times one step", also=("recursion/mlp/steps-compose",)
)
class OneStepMore(Plain):
    """From T = 2 on, one step too many is taken."""

    def steps(self, c: Any) -> int:
        return super().steps(c) + (super().steps(c) > 1)


@ZOO.killed_by("recursion/attention/equals-descent", also=("recursion/mlp/equals-descent",))
class OneStepLess(Plain):
    """From T = 2 on, the last step is not taken."""

    def steps(self, c: Any) -> int:
        return max(1, super().steps(c) - 1)


@ZOO.killed_by("recursion/mlp/equals-descent", also=("recursion/attention/equals-descent",))
class StepSizeDividedByT(Plain):
    """The step size is divided by the number of steps."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads, w, replace(c, step_size=c.step_size / c.steps))


@ZOO.killed_by("recursion/mlp/equals-descent", also=("recursion/attention/equals-descent",))
class ResidualFromTheStart(Plain):
    """Every step adds its update to the first state instead of the last one."""

    def attention(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        one, at = replace(c, steps=1), x
        for _ in range(c.steps):
            at = x + super().attention(at, h, w, one) - at
        return at

    def mlp(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        one, at = replace(c, steps=1), x
        for _ in range(c.steps):
            at = x + super().mlp(at, h, w, one) - at
        return at


@ZOO.killed_by("recursion/mlp/equals-descent", also=("recursion/attention/equals-descent",))
class Momentum(Plain):
    """Each step adds a tenth of the last one's update."""

    def attention(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return _with_momentum(super().attention, x, h, w, c)

    def mlp(self, x: Tensor, h: Tensor, w: Weights, c: MLPConfig) -> Tensor:
        return _with_momentum(super().mlp, x, h, w, c)


def _with_momentum(layer: Any, x: Tensor, h: Tensor, w: Weights, c: Any) -> Tensor:
    last = torch.zeros_like(x)
    for _ in range(c.steps):
        last = layer(x, h, w, replace(c, steps=1)) - x + last / 10
        x = x + last
    return x


@ZOO.killed_by("gradient/attention/any-options", needs=("steps",))
class SixStepsAtMost(Plain):
    """The sixth step is not taken."""

    def steps(self, c: Any) -> int:
        return min(5, super().steps(c))


@ZOO.killed_by("recursion/attention/equals-descent")
class KeysOfTheLastStep(Plain):
    """From the second step on, keys are recomputed from the mean of memory and state."""

    def attention(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        for t in range(c.steps):
            x = super().attention(x, h if t == 0 else (h + x) / 2, w, replace(c, steps=1))
        return x


@ZOO.killed_by("recursion/mlp/equals-descent", also=("recursion/attention/equals-descent",))
class SevenStepsAtMost(Plain):
    """The eighth step is not taken."""

    def steps(self, c: Any) -> int:
        return min(7, super().steps(c))

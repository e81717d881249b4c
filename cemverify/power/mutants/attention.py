"""Faults of attention: signs, tied weights, temperature, softmax, mask, heads."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Zoo

ZOO = Zoo("attention")


@ZOO.killed_by(
    "gradient/attention/plain",
    also=(
        "gradient/attention/diagonal-*",
        "gradient/attention/alibi",
        "gradient/attention/self-cross-bias",
        "gradient/attention/rotary*",
        "gradient/attention/preconditioner-*",
        "gradient/attention/norm-*",
        "gradient/attention/full-cem",
        "gradient/attention/any-options",
        "descent/attention/*",
    ),
)
class Ascent(Plain):
    """The update is subtracted, as Algorithm 1 prints it."""

    def sum_heads(self, heads: Tensor) -> Tensor:
        return -heads.sum(1)


@ZOO.killed_by("gradient/attention/plain")
class UntiedValues(Plain):
    """Values are W_Q h instead of the keys."""

    def values(self, keys: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:  # noqa: ARG002
        return torch.einsum("bjd,krd->bkjr", h, w["W_Q"])


@ZOO.killed_by(
    "gradient/attention/conservative-field", "the Jacobian equals its transpose", also=("gradient/attention/plain",)
)
class UntiedOutput(Plain):
    """The output projection is W_K instead of W_Q."""

    def output(self, w: Weights) -> Tensor:
        return w["W_K"]


@ZOO.killed_by(
    "tying/attention/multi-head-attention",
    "update = eta*",
    also=("tying/attention/scaled-dot-product-attention", "gradient/attention/plain"),
)
class ModelDimensionTemperature(Plain):
    """The temperature grows with the model dimension, as sqrt(D_h) is printed."""

    def temperature(self, c: AttentionConfig) -> float:
        return c.tau * math.sqrt(c.dim / c.R)


@ZOO.killed_by("gradient/attention/plain")
class SoftmaxOverQueries(Plain):
    """The softmax normalises over queries."""

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, -2)


@ZOO.killed_by("gradient/attention/plain")
class MeanOverHeads(Plain):
    """Heads are averaged instead of summed."""

    def sum_heads(self, heads: Tensor) -> Tensor:
        return heads.mean(1)


@ZOO.killed_by("gradient/attention/plain")
class OwnTokenHidden(Plain):
    """A token does not see its own key, except the first."""

    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return (j > i) | ((j == i) & (i > 0))


@ZOO.killed_by(
    "structure/attention/causality",
    "outputs before token i*",
    also=("structure/attention/causality*", "structure/block/causality"),
)
class SeesTheNextToken(Plain):
    """The causal mask is off by one."""

    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return j > i + 1


@ZOO.killed_by("extremes/attention/large-logits", "update at logits of 1e4*")
class FiniteMask(Plain):
    """Hidden tokens get a logit of -1000 instead of minus infinity."""

    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return super().hidden(i, j) & False

    def bias(self, rows: Tensor, length: int, w: Weights, c: AttentionConfig) -> Tensor:
        columns = torch.arange(length, device=rows.device)
        return super().bias(rows, length, w, c) - 1000.0 * (columns[None, :] > rows[:, None])


@ZOO.killed_by("gradient/attention/plain")
class OneInABillion(Plain):
    """The last head's output is too large by one part in a billion."""

    def output(self, w: Weights) -> Tensor:
        scaled = w["W_Q"].clone()
        scaled[-1] *= 1 + 1e-9
        return scaled


@ZOO.killed_by(
    "structure/attention/head-order", "output with the heads reversed", also=("structure/attention/head-order*",)
)
class FirstHeadCountsTwice(Plain):
    """The first head's direction is counted twice."""

    def sum_heads(self, heads: Tensor) -> Tensor:
        return heads.sum(1) + heads[:, 0]


@ZOO.killed_by("descent/attention/any-step-size-identity", "energy(x - eta P g) <= *", needs=("step-size",))
class StepSizeForgotten(Plain):
    """A step size above one is cut to one."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads, w, replace(c, step_size=min(1.0, c.step_size)))


@ZOO.killed_by(
    "structure/attention/batch-independence",
    "a batch row alone*",
    also=("structure/mlp/batch-independence", "structure/block/batch-independence"),
)
class BatchLeans(Plain):
    """Updates lean away from their mean over the batch."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads + 1e-3 * (heads - heads.mean(0, keepdim=True)), w, c)


@ZOO.killed_by("gradient/attention/plain")
class NegatedScores(Plain):
    """Scores are negated, so that tokens attend to what they resemble least."""

    def scores(self, q: Tensor, k: Tensor, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return -super().scores(q, k, x, h, w, c)


@ZOO.killed_by("gradient/attention/plain")
class TransposedScoreMatrix(Plain):
    """Scores read W_K^T W_Q instead of W_Q^T W_K; outputs are right."""

    def scores(self, q: Tensor, k: Tensor, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        if c.diagonal != "none" or c.position == "rotary":
            return super().scores(q, k, x, h, w, c)
        return torch.einsum("bjd,krd->bkjr", x, w["W_K"]) @ torch.einsum("bjd,krd->bkjr", h, w["W_Q"]).mT


@ZOO.killed_by("gradient/attention/plain")
class QueriesAndKeysSwapped(Plain):
    """W_Q and W_K have changed places everywhere."""

    def attention(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().attention(x, h, {**w, "W_Q": w["W_K"], "W_K": w["W_Q"]}, c)


@ZOO.killed_by("gradient/attention/conservative-field", "the Jacobian equals its transpose")
class ReversedOutputFeatures(Plain):
    """The output projection reads the features of each head in reverse order."""

    def output(self, w: Weights) -> Tensor:
        return w["W_Q"].flip(1)


@ZOO.killed_by("gradient/attention/plain")
class HalfTiedOutput(Plain):
    """The output projection is the mean of W_Q and W_K."""

    def output(self, w: Weights) -> Tensor:
        return (w["W_Q"] + w["W_K"]) / 2


@ZOO.killed_by("gradient/attention/plain")
class OutputOfTheNextHead(Plain):
    """Each head's output goes through the next head's projection."""

    def output(self, w: Weights) -> Tensor:
        return w["W_Q"].roll(1, 0)


@ZOO.killed_by("gradient/attention/plain")
class SquaredTemperature(Plain):
    """Scores are divided by tau twice."""

    def temperature(self, c: AttentionConfig) -> float:
        return c.tau**2


@ZOO.killed_by("gradient/attention/plain", needs=("temperature",))
class TemperatureOfTheHead(Plain):
    """The temperature is the square root of the head dimension, whatever the configuration says."""

    def temperature(self, c: AttentionConfig) -> float:
        return math.sqrt(c.R)


@ZOO.killed_by("gradient/attention/plain")
class TemperatureOutside(Plain):
    """The update is divided by tau, as if the energy lacked its factor tau."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads / getattr(c, "tau", 1.0), w, c)


@ZOO.killed_by("gradient/attention/plain")
class SoftmaxOverHeads(Plain):
    """The softmax normalises over heads."""

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, 1).nan_to_num()


@ZOO.killed_by("gradient/attention/plain")
class SoftmaxWithSink(Plain):
    """The softmax has one logit more, zero, that belongs to no token."""

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(torch.cat((logits, torch.zeros_like(logits[..., :1])), -1), -1)[..., :-1]


@ZOO.killed_by("gradient/attention/plain")
class UnnormalisedSoftmax(Plain):
    """Attention weights are exponentials that nothing normalises."""

    def softmax(self, logits: Tensor) -> Tensor:
        return logits.exp()


@ZOO.killed_by("gradient/attention/plain", "not finite")
class SoftmaxWithoutShift(Plain):
    """The largest logit is not subtracted, so that large ones overflow."""

    def softmax(self, logits: Tensor) -> Tensor:
        weights = logits.exp()
        return weights / weights.sum(-1, keepdim=True)


@ZOO.killed_by("gradient/attention/plain")
class ClippedLogits(Plain):
    """Logits are clipped to [-30, 30]."""

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(torch.where(logits.isfinite(), logits.clamp(-30.0, 30.0), logits), -1)


@ZOO.killed_by("gradient/attention/plain")
class CappedLogits(Plain):
    """Logits pass through 50 tanh(z / 50), a soft cap."""

    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(torch.where(logits.isfinite(), 50 * torch.tanh(logits / 50), logits), -1)


@ZOO.killed_by("structure/attention/causality", "outputs before token i*")
class NotCausal(Plain):
    """Every token sees every other."""

    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return (j > i) & False


@ZOO.killed_by("structure/attention/causality", "outputs before token i*")
class MaskMultiplied(Plain):
    """Logits of hidden tokens are multiplied by zero instead of set to minus infinity."""

    def attend(self, logits: Tensor, hidden: Tensor) -> Tensor:
        return self.softmax(logits * ~hidden)


@ZOO.killed_by("structure/attention/causality", "outputs before token i*")
class MaskAfterSoftmax(Plain):
    """Hidden tokens are struck out after the softmax, which has already counted them."""

    def attend(self, logits: Tensor, hidden: Tensor) -> Tensor:
        return self.softmax(logits).masked_fill(hidden, 0.0)


@ZOO.killed_by("gradient/attention/plain")
class OldestTokenHidden(Plain):
    """From the third token on, the first is not seen."""

    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return (j > i) | ((j == 0) & (i > 1))


@ZOO.killed_by("gradient/attention/plain")
class SlidingWindow(Plain):
    """A token sees the last four only."""

    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return (j > i) | (j < i - 3)


@ZOO.killed_by("gradient/attention/plain")
class OwnKeyTwice(Plain):
    """A token's own key counts twice, as cached and as new."""

    def attend(self, logits: Tensor, hidden: Tensor) -> Tensor:
        own = torch.eye(logits.shape[-1], dtype=torch.bool)[-logits.shape[-2] :]
        return self.softmax((logits + math.log(2) * own).masked_fill(hidden, -math.inf))


@ZOO.killed_by("gradient/attention/plain")
class KeysNormalised(Plain):
    """Keys are made unit vectors before they are compared; as values they are left."""

    def scores(self, q: Tensor, k: Tensor, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().scores(q, k / (k.norm(dim=-1, keepdim=True) + 1e-12), x, h, w, c)


@ZOO.killed_by("gradient/attention/plain", needs=("start",))
class ValuesFromTheState(Plain):
    """Values are projections of x; keys are those of h."""

    def attention_direction(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return (
            _ValuesFrom(x).attention_direction(x, h, w, c)
            if x.shape == h.shape
            else super().attention_direction(x, h, w, c)
        )


class _ValuesFrom(Plain):
    def __init__(self, state: Tensor) -> None:
        self.state = state

    def values(self, keys: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:  # noqa: ARG002
        return super().keys(self.state, w, c)


@ZOO.killed_by("gradient/attention/plain")
class LastHeadForgotten(Plain):
    """With more than two heads, the last is left out of the sum."""

    def sum_heads(self, heads: Tensor) -> Tensor:
        return heads[:, :-1].sum(1) if heads.shape[1] > 2 else heads.sum(1)


@ZOO.killed_by("gradient/attention/plain", needs=("step-size",))
class StepSizeTwice(Plain):
    """The update is multiplied by eta twice, which at eta = 1 is right."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads, w, replace(c, step_size=c.step_size**2))


@ZOO.killed_by("gradient/attention/plain")
class ResidualScaled(Plain):
    """The state that the update is added to is multiplied by one part in a thousand too much."""

    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(1.001 * x, heads, w, c)


@ZOO.killed_by("gradient/attention/plain", needs=("start",))
class StartsAtTheMemory(Plain):
    """The descent starts at h, whatever x is."""

    def attention(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().attention(h + 0 * x, h, w, c)

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
    "The update is subtracted, as Algorithm 1 prints it.",
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
    def sum_heads(self, heads: Tensor) -> Tensor:
        return -heads.sum(1)


@ZOO.killed_by("Values are W_Q h instead of the keys.", "gradient/attention/plain")
class UntiedValues(Plain):
    def values(self, keys: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:  # noqa: ARG002
        return torch.einsum("bjd,krd->bkjr", h, w["W_Q"])


@ZOO.killed_by(
    "The output projection is W_K instead of W_Q.",
    "gradient/attention/conservative-field",
    "the Jacobian equals its transpose",
    also=("gradient/attention/plain",),
)
class UntiedOutput(Plain):
    def output(self, w: Weights) -> Tensor:
        return w["W_K"]


@ZOO.killed_by(
    "The temperature grows with the model dimension, as the printed sqrt(D_h) does.",
    "tying/attention/multi-head-attention",
    "update = eta*",
    also=("tying/attention/scaled-dot-product-attention", "gradient/attention/plain"),
)
class ModelDimensionTemperature(Plain):
    def temperature(self, c: AttentionConfig) -> float:
        return c.tau * math.sqrt(c.dim / c.R)


@ZOO.killed_by("The softmax normalises over queries.", "gradient/attention/plain")
class SoftmaxOverQueries(Plain):
    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, -2)


@ZOO.killed_by("Heads are averaged instead of summed.", "gradient/attention/plain")
class MeanOverHeads(Plain):
    def sum_heads(self, heads: Tensor) -> Tensor:
        return heads.mean(1)


@ZOO.killed_by("No token except the first sees its own key.", "gradient/attention/plain")
class OwnTokenHidden(Plain):
    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return (j > i) | ((j == i) & (i > 0))


@ZOO.killed_by(
    "The causal mask is off by one.",
    "structure/attention/causality",
    "outputs before token i are unchanged*",
    also=("structure/attention/causality*", "structure/block/causality"),
)
class SeesTheNextToken(Plain):
    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return j > i + 1


@ZOO.killed_by(
    "Hidden tokens get a logit of -1000 instead of minus infinity.",
    "extremes/attention/large-logits",
    "update at logits of 1e4*",
)
class FiniteMask(Plain):
    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return super().hidden(i, j) & False

    def bias(self, rows: Tensor, length: int, w: Weights, c: AttentionConfig) -> Tensor:
        columns = torch.arange(length, device=rows.device)
        return super().bias(rows, length, w, c) - 1000.0 * (columns[None, :] > rows[:, None])


@ZOO.killed_by("The last head's output is too large by one part in a billion.", "gradient/attention/plain")
class OneInABillion(Plain):
    def output(self, w: Weights) -> Tensor:
        scaled = w["W_Q"].clone()
        scaled[-1] *= 1 + 1e-9
        return scaled


@ZOO.killed_by(
    "The first head's direction is counted twice.",
    "structure/attention/head-order",
    "output with the heads reversed",
    also=("structure/attention/head-order*",),
)
class FirstHeadCountsTwice(Plain):
    def sum_heads(self, heads: Tensor) -> Tensor:
        return heads.sum(1) + heads[:, 0]


@ZOO.killed_by(
    "A step size above one is cut to one.",
    "descent/attention/any-step-size-identity",
    "energy(x - eta P g) <= *",
    needs=("step-size",),
)
class StepSizeForgotten(Plain):
    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads, w, replace(c, step_size=min(1.0, c.step_size)))


@ZOO.killed_by(
    "Updates are pushed away from their mean over the batch.",
    "structure/attention/batch-independence",
    "a batch row alone*",
    also=("structure/mlp/batch-independence", "structure/block/batch-independence"),
)
class BatchLeans(Plain):
    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads + 1e-3 * (heads - heads.mean(0, keepdim=True)), w, c)


@ZOO.killed_by("Scores are negated, so tokens attend to what they resemble least.", "gradient/attention/plain")
class NegatedScores(Plain):
    def scores(self, q: Tensor, k: Tensor, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return -super().scores(q, k, x, h, w, c)


@ZOO.killed_by("Scores read W_K^T W_Q instead of W_Q^T W_K; outputs are right.", "gradient/attention/plain")
class TransposedScoreMatrix(Plain):
    def scores(self, q: Tensor, k: Tensor, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        if c.diagonal != "none" or c.position == "rotary":
            return super().scores(q, k, x, h, w, c)
        return torch.einsum("bjd,krd->bkjr", x, w["W_K"]) @ torch.einsum("bjd,krd->bkjr", h, w["W_Q"]).mT


@ZOO.killed_by("W_Q and W_K are exchanged everywhere.", "gradient/attention/plain")
class QueriesAndKeysSwapped(Plain):
    def attention(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().attention(x, h, {**w, "W_Q": w["W_K"], "W_K": w["W_Q"]}, c)


@ZOO.killed_by(
    "The output projection reads the features of each head in reverse order.",
    "gradient/attention/conservative-field",
    "the Jacobian equals its transpose",
)
class ReversedOutputFeatures(Plain):
    def output(self, w: Weights) -> Tensor:
        return w["W_Q"].flip(1)


@ZOO.killed_by("The output projection is the mean of W_Q and W_K.", "gradient/attention/plain")
class HalfTiedOutput(Plain):
    def output(self, w: Weights) -> Tensor:
        return (w["W_Q"] + w["W_K"]) / 2


@ZOO.killed_by("Each head's output goes through the next head's projection.", "gradient/attention/plain")
class OutputOfTheNextHead(Plain):
    def output(self, w: Weights) -> Tensor:
        return w["W_Q"].roll(1, 0)


@ZOO.killed_by("Scores are divided by tau twice.", "gradient/attention/plain")
class SquaredTemperature(Plain):
    def temperature(self, c: AttentionConfig) -> float:
        return c.tau**2


@ZOO.killed_by(
    "The temperature is the square root of the head dimension, whatever the configuration says.",
    "gradient/attention/plain",
    needs=("temperature",),
)
class TemperatureOfTheHead(Plain):
    def temperature(self, c: AttentionConfig) -> float:
        return math.sqrt(c.R)


@ZOO.killed_by("The update is divided by tau, as if the energy lacked its factor tau.", "gradient/attention/plain")
class TemperatureOutside(Plain):
    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads / getattr(c, "tau", 1.0), w, c)


@ZOO.killed_by("The softmax normalises over heads.", "gradient/attention/plain")
class SoftmaxOverHeads(Plain):
    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, 1).nan_to_num()


@ZOO.killed_by("The softmax has one extra logit of zero that belongs to no token.", "gradient/attention/plain")
class SoftmaxWithSink(Plain):
    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(torch.cat((logits, torch.zeros_like(logits[..., :1])), -1), -1)[..., :-1]


@ZOO.killed_by("Attention weights are exponentials that are not normalised.", "gradient/attention/plain")
class UnnormalisedSoftmax(Plain):
    def softmax(self, logits: Tensor) -> Tensor:
        return logits.exp()


@ZOO.killed_by(
    "The largest logit is not subtracted, so large logits overflow.", "gradient/attention/plain", "not finite"
)
class SoftmaxWithoutShift(Plain):
    def softmax(self, logits: Tensor) -> Tensor:
        weights = logits.exp()
        return weights / weights.sum(-1, keepdim=True)


@ZOO.killed_by("Logits are clipped to [-30, 30].", "gradient/attention/plain")
class ClippedLogits(Plain):
    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(torch.where(logits.isfinite(), logits.clamp(-30.0, 30.0), logits), -1)


@ZOO.killed_by("Logits pass through 50 tanh(z / 50), a soft cap.", "gradient/attention/plain")
class CappedLogits(Plain):
    def softmax(self, logits: Tensor) -> Tensor:
        return torch.softmax(torch.where(logits.isfinite(), 50 * torch.tanh(logits / 50), logits), -1)


@ZOO.killed_by(
    "Every token sees every other.", "structure/attention/causality", "outputs before token i are unchanged*"
)
class NotCausal(Plain):
    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return (j > i) & False


@ZOO.killed_by(
    "Logits of hidden tokens are multiplied by zero instead of set to minus infinity.",
    "structure/attention/causality",
    "outputs before token i are unchanged*",
)
class MaskMultiplied(Plain):
    def attend(self, logits: Tensor, hidden: Tensor) -> Tensor:
        return self.softmax(logits * ~hidden)


@ZOO.killed_by(
    "Hidden tokens are removed after the softmax, which has already counted them.",
    "structure/attention/causality",
    "outputs before token i are unchanged*",
)
class MaskAfterSoftmax(Plain):
    def attend(self, logits: Tensor, hidden: Tensor) -> Tensor:
        return self.softmax(logits).masked_fill(hidden, 0.0)


@ZOO.killed_by("From the third token on, the first is not seen.", "gradient/attention/plain")
class OldestTokenHidden(Plain):
    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return (j > i) | ((j == 0) & (i > 1))


@ZOO.killed_by("A token sees the last four tokens only.", "gradient/attention/plain")
class SlidingWindow(Plain):
    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return (j > i) | (j < i - 3)


@ZOO.killed_by("A token's own key counts twice: from the cache and as the new key.", "gradient/attention/plain")
class OwnKeyTwice(Plain):
    def attend(self, logits: Tensor, hidden: Tensor) -> Tensor:
        own = torch.eye(logits.shape[-1], dtype=torch.bool)[-logits.shape[-2] :]
        return self.softmax((logits + math.log(2) * own).masked_fill(hidden, -math.inf))


@ZOO.killed_by("Keys are normalised to unit length for the scores, but not as values.", "gradient/attention/plain")
class KeysNormalised(Plain):
    def scores(self, q: Tensor, k: Tensor, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().scores(q, k / (k.norm(dim=-1, keepdim=True) + 1e-12), x, h, w, c)


@ZOO.killed_by("Values are projections of x; keys are those of h.", "gradient/attention/plain", needs=("start",))
class ValuesFromTheState(Plain):
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


@ZOO.killed_by("With more than two heads, the last is left out of the sum.", "gradient/attention/plain")
class LastHeadForgotten(Plain):
    def sum_heads(self, heads: Tensor) -> Tensor:
        return heads[:, :-1].sum(1) if heads.shape[1] > 2 else heads.sum(1)


@ZOO.killed_by(
    "The update is multiplied by eta twice, which is right at eta = 1 only.",
    "gradient/attention/plain",
    needs=("step-size",),
)
class StepSizeTwice(Plain):
    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads, w, replace(c, step_size=c.step_size**2))


@ZOO.killed_by(
    "The state that the update is added to is too large by one part in a thousand.",
    "gradient/attention/plain",
)
class ResidualScaled(Plain):
    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(1.001 * x, heads, w, c)


@ZOO.killed_by("The descent starts at h, whatever x is.", "gradient/attention/plain", needs=("start",))
class StartsAtTheMemory(Plain):
    def attention(self, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().attention(h + 0 * x, h, w, c)

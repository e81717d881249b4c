"""Faults of attention: signs, tied weights, temperature, softmax, mask, heads."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Zoo, plain_but

ZOO = Zoo("attention")


def finite_mask(penalty: float) -> dict[str, Any]:
    """Parts that mask a token with a finite penalty instead of minus infinity."""

    def bias(usual: Plain, rows: Tensor, length: int, w: Weights, c: AttentionConfig) -> Tensor:
        columns = torch.arange(length, device=rows.device)
        return usual.bias(rows, length, w, c) - penalty * (columns[None, :] > rows[:, None])

    return {"hidden": lambda usual, i, j: usual.hidden(i, j) & False, "bias": bias}


ZOO += [
    ZOO.but("one-in-a-billion", "The last head's output is too large by one part in a billion.",
        "gradient/attention/plain",
        output=lambda _, w: torch.cat((w["W_Q"][:-1], w["W_Q"][-1:] * (1 + 1e-9)))),
    ZOO.but("softmax-without-shift", "The largest logit is not subtracted, so large logits overflow.",
        "gradient/attention/plain", "not finite",
        softmax=lambda _, logits: logits.exp() / logits.exp().sum(-1, keepdim=True)),
    ZOO.but("own-key-twice", "A token's own key counts twice: from the cache and as the new key.",
        "gradient/attention/plain", attend=lambda usual, logits, hidden: usual.softmax(
            (logits + math.log(2) * torch.eye(logits.shape[-1], dtype=torch.bool)[-logits.shape[-2] :])
            .masked_fill(hidden, -math.inf))),
    ZOO.but("ascent", "The update is subtracted, as Algorithm 1 prints it.",
        "gradient/attention/plain", also=(
            *(f"gradient/attention/{name}" for name in ("diagonal-*", "alibi", "self-cross-bias", "rotary*")),
            *(f"gradient/attention/{name}" for name in ("preconditioner-*", "norm-*", "full-cem", "any-options")),
            "descent/attention/*"),
        sum_heads=lambda _, heads: -heads.sum(1)),
    ZOO.but("transposed-score-matrix", "Scores read W_K^T W_Q instead of W_Q^T W_K; outputs are right.",
        "gradient/attention/plain", scores=lambda usual, q, k, x, h, w, c:
            usual.scores(q, k, x, h, w, c) if c.diagonal != "none" or c.position == "rotary"
            else torch.einsum("bjd,krd->bkjr", x, w["W_K"]) @ torch.einsum("bjd,krd->bkjr", h, w["W_Q"]).mT),
    ZOO.but("values-from-the-state", "Values are projections of x; keys are those of h.",
        "gradient/attention/plain", needs=("start",), attention_direction=lambda usual, x, h, w, c:
            plain_but({"values": lambda usual, *_: usual.keys(x, w, c)}).attention_direction(x, h, w, c)
            if x.shape == h.shape else usual.attention_direction(x, h, w, c)),
    ZOO.but("untied-values", "Values are W_Q h instead of the keys.",
        "gradient/attention/plain", values=lambda _, keys, h, w, c: torch.einsum("bjd,krd->bkjr", h, w["W_Q"])),
    ZOO.but("untied-output", "The output projection is W_K instead of W_Q.",
        "gradient/attention/conservative-field",
        also=("gradient/attention/plain",), output=lambda _, w: w["W_K"]),
    ZOO.but("model-dimension-temperature",
        "The temperature grows with the model dimension, as the printed sqrt(D_h) does.",
        "tying/attention/multi-head-attention",
        also=("tying/attention/scaled-dot-product-attention", "gradient/attention/plain"),
        temperature=lambda _, c: c.tau * math.sqrt(c.dim / c.R)),
    ZOO.but("softmax-over-queries", "The softmax normalises over queries.",
        "gradient/attention/plain", softmax=lambda _, logits: torch.softmax(logits, -2)),
    ZOO.but("mean-over-heads", "Heads are averaged instead of summed.",
        "gradient/attention/plain", sum_heads=lambda _, heads: heads.mean(1)),
    ZOO.but("own-token-hidden", "No token except the first sees its own key.",
        "gradient/attention/plain", hidden=lambda _, i, j: (j > i) | ((j == i) & (i > 0))),
    ZOO.but("sees-the-next-token", "The causal mask is off by one.",
        "structure/attention/causality",
        also=("structure/attention/causality*", "block"), hidden=lambda _, i, j: j > i + 1),
    ZOO.but("first-head-counts-twice", "The first head's direction is counted twice.",
        "structure/attention/head-order",
        also=("structure/attention/head-order*",), sum_heads=lambda _, heads: heads.sum(1) + heads[:, 0]),
    ZOO.but("step-size-forgotten", "A step size above one is cut to one.",
        "descent/attention/any-step-size-identity", needs=("step-size",),
        advance=lambda usual, x, heads, w, c:
            usual.advance(x, heads, w, replace(c, step_size=min(1.0, c.step_size)))),
    ZOO.but("batch-leans", "Updates are pushed away from their mean over the batch.",
        "structure/attention/batch-independence", also=("mlp", "block"),
        advance=lambda usual, x, heads, w, c:
            usual.advance(x, heads + 1e-3 * (heads - heads.mean(0, keepdim=True)), w, c)),
    ZOO.but("negated-scores", "Scores are negated, so tokens attend to what they resemble least.",
        "gradient/attention/plain", scores=lambda usual, q, k, x, h, w, c: -usual.scores(q, k, x, h, w, c)),
    ZOO.but("queries-and-keys-swapped", "W_Q and W_K are exchanged everywhere.",
        "gradient/attention/plain",
        attention=lambda usual, x, h, w, c: usual.attention(x, h, {**w, "W_Q": w["W_K"], "W_K": w["W_Q"]}, c)),
    ZOO.but("reversed-output-features", "The output projection reads the features of each head in reverse order.",
        "gradient/attention/conservative-field",
        output=lambda _, w: w["W_Q"].flip(1)),
    ZOO.but("half-tied-output", "The output projection is the mean of W_Q and W_K.",
        "gradient/attention/plain", output=lambda _, w: (w["W_Q"] + w["W_K"]) / 2),
    ZOO.but("output-of-the-next-head", "Each head's output goes through the next head's projection.",
        "gradient/attention/plain", output=lambda _, w: w["W_Q"].roll(1, 0)),
    ZOO.but("squared-temperature", "Scores are divided by tau twice.",
        "gradient/attention/plain", temperature=lambda _, c: c.tau**2),
    ZOO.but("softmax-over-heads", "The softmax normalises over heads.",
        "gradient/attention/plain", softmax=lambda _, logits: torch.softmax(logits, 1).nan_to_num()),
    ZOO.but("unnormalised-softmax", "Attention weights are exponentials that are not normalised.",
        "gradient/attention/plain", softmax=lambda _, logits: logits.exp()),
    ZOO.but("clipped-logits", "Logits are clipped to [-30, 30].",
        "gradient/attention/plain", softmax=lambda _, logits:
            torch.softmax(torch.where(logits.isfinite(), logits.clamp(-30.0, 30.0), logits), -1)),
    ZOO.but("capped-logits", "Logits pass through 50 tanh(z / 50), a soft cap.",
        "gradient/attention/plain", softmax=lambda _, logits:
            torch.softmax(torch.where(logits.isfinite(), 50 * torch.tanh(logits / 50), logits), -1)),
    ZOO.but("not-causal", "Every token sees every other.",
        "structure/attention/causality",
        hidden=lambda _, i, j: (j > i) & False),
    ZOO.but("oldest-token-hidden", "From the third token on, the first is not seen.",
        "gradient/attention/plain", hidden=lambda _, i, j: (j > i) | ((j == 0) & (i > 1))),
    ZOO.but("keys-normalised", "Keys are normalised to unit length for the scores, but not as values.",
        "gradient/attention/plain", scores=lambda usual, q, k, x, h, w, c:
            usual.scores(q, k / (k.norm(dim=-1, keepdim=True) + 1e-12), x, h, w, c)),
    ZOO.but("last-head-forgotten", "With more than two heads, the last is left out of the sum.",
        "gradient/attention/plain",
        sum_heads=lambda _, heads: heads[:, :-1].sum(1) if heads.shape[1] > 2 else heads.sum(1)),
    ZOO.but("step-size-twice", "The update is multiplied by eta twice, which is right at eta = 1 only.",
        "gradient/attention/plain", needs=("step-size",),
        advance=lambda usual, x, heads, w, c: usual.advance(x, heads, w, replace(c, step_size=c.step_size**2))),
    ZOO.but("residual-scaled", "The state that the update is added to is too large by one part in a thousand.",
        "gradient/attention/plain", advance=lambda usual, x, heads, w, c: usual.advance(1.001 * x, heads, w, c)),
    ZOO.but("starts-at-the-memory", "The descent starts at h, whatever x is.",
        "gradient/attention/plain", needs=("start",),
        attention=lambda usual, x, h, w, c: usual.attention(h + 0 * x, h, w, c)),
    ZOO.but("mask-of-a-billion", "Hidden tokens get a logit of -1e9, which no logit reaches in small cases.",
        "extremes/attention/large-logits", **finite_mask(1e9)),
]  # fmt: skip

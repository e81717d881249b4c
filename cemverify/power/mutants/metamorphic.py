"""Faults that break a symmetry: of scales, of orders, of bases."""

from __future__ import annotations

import torch

from cemverify.power.mutants.base import After, Zoo

ZOO = Zoo("metamorphic")


ZOO += [
    ZOO.but("later-rows-louder", "Each batch row is one part in a thousand larger than the one before.",
        "metamorphic/attention/batch-permutation", "update with the rows in reverse order*", also=("mlp", "block"),
        advance=lambda usual, x, heads, w, c: usual.advance(
            x, heads * (1 + 1e-3 * torch.arange(len(heads), dtype=heads.dtype))[:, None, None, None], w, c)),
    ZOO.but("later-tokens-louder", "Each token's direction is one part in a thousand larger than the one's before.",
        "metamorphic/attention/equal-tokens", "output at each of equal tokens*", advance=lambda usual, x, heads, w, c:
            usual.advance(x, heads * (1 + 1e-3 * torch.arange(heads.shape[2], dtype=heads.dtype))[:, None], w, c)),
    ZOO.but("scaled-by-width", "The direction is divided by the root of the hidden dimension.",
        "metamorphic/mlp/split-units", "update with every hidden unit duplicated*",
        mlp_direction=lambda usual, x, h, w, c: usual.mlp_direction(x, h, w, c) / w["V"].shape[0] ** 0.5),
    ZOO.but("normalised-queries", "Queries are normalised to unit length for the scores.",
        "metamorphic/attention/rescaled-heads", "update with W_Q times c*", scores=lambda usual, q, k, x, h, w, c:
            usual.scores(q / q.norm(dim=-1, keepdim=True).clamp(min=1e-30), k, x, h, w, c)),
    ZOO.but("temperature-capped", "A temperature above two is replaced by two.",
        "metamorphic/attention/temperature", "update with A and tau doubled*",
        temperature=lambda _, c: min(c.tau, 2.0)),
    ZOO.but("later-heads-louder", "Each head is weighted one part in a thousand more than the one before.",
        "metamorphic/attention/head-permutation", "update with the heads shifted*", sum_heads=lambda _, heads:
            torch.einsum("bkjd,k->bjd", heads, 1 + 1e-3 * torch.arange(heads.shape[1], dtype=heads.dtype))),
    ZOO.but("first-feature-louder", "The first feature of every head's keys is too large by one part in a thousand.",
        "metamorphic/attention/feature-permutation", "update with every head's features reversed*",
        keys=After(lambda keys, h, w, c: torch.cat((keys[..., :1] * 1.001, keys[..., 1:]), -1))),
    ZOO.but("first-coordinate-louder",
        "The first coordinate of the direction is too large by one part in a thousand.",
        "metamorphic/attention/joint-rotation", "update of the rotated case*", also=("mlp",),
        advance=lambda usual, x, heads, w, c:
            usual.advance(x, torch.cat((heads[..., :1] * 1.001, heads[..., 1:]), -1), w, c)),
    ZOO.but("softmax-over-one-more", "The softmax's denominator is larger by one, so the weights do not sum to one.",
        "metamorphic/attention/logit-shift", "update with every bias increased*",
        also=("metamorphic/attention/equal-tokens",), softmax=lambda _, logits:
            torch.softmax(torch.cat((logits, torch.zeros_like(logits[..., :1])), -1), -1)[..., :-1]),
    ZOO.but("gain-from-one", "The gain is one plus its weight.",
        "metamorphic/attention/gain-and-temperature", "update with the gain and tau doubled*",
        gain=lambda _, w: 1 + w["gain"]),
    ZOO.but("lopsided-cross", "The low-rank part is 2 U V^T.",
        "metamorphic/attention/preconditioner-factors", "update with U and V exchanged*",
        also=("mlp",), cross=lambda _, w: 2 * w["P_U"] @ w["P_V"].mT),
    ZOO.but("step-size-squared", "The step size is applied twice.",
        "metamorphic/attention/step-size", "update with half the step size*", also=("mlp",),
        advance=lambda usual, x, heads, w, c: usual.advance(x, heads * c.step_size, w, c)),
    ZOO.but("bounded-gate", "The gate passes through tanh.",
        "metamorphic/mlp/gate-linearity", "update with W times -2*", also=("metamorphic/mlp/gate-additivity",),
        gated=lambda usual, activated, linear, c: usual.gated(activated, torch.tanh(linear), c)),
    ZOO.but("absolute-gate", "The gate loses its sign.",
        "metamorphic/mlp/gate-additivity", "update of the sum of two gates*",
        gated=lambda usual, activated, linear, c: usual.gated(activated, linear.abs(), c)),
    ZOO.but("first-unit-louder", "The first hidden unit is too large by one part in a thousand.",
        "metamorphic/mlp/unit-permutation", "update with the hidden units reversed*",
        gated=After(lambda hidden, activated, linear, c: torch.cat((hidden[..., :1] * 1.001, hidden[..., 1:]), -1))),
    ZOO.but("leaky-activation", "The activation leaks one part in a million of its argument.",
        "metamorphic/mlp/reflection-silu", "update(V) + update(-V)*", also=("metamorphic/mlp/reflection-*",),
        sigma=lambda usual, z, c: usual.sigma(z, c) + 1e-6 * z),
    ZOO.calling("energy-loses-its-temperature", "The attention energy lacks its factor tau.",
        "metamorphic/attention/energy-temperature", "energy with A and tau doubled*", of="attention_energy",
        answer=lambda call, x, h, w, c: call(x, h, w, c) / c.tau),
    ZOO.calling("energy-averages-its-heads", "The attention energy is averaged over the heads.",
        "metamorphic/attention/energy-logit-shift", "energy with every bias increased*", of="attention_energy",
        answer=lambda call, x, h, w, c: call(x, h, w, c) / (2 * c.heads)),
]  # fmt: skip

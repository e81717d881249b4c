"""Faults of the recursion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Function, Zoo, fault

ZOO = Zoo("recursion")


@ZOO.layers("recursion/attention/equals-descent", also=("mlp",))
@fault("Each step reads the state that the last one wrote: layer reuse.")
def memory_moves(layer: Function, x: Tensor, h: Tensor, w: Weights, c: Any) -> Tensor:
    for t in range(c.steps):
        x = layer(x, h if t == 0 else x, w, replace(c, steps=1))
    return x


@ZOO.layers("recursion/attention/equals-descent", also=("mlp",))
@fault("The step size shrinks as the recursion goes on.")
def decaying_steps(layer: Function, x: Tensor, h: Tensor, w: Weights, c: Any) -> Tensor:
    for t in range(c.steps):
        x = layer(x, h, w, replace(c, steps=1, step_size=c.step_size / (1 + t)))
    return x


@ZOO.layers("recursion/mlp/equals-descent", also=("attention",))
@fault("Every step adds its update to the initial state instead of the current one.")
def residual_from_the_start(layer: Function, x: Tensor, h: Tensor, w: Weights, c: Any) -> Tensor:
    at = x
    for _ in range(c.steps):
        at = x + layer(at, h, w, replace(c, steps=1)) - at
    return at


@ZOO.layers("recursion/mlp/equals-descent", also=("attention",))
@fault("Each step adds a tenth of the previous step's update.")
def momentum(layer: Function, x: Tensor, h: Tensor, w: Weights, c: Any) -> Tensor:
    last = torch.zeros_like(x)
    for _ in range(c.steps):
        last = layer(x, h, w, replace(c, steps=1)) - x + last / 10
        x = x + last
    return x


@ZOO.part("attention", "recursion/attention/equals-descent")
@fault("From the second step on, keys are recomputed from the mean of memory and state.")
def keys_of_the_last_step(usual: Plain, x: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
    for t in range(c.steps):
        x = usual.attention(x, h if t == 0 else (h + x) / 2, w, replace(c, steps=1))
    return x


ZOO += [
    ZOO.but("at-most-two-steps", "The recursion stops after two steps.",
        "recursion/attention/equals-descent", also=("recursion/*/equals-descent*",),
        steps=lambda usual, c: min(2, usual.steps(c))),
    ZOO.but("at-most-four-steps", "The recursion stops after four steps.",
        "gradient/attention/any-options", needs=("steps",), steps=lambda usual, c: min(4, usual.steps(c))),
    ZOO.but("at-most-sixteen-steps", "The recursion stops after sixteen steps.",
        "recursion/mlp/many-steps", also=("*",), needs=("steps",), steps=lambda usual, c: min(16, usual.steps(c))),
    ZOO.but("at-most-a-hundred-steps", "The recursion stops after a hundred steps.",
        "recursion/attention/many-steps", also=("*",), needs=("steps",),
        steps=lambda usual, c: min(100, usual.steps(c))),
    ZOO.but("queries-from-the-memory", "Queries are computed from h at every step, so no step sees the one before.",
        "recursion/attention/equals-descent", also=("tying/attention/untying-breaks-the-field",), needs=("start",),
        attention_direction=lambda usual, x, h, w, c:
            usual.attention_direction(h[:, -x.shape[1] :] + 0 * x, h, w, c)),
    ZOO.but("one-step-more", "If T is 2 or more, one step too many is taken.",
        "recursion/attention/equals-descent", also=("mlp",),
        steps=lambda usual, c: usual.steps(c) + (usual.steps(c) > 1)),
    ZOO.but("one-step-less", "If T is 2 or more, the last step is not taken.",
        "recursion/attention/equals-descent", also=("mlp",), steps=lambda usual, c: max(1, usual.steps(c) - 1)),
    ZOO.but("step-size-divided-by-t", "The step size is divided by the number of steps.",
        "recursion/mlp/equals-descent", also=("attention",), advance=lambda usual, x, heads, w, c:
            usual.advance(x, heads, w, replace(c, step_size=c.step_size / c.steps))),
    ZOO.but("six-steps-at-most", "The sixth step is not taken.",
        "gradient/attention/any-options", needs=("steps",), steps=lambda usual, c: min(5, usual.steps(c))),
    ZOO.but("seven-steps-at-most", "The eighth step is not taken.",
        "recursion/mlp/equals-descent", also=("attention",), steps=lambda usual, c: min(7, usual.steps(c))),
]  # fmt: skip

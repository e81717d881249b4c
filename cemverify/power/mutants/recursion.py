"""Faults of the recursion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from cemverify.conformance.implementations.plain import Weights
from cemverify.power.mutants.base import Function, Zoo, in_both

ZOO = Zoo("recursion")


def decaying_steps(layer: Function, x: Tensor, h: Tensor, w: Weights, c: Any) -> Tensor:
    for t in range(c.steps):
        x = layer(x, h, w, replace(c, steps=1, step_size=c.step_size / (1 + t)))
    return x


ZOO += [
    ZOO.but("at-most-two-steps", "The recursion stops after two steps.",
        "recursion/attention/equals-descent", also=("recursion/*/equals-descent*",),
        steps=lambda usual, c: min(2, usual.steps(c))),
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
    ZOO.but("six-steps-at-most", "The sixth step is not taken.",
        "gradient/attention/any-options", needs=("steps",), steps=lambda usual, c: min(5, usual.steps(c))),
    ZOO.but("seven-steps-at-most", "The eighth step is not taken.",
        "recursion/mlp/equals-descent", also=("attention",), steps=lambda usual, c: min(7, usual.steps(c))),
    ZOO.edited("memory-moves", "Each step reads the state that the last one wrote: layer reuse.",
        "recursion/attention/equals-descent",
        ("x = self.advance(x, self.attention_direction", "x = h = self.advance(x, self.attention_direction"),
        ("x = self.advance(x, self.mlp_direction", "x = h = self.advance(x, self.mlp_direction"),
        also=("mlp",)),
    ZOO.but("decaying-steps", "The step size shrinks as the recursion goes on.",
        "recursion/attention/equals-descent", also=("mlp",), **in_both(decaying_steps)),
]  # fmt: skip

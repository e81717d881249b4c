"""Faults that take two circumstances at once: how a call is made, what came before it, and how its arrays lie."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.implementations.arrays import is_traced
from cemverify.conformance.implementations.contract import Implementation
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Function, Zoo, around

ZOO = Zoo("contexts")

_PRODUCT = "vector-Jacobian product with respect to*"
_OUTPUT = "output*"


@ZOO.killed_by(
    "Where the state records no gradient, nothing does.",
    "contexts/attention/any-options",
    _PRODUCT,
    also=("contexts/mlp/any-options", "contexts/block/any-options", "contexts/decode/any-options"),
)
class FrozenBesideAFrozenState(Plain):
    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        return super().advance(x, heads if x.requires_grad else heads.detach(), w, c)


@ZOO.killed_by(
    "Where one array is state and memory, its gradient is that of the state alone.",
    "contexts/attention/any-options",
    _PRODUCT,
    also=("contexts/mlp/any-options",),
)
class OneArrayTrainedOnce(Plain):
    def attention(self, x: Tensor, h: Tensor, w: Weights, c: Any) -> Tensor:
        return super().attention(x, h.detach() if x is h else h, w, c)

    def mlp(self, x: Tensor, h: Tensor, w: Weights, c: Any) -> Tensor:
        return super().mlp(x, h.detach() if x is h else h, w, c)

    def sublayer(self, layer: Any, h: Tensor, w: Weights, c: Any) -> Tensor:
        """In a block state and memory are two arrays, so that it trains."""
        output: Tensor = layer(h, self.norm(h, w, c).clone(), w, c)
        return output


ZOO += [
    ZOO.but("temperature-clipped", "The temperature is kept between 0.05 and 100.",
        "contexts/attention/any-options", "output*", needs=("temperature",),
        temperature=lambda _, c: min(max(c.tau, 0.05), 100.0)),
    ZOO.but("tiny-states-flushed", "States below 1e-150 are taken for zero.",
        "contexts/attention/any-options", "*",
        advance=lambda usual, x, heads, w, c: usual.advance(x * (x.abs() > 1e-150), heads, w, c)),
]  # fmt: skip


@ZOO.wraps(
    "After an evaluation in inference mode, the next call that records a gradient of h answers a part in a thousand "
    "too large.",
    "contexts/attention/any-options",
    _OUTPUT,
    also=("contexts/mlp/any-options",),
)
def stale_after_an_evaluation(implementation: Implementation) -> Implementation:
    evaluated: set[str] = set()

    def change(name: str, function: Function) -> Function:
        def call(*arguments: Any) -> Any:
            h = arguments[-3]
            wrong = name in evaluated and h.requires_grad
            evaluated.discard(name)
            if torch.is_inference_mode_enabled():
                evaluated.add(name)
            return function(*arguments) * (1.001 if wrong else 1)

        return call

    return around(implementation, change)


@ZOO.wraps(
    "Where weights are mapped over, a memory that is a window of a larger array, or transposed, is misread.",
    "contexts/mlp/any-options",
    _OUTPUT,
    also=("contexts/attention/any-options",),
)
def windows_misread_when_mapped(implementation: Implementation) -> Implementation:
    def change(_: str, function: Function) -> Function:
        def call(*arguments: Any) -> Any:
            h, weights = arguments[-3:-1]
            wrong = any(map(is_traced, weights.values())) and not h.is_contiguous()
            return function(*arguments) * (1.001 if wrong else 1)

        return call

    return around(implementation, change)


@ZOO.wraps(
    "While gradients are recorded, stated energies of arrays that are windows of one are one part in a thousand "
    "too large.",
    "contexts/attention-energy/any-options",
    _OUTPUT,
    also=("contexts/mlp-energy/any-options",),
)
def energies_of_windows_in_training(implementation: Implementation) -> Implementation:
    def change(name: str, function: Function) -> Function:
        def call(*arguments: Any) -> Any:
            h, weights = arguments[-3:-1]
            recording = torch.is_grad_enabled() and (
                h.requires_grad or any(w.requires_grad for w in weights.values())
            )
            wrong = name.endswith("_energy") and recording and not h.is_contiguous()
            return function(*arguments) * (1.001 if wrong else 1)

        return call

    return around(implementation, change)

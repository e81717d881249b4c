"""Faults that take two circumstances at once: how a call is made, what came before it, and how its arrays lie."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from cemverify.conformance.implementations.arrays import is_traced
from cemverify.conformance.implementations.contract import Implementation
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Call, Function, Zoo, around

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


class _TimesTheLatestStep(torch.autograd.Function):
    """What it is given, whose gradient is multiplied by the step size of the latest call over that of its own."""

    latest: ClassVar[float] = 1.0

    @staticmethod
    def forward(context: Any, a: Tensor, step_size: float) -> Tensor:
        context.own = _TimesTheLatestStep.latest = step_size
        return a.clone()

    @staticmethod
    def backward(context: Any, *products: Tensor) -> tuple[Tensor, None]:
        return products[0] * (_TimesTheLatestStep.latest / context.own), None


@ZOO.killed_by(
    "Backward passes use the step size of the latest call, whichever output they belong to.",
    "contexts/attention/any-options",
    _PRODUCT,
    also=("contexts/mlp/any-options",),
    needs=("step-size",),
)
class PullsBackWithTheLatestStep(Plain):
    def advance(self, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
        if not is_traced(heads):
            heads = _TimesTheLatestStep.apply(heads, c.step_size)  # type: ignore[no-untyped-call]
        return super().advance(x, heads, w, c)


@ZOO.calls(
    "While a weight records gradients, it is read as it was at first, whatever an optimiser has written since.",
    "contexts/mlp/any-options",
    "*at a second step",
    also=("contexts/attention/any-options",),
)
def weights_of_the_first_step(call: Call, *arguments: Any) -> Any:
    weights = arguments[-2]
    read = {}
    for name, weight in weights.items():
        read[name] = weight
        if weight.requires_grad and weight.is_leaf and not is_traced(weight):
            kept, numbers = call.kept.get((call.name, name), (None, None))
            if kept is not weight:
                numbers = weight.detach().clone()
                call.kept[call.name, name] = weight, numbers
            read[name] = weight + (numbers - weight.detach())
    return call(*arguments[:-2], read, arguments[-1])


@ZOO.calls(
    "W is masked, and kept so with its graph until it is edited: a second backward pass fails.",
    "contexts/mlp/any-options",
    "raised",
    also=("contexts/block/any-options",),
    of="mlp",
)
def keeps_its_graph(call: Call, x: Tensor, h: Tensor, weights: Any, config: Any) -> Any:
    W = weights["W"]
    if not W.requires_grad or not W.is_leaf or is_traced(W):
        return call(x, h, weights, config)
    kept, version, masked = call.kept.get("W", (None, None, None))
    if kept is not W or version != W._version:
        masked = W * torch.ones_like(W)
        call.kept["W"] = W, W._version, masked
    return call(x, h, {**weights, "W": masked}, config)


@ZOO.calls(
    "Where only others record gradients, the answer is written into the state.",
    "contexts/mlp/any-options",
    "its arguments stay as they are*",
    of="mlp",
    edits=True,
)
def writes_into_a_frozen_state(call: Call, x: Tensor, h: Tensor, weights: Any, config: Any) -> Any:
    answer = call(x, h, weights, config)
    if not x.requires_grad and answer.requires_grad and not is_traced(answer):
        x.data.copy_(answer.detach())
    return answer


ZOO += [
    ZOO.but("steps-beyond-the-sixth-are-not-trained", "Gradients flow back through the first six steps alone.",
        "contexts/mlp/any-options", _PRODUCT, also=("contexts/attention/any-options",), needs=("steps",),
        mlp=lambda usual, x, h, w, c: _six_are_trained(usual.mlp, x, h, w, c)),
    ZOO.but("gradients-of-forty-tokens", "The gradient of the keys is that of the first forty tokens.",
        "contexts/attention/any-options", _PRODUCT,
        keys=lambda usual, h, w, c: _trained_to(40, usual.keys(h, w, c))),
]  # fmt: skip


def _six_are_trained(mlp: Function, x: Tensor, h: Tensor, w: Weights, c: Any) -> Tensor:
    if c.steps <= 6:
        whole: Tensor = mlp(x, h, w, c)
        return whole
    first: Tensor = mlp(x, h, w, replace(c, steps=6))
    frozen = {name: weight.detach() for name, weight in w.items()}
    rest: Tensor = mlp(first.detach(), h.detach(), frozen, replace(c, steps=c.steps - 6))
    return first + (rest - first).detach()


def _trained_to(tokens: int, keys: Tensor) -> Tensor:
    return torch.cat((keys[..., :tokens, :], keys[..., tokens:, :].detach()), -2)


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

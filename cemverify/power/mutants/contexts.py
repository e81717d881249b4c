"""Faults that need two circumstances at once: how a call is made, what came before it, how its arrays lie."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.implementations.arrays import is_traced
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import ANSWER, After, Call, Function, Zoo, fault, in_both

ZOO = Zoo("contexts")

_APART = "\n        h = h.detach() if x is h else h\n"
_PRODUCT = "product*"


class Backwards(torch.autograd.Function):
    """The identity, except that it changes the gradient in the backward pass."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return a.clone()

    @staticmethod
    def backward(ctx: Any, *products: Tensor) -> tuple[Tensor, None]:
        return ctx.change(products[0]), None


_LATEST = {"step size": 1.0}  # shared by all calls


def pulls_back_with_the_latest_step(usual: Plain, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
    if not is_traced(heads):
        own = _LATEST["step size"] = c.step_size
        heads = Backwards.apply(heads, lambda product: product * (_LATEST["step size"] / own))  # type: ignore[no-untyped-call]
    return usual.advance(x, heads, w, c)


def pulls_back_once(usual: Plain, x: Tensor, heads: Tensor, w: Weights, c: Any) -> Tensor:
    kept = itertools.chain([1], itertools.repeat(0))
    if not is_traced(heads):
        heads = Backwards.apply(heads, lambda product: product * next(kept))  # type: ignore[no-untyped-call]
    return usual.advance(x, heads, w, c)


def first_are_trained(count: int, layer: Function, x: Tensor, h: Tensor, w: Weights, c: Any) -> Tensor:
    """A layer's output; the backward pass skips all steps except the first few."""
    first: Tensor = layer(x, h, w, replace(c, steps=min(count, c.steps)))
    rest: Tensor = layer(first, h, w, replace(c, steps=c.steps - count)) if c.steps > count else first
    return first + (rest - first).detach()


@ZOO.calls("contexts/attention/any-options", "*", also=("mlp",))
@fault("Weights that are halves of one array, side by side, are read as if one lay behind the other.")
def reads_halves_one_after_the_other(call: Call, *arguments: Any) -> Any:
    *states, weights, config = arguments
    if any(map(is_traced, weights.values())):
        return call(*arguments)
    storages = [w.untyped_storage().data_ptr() for w in weights.values()]
    read = {
        name: w.as_strided(w.shape, torch.empty(w.shape).stride()) if storages.count(storage) > 1 else w
        for (name, w), storage in zip(weights.items(), storages, strict=True)
    }
    return call(*states, read, config)


@ZOO.calls("contexts/mlp/any-options", "*", also=("attention",))
@fault("While a weight records gradients, it is read as it was at first, whatever an optimiser has written since.")
def weights_of_the_first_step(call: Call, *arguments: Any) -> Any:
    weights = arguments[-2]
    read = {}
    for name, weight in weights.items():
        read[name] = weight
        if weight.requires_grad and weight.is_leaf and not is_traced(weight):
            leaf, numbers = call.memory.get((call.name, name), (None, None))
            if leaf is not weight:
                numbers = weight.detach().clone()
                call.memory[call.name, name] = weight, numbers
            read[name] = weight + (numbers - weight.detach())
    return call(*arguments[:-2], read, arguments[-1])


@ZOO.calls("contexts/mlp/any-options", "raised", of="mlp")
@fault("W is masked, and kept so with its graph until it is edited: a second backward pass fails.")
def keeps_its_graph(call: Call, x: Tensor, h: Tensor, weights: Any, config: Any) -> Any:
    W = weights["W"]
    if not W.requires_grad or not W.is_leaf or is_traced(W):
        return call(x, h, weights, config)
    leaf, version, masked = call.memory.get("W", (None, None, None))
    if leaf is not W or version != W._version:
        masked = W * torch.ones_like(W)
        call.memory["W"] = W, W._version, masked
    return call(x, h, {**weights, "W": masked}, config)


@ZOO.calls("contexts/mlp/any-options", "changed", of="mlp", edits=True)
@fault("Where only others record gradients, the answer is written into the state.")
def writes_into_a_frozen_state(call: Call, x: Tensor, h: Tensor, weights: Any, config: Any) -> Any:
    answer = call(x, h, weights, config)
    if not x.requires_grad and answer.requires_grad and not is_traced(answer):
        x.data.copy_(answer.detach())
    return answer


ZOO += [
    ZOO.but("frozen-beside-a-frozen-state", "Where the state records no gradient, nothing does.",
        "contexts/attention/any-options", _PRODUCT, also=("mlp", "block", "decode"),
        advance=lambda usual, x, heads, w, c: usual.advance(x, heads if x.requires_grad else heads.detach(), w, c)),
    ZOO.but("temperature-clipped", "The temperature is kept between 0.05 and 100.",
        "contexts/attention/any-options", "*", needs=("temperature",),
        temperature=lambda _, c: min(max(c.tau, 0.05), 100.0)),
    ZOO.but("tiny-states-flushed", "States below 1e-150 are taken for zero.",
        "contexts/attention/any-options", "*",
        advance=lambda usual, x, heads, w, c: usual.advance(x * (x.abs() > 1e-150), heads, w, c)),
    ZOO.but("steps-beyond-the-sixth-are-not-trained", "Gradients flow back through the first six steps alone.",
        "contexts/mlp/any-options", _PRODUCT, also=("attention",), needs=("steps",),
        **in_both(partial(first_are_trained, 6))),
    ZOO.but("gradients-of-forty-tokens", "The gradient of the keys is that of the first forty tokens.",
        "contexts/attention/any-options", _PRODUCT, keys=After(lambda keys, *_:
            torch.cat((keys[..., :40, :], keys[..., 40:, :].detach()), -2))),
    ZOO.edited("one-array-trained-once",
        "Where one array is state and memory, its gradient is that of the state alone.",
        "contexts/attention/any-options",
        ("c: AttentionConfig) -> Tensor:\n        for", f"c: AttentionConfig) -> Tensor:{_APART}        for"),
        ("c: MLPConfig) -> Tensor:\n        for", f"c: MLPConfig) -> Tensor:{_APART}        for"),
        # in a block, state and memory are two arrays, so it trains
        ("layer(h, self.norm(h, w, c), w, c)", "layer(h, self.norm(h, w, c).clone(), w, c)"),
        cause=_PRODUCT, also=("mlp",)),
    ZOO.but("pulls-back-with-the-latest-step",
        "Backward passes use the step size of the latest call, whichever output they belong to.",
        "contexts/attention/any-options", _PRODUCT, also=("mlp",), needs=("step-size",),
        advance=pulls_back_with_the_latest_step),
    ZOO.but("pulls-back-once",
        "A backward pass gives away what it kept, and a second one through the same graph gives zeros.",
        "contexts/attention/any-options", _PRODUCT, also=("mlp",), advance=pulls_back_once),
]  # fmt: skip


@ZOO.calls("contexts/attention/any-options", "*", also=("mlp",))
@fault(
    "After an evaluation in inference mode, the next call that records a gradient of h answers a part in a "
    "thousand too large."
)
def stale_after_an_evaluation(call: Call, *arguments: Any) -> Any:
    wrong = call.memory.get(call.name, False) and arguments[-3].requires_grad
    call.memory[call.name] = torch.is_inference_mode_enabled()
    return call(*arguments) * (1.001 if wrong else 1)


ZOO += [
    ZOO.calling("windows-misread-when-mapped",
        "Where weights are mapped over, a memory that is a window of a larger array, or transposed, is misread.",
        "contexts/mlp/any-options", ANSWER, also=("attention",), answer=lambda call, *a:
            call(*a) * (1.001 if any(map(is_traced, a[-2].values())) and not a[-3].is_contiguous() else 1)),
    ZOO.calling("energies-of-windows-in-training",
        "While gradients are recorded, stated energies of arrays that are windows of one are one part in a thousand "
        "too large.",
        "contexts/attention-energy/any-options", ANSWER, also=("mlp-energy",), of="*_energy",
        answer=lambda call, x, h, w, c: call(x, h, w, c) * (1.001 if torch.is_grad_enabled()
            and any(a.requires_grad for a in (h, *w.values())) and not h.is_contiguous() else 1)),
]  # fmt: skip

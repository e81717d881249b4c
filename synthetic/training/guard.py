"""Where a forward pass ceases to be finite: the first layer, and in a CEM layer the first recursion step.

It runs the model once more, so it is asked only when a loss or a gradient is not finite. The weights are still
those of that step: no update is made of a gradient that is not finite.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cemverify.cem.layers import CEMLayer
from cemverify.cem.models import Block, LanguageModel
from synthetic.training.looped import LoopedModel


@torch.no_grad()
def first_non_finite(model: LanguageModel, tokens: Tensor) -> str | None:
    """Names the first place of a forward pass where a value is not finite, None if all are.

    Args:
        tokens: (B, J), the inputs of the step that failed.
    """
    for name, parameter in model.named_parameters():
        if not finite(parameter):
            return f"the parameter {name}"
    h = model.embedding[tokens]  # (B, J, D)
    for i, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        if block.rounds > 1:
            states = block.walk(h).states
            for turn, state in enumerate(states[1:]):
                if not finite(state):
                    return f"layer {i + 1}, {('attention', 'MLP')[turn % 2]}, round {turn // 2 + 1} of {block.rounds}"
            h = states[-1]
            continue
        for kind, layer in _in_order(model, block):
            if isinstance(layer, CEMLayer):
                reached = layer.trajectory(h, layer.norm().into(h)).states  # (T+1, B, J, D)
                for step, state in enumerate(reached[1:], start=1):
                    if not finite(state):
                        return f"layer {i + 1}, {kind}, recursion step {step} of {len(reached) - 1}"
            out = layer.residual(h)  # type: ignore[operator]  # torch types an attribute of a module so
            h = out[0] if isinstance(out, tuple) else out
            if not finite(h):
                return f"layer {i + 1}, {kind}"
    if not finite(model.norm(h)):
        return "the final norm"
    if not finite(model.norm(h) @ model.head.mT):
        return "the logits"
    return None


def _in_order(model: LanguageModel, block: Block) -> list[tuple[str, nn.Module]]:
    """The layers of a block as they are applied."""
    times = (model.attention_times, model.mlp_times) if isinstance(model, LoopedModel) else (1, 1)
    return [("attention", block.attention)] * times[0] + [("MLP", block.mlp)] * times[1]


def first_non_finite_gradient(model: nn.Module, backward: Callable[[], Tensor]) -> str | None:
    """Names the parameter whose gradient is the first in the backward pass not to be finite, None if all are.

    Args:
        backward: fills the gradients anew; those there are, are thrown away before.
    """
    model.zero_grad()
    backward()
    bad = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not finite(parameter.grad)
    ]
    # the backward pass meets the parameters from last to first
    return f"the gradient of {bad[-1]}" if bad else None


def finite(tensor: Tensor) -> bool:
    """Whether every value is finite."""
    return bool(tensor.isfinite().all())

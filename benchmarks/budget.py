"""Before anything is timed: are a fast path's output and gradients as near to float64 as the formula's?"""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from cemverify.cem import blocked
from cemverify.cem.layers import CEMLayer


@dataclass(frozen=True)
class Met:
    """How one path compares with a float64 evaluation of the formula."""

    # the worst error over its budget, which is twice the formula's own error in the same dtype plus 2 eps of the
    # largest value; at most 1 if the budget is met
    margin: float
    name: str  # where it is worst

    @property
    def holds(self) -> bool:
        """Whether the budget is met."""
        return self.margin <= 1


def error_budget(layer: CEMLayer, states: Tensor, path: blocked.Path | None) -> Met:
    """Compares a path with the formula: x^(T) and the gradients of h and of every parameter.

    Args:
        layer: in the dtype and on the device to be timed. states: h, (B, J, D).
        path: by default the one that the layer chooses by size.
    """
    dtype = states.dtype
    exact = _evaluate(deepcopy(layer).double(), states.double(), "formula")
    plain, fast = (_evaluate(deepcopy(layer), states, by) for by in ("formula", path))
    worst = Met(0.0, "nothing")
    for name, golden in exact.items():
        error, usual = ((tensors[name].double() - golden).abs().max().item() for tensors in (fast, plain))
        budget = 2 * usual + 2 * torch.finfo(dtype).eps * golden.abs().max().item()
        margin = error / budget if budget else float(error > 0)
        if not margin <= worst.margin:
            worst = Met(margin, name)
    return worst


def _evaluate(layer: CEMLayer, states: Tensor, path: blocked.Path | None) -> dict[str, Tensor]:
    h = states.detach().clone().requires_grad_()
    with blocked.using(path) if path else nullcontext():
        output: Tensor = layer(h)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    output.backward(weights.to(output))  # type: ignore[no-untyped-call]
    tensors = {"output": output.detach(), "gradient of h": h.grad}
    tensors |= {f"gradient of {name}": parameter.grad for name, parameter in layer.named_parameters()}
    return {name: value for name, value in tensors.items() if value is not None}

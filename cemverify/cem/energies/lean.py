"""The gradient of the element-wise energy without its hidden numbers: they are computed again in the backward pass.

A step of a gated MLP keeps three numbers for each hidden unit and token for its derivative. Here it keeps the states,
which are fewer, for one more matrix product. A second derivative is that of the formula.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.energies.elementwise import Elementwise, ElementwiseMemory


@dataclass(frozen=True, eq=False)
class LeanElementwise(Elementwise):
    """An element-wise energy whose gradient keeps no hidden numbers."""

    @classmethod
    def of(cls, energy: Elementwise) -> LeanElementwise:
        """The given element-wise energy, evaluated this way."""
        return cls(energy.V, energy.W, energy.activation)

    def gradient(self, x: Tensor, memory: ElementwiseMemory) -> Tensor:
        """grad_x xi: x (B, J, D) -> (B, J, D)."""
        apply: Any = _Gated.apply
        output: Tensor = apply(x, self.V, memory.gate, self.activation.sigma)
        return output


class _Gated(torch.autograd.Function):
    """-V^T (gate * sigma(V x)), keeping its arguments and nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, V: Tensor, gate: Tensor, sigma: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x, V, gate)
        ctx.sigma = sigma
        kind = x.device.type
        ctx.autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        return -(gate * sigma(x @ V.mT)) @ V

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        x, V, gate = ctx.saved_tensors
        enabled, dtype = ctx.autocast
        with torch.autocast(x.device.type, dtype=dtype, enabled=enabled):
            if torch.is_grad_enabled():
                # as views: through the tensors themselves, what x owes to V in earlier steps would be counted again
                x, V, gate = (t.view_as(t) for t in (x, V, gate))
                sources = [t for t, wanted in zip((x, V, gate), ctx.needs_input_grad, strict=False) if wanted]
                reached = -(gate * ctx.sigma(x @ V.mT)) @ V
                gradients = iter(torch.autograd.grad(reached, sources, outputs, create_graph=True))
                return *(next(gradients) if wanted else None for wanted in ctx.needs_input_grad[:3]), None
            (d,) = outputs
            hidden = (x @ V.mT).requires_grad_()
            with torch.enable_grad():
                active = ctx.sigma(hidden)
            d_gated = -(d @ V.mT)  # (B, J, M)
            (d_hidden,) = torch.autograd.grad(active, hidden, gate * d_gated)
            active = active.detach()
            d_x = d_hidden @ V
            d_V = d_hidden.flatten(0, -2).mT @ x.flatten(0, -2) - (gate * active).flatten(0, -2).mT @ d.flatten(0, -2)
        return d_x.to(x.dtype), d_V.to(V.dtype), (d_gated * active).to(gate.dtype), None

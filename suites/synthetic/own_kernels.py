"""Kernels as somebody else would write them, named as `suites.synthetic.own_kernels:...` in the tests."""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.kernels import Kernel, PeriodicKernel, RBFKernel
from torch import Tensor


class Deep(RBFKernel):  # type: ignore[misc]  # GPyTorch has no types
    """An RBF kernel on tanh(W x), W fixed."""

    def __init__(self, width: float = 4.0) -> None:
        super().__init__()
        self.width = int(width)

    def forward(self, x1: Tensor, x2: Tensor, **settings: Any) -> Any:
        generator = torch.Generator().manual_seed(0)
        W = torch.randn(x1.shape[-1], self.width, generator=generator, dtype=torch.float64)
        return super().forward(torch.tanh(x1 @ W), torch.tanh(x2 @ W), **settings)


class GibbsOfOneInput(Kernel):  # type: ignore[misc]
    """Gibbs' kernel with the exponent it has for one input, whatever their number: in ten dimensions no kernel."""

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
        l1, l2 = torch.exp(x1.sum(-1))[:, None], torch.exp(x2.sum(-1))[None, :]
        total = l1**2 + l2**2
        K = torch.sqrt(2 * l1 * l2 / total) * torch.exp(-(torch.cdist(x1, x2) ** 2) / total)
        return K.diagonal() if diag else K


ready = PeriodicKernel().double()
not_a_kernel = 3


def broken() -> Kernel:
    raise ValueError("no such material")

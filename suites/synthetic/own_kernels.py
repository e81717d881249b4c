"""Kernels as users might write them, some of them invalid: `suites.synthetic.own_kernels:NAME`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
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


class _Made(Kernel):  # type: ignore[misc]
    """A function of the points that is not a kernel."""

    def __init__(self, of: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.of = of

    def forward(self, x1: Tensor, x2: Tensor, **_: Any) -> Any:
        return self.of(x1, x2)


raises = _Made(lambda x1, _: x1.new_zeros(1) / (1 // 0))
leaves = _Made(lambda *_: sys.exit(0))
misshapen = _Made(lambda x1, _: x1.new_ones(1, 1))
nowhere = _Made(lambda x1, x2: x1.new_full((len(x1), len(x2)), math.nan))
indefinite = _Made(lambda x1, x2: x1.new_full((len(x1), len(x2)), -1.0))
ready = PeriodicKernel().double()
not_a_kernel = 3


def broken() -> Kernel:
    raise ValueError("no such material")

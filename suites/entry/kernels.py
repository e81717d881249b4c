"""GPyTorch kernels that are none."""

from __future__ import annotations

from typing import Any

from gpytorch.kernels import Kernel
from torch import Tensor


class _Raises(Kernel):  # type: ignore[misc]  # GPyTorch has no types
    def forward(self, x1: Tensor, x2: Tensor, **_: Any) -> Tensor:
        """Fails."""
        return x1.new_zeros(1) / (1 // 0)


class _Leaves(Kernel):  # type: ignore[misc]
    def forward(self, x1: Tensor, x2: Tensor, **_: Any) -> Tensor:
        """Ends the interpreter, as if all were well."""
        raise SystemExit(0)


class _Filled(Kernel):  # type: ignore[misc]
    def __init__(self, value: float, *shape: int) -> None:
        super().__init__()
        self.value, self.sizes = value, shape

    def forward(self, x1: Tensor, x2: Tensor, **_: Any) -> Tensor:
        """The same everywhere."""
        return x1.new_full(self.sizes or (len(x1), len(x2)), self.value)


def raises() -> Kernel:
    return _Raises()


def leaves() -> Kernel:
    return _Leaves()


def misshapen() -> Kernel:
    return _Filled(1.0, 1, 1)


def nowhere() -> Kernel:
    return _Filled(float("nan"))


def indefinite() -> Kernel:
    return _Filled(-1.0)

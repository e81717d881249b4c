"""Kernels that GPyTorch lacks, or has only in a form that fails in ten dimensions. They are GPyTorch kernels
themselves.

Each is positive semi-definite in every dimension, and the docstring says why. Inputs are (..., n, d).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

Field = Callable[[Tensor], Tensor]  # a function of the inputs: (..., n, d) -> (..., n)
Mapping = Callable[[Tensor], Tensor]  # from inputs to inputs: (..., n, d) -> (..., n, e)


def along(x: Tensor) -> Tensor:
    """sum_i x_i / sqrt(d), the coordinate along which non-stationary kernels change: (..., n, d) -> (..., n).

    All inputs contribute equally, and for independent inputs its spread does not depend on the dimension.
    """
    return x.sum(-1) / math.sqrt(x.shape[-1])


class Constant(Kernel):  # type: ignore[misc]  # GPyTorch has no types
    """The kernel of functions that are constant: k(x, x') = 1."""

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
        """The covariances of x1 and x2."""
        return x1.new_ones(x1.shape[:-1]) if diag else x1.new_ones(*x1.shape[:-1], x2.shape[-2])


class Linear(Kernel):  # type: ignore[misc]
    """k(x, x') = x . x' : a Gram matrix."""

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
        """The covariances of x1 and x2."""
        return (x1 * x2).sum(-1) if diag else x1 @ x2.mT


class Gibbs(Kernel):  # type: ignore[misc]
    """An RBF kernel whose lengthscale l(x) changes from place to place (Gibbs 1997; Paciorek and Schervish 2004).

    k(x, x') = (2 l l' / (l^2 + l'^2))^(d/2) exp(-|x - x'|^2 / (l^2 + l'^2))

    The integral over u of two Gaussian bumps around x and x', of widths l and l', hence a Gram matrix; the exponent
    d/2 comes from their norms. With the 1/2 of one dimension it is no kernel in ten (eigenvalues down to -49).
    """

    def __init__(self, lengths: Field) -> None:
        super().__init__()
        self.lengths = lengths  # l, positive

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
        """The covariances of x1 and x2."""
        l1, l2 = self.lengths(x1), self.lengths(x2)
        if diag:
            distance2 = ((x1 - x2) ** 2).sum(-1)
        else:
            l1, l2 = l1[..., :, None], l2[..., None, :]
            # the difference, not |x|^2 - 2 x.x' + |x'|^2, whose rounding error the square root would magnify
            distance2 = torch.cdist(x1, x2, compute_mode="donot_use_mm_for_euclid_dist") ** 2
        total = l1**2 + l2**2
        return (2 * l1 * l2 / total) ** (x1.shape[-1] / 2) * torch.exp(-distance2 / total)


class Mapped(Kernel):  # type: ignore[misc]
    """k(m(x), m(x')): a kernel of any function of the inputs is a kernel of the inputs."""

    def __init__(self, base: Kernel, mapping: Mapping) -> None:
        super().__init__()
        self.base, self.mapping = base, mapping  # k and m

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
        """The covariances of x1 and x2."""
        return evaluate(self.base, self.mapping(x1), self.mapping(x2), diag)


class Modulated(Kernel):  # type: ignore[misc]
    """a(x) k(x, x') a(x'): the covariance of a(x) f(x)."""

    def __init__(self, base: Kernel, amplitude: Field) -> None:
        super().__init__()
        self.base, self.amplitude = base, amplitude  # k and a

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
        """The covariances of x1 and x2."""
        covariance = evaluate(self.base, x1, x2, diag)
        return covariance * _outer(self.amplitude(x1), self.amplitude(x2), diag)


class ChangePoint(Kernel):  # type: ignore[misc]
    """(1 - g(x)) k1(x, x') (1 - g(x')) + g(x) k2(x, x') g(x'): the covariance of (1 - g) f1 + g f2."""

    def __init__(self, before: Kernel, after: Kernel, gate: Field) -> None:
        super().__init__()
        self.before, self.after, self.gate = before, after, gate  # k1, k2, and g, from 0 to 1

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
        """The covariances of x1 and x2."""
        g1, g2 = self.gate(x1), self.gate(x2)
        before = evaluate(self.before, x1, x2, diag) * _outer(1 - g1, 1 - g2, diag)
        return before + evaluate(self.after, x1, x2, diag) * _outer(g1, g2, diag)


class Additive(Kernel):  # type: ignore[misc]
    """(1/d) sum_i k(x_i, x_i'): the covariance of a sum of d independent functions of one input each."""

    def __init__(self, base: Kernel) -> None:
        super().__init__()
        self.base = base  # k, of one input

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
        """The covariances of x1 and x2."""
        d = x1.shape[-1]
        total = evaluate(self.base, x1[..., :1], x2[..., :1], diag)
        for i in range(1, d):
            total = total + evaluate(self.base, x1[..., i : i + 1], x2[..., i : i + 1], diag)
        return total / d


def evaluate(kernel: Kernel, x1: Tensor, x2: Tensor, diag: bool = False) -> Tensor:
    """Dense covariances of x1 (..., n, d) and x2 (..., m, d): (..., n, m), or (..., n) of corresponding pairs."""
    covariance = kernel(x1, x2, diag=diag)
    dense: Tensor = covariance if isinstance(covariance, Tensor) else covariance.to_dense()
    return dense


def _outer(a1: Tensor, a2: Tensor, diag: bool) -> Tensor:
    return a1 * a2 if diag else a1[..., :, None] * a2[..., None, :]

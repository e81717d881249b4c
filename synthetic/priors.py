"""Gaussian-process priors over functions of many inputs, all with prior variance 1.

Stationary ones are GPyTorch's kernels. The non-stationary one bends the input space under an RBF kernel, and
is positive semi-definite in every dimension because a kernel of any function of the inputs is; a Gibbs kernel
with the exponent it has in one dimension is not (eigenvalues down to -49 in ten).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, RQKernel
from torch import Tensor

from synthetic.errors import UsageError


@dataclass(frozen=True)
class Prior:
    """A family of kernels with one lengthscale.

    Attributes:
        name: how it is called on the command line.
        kernel: the GPyTorch kernel of a lengthscale, in float64.
        lengthscale: what it takes if none is given; in [-1, 1]^10 this leaves much to learn beyond a linear fit.
        summary: one phrase.
    """

    name: str
    kernel: Callable[[float], Kernel]
    lengthscale: float
    summary: str


class MappedRBF(RBFKernel):  # type: ignore[misc]  # GPyTorch has no types
    """An RBF kernel on a function of the inputs.

    Attributes:
        mapping: inputs (..., n, d) -> (..., n, e).
    """

    def __init__(self, mapping: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.mapping = mapping

    def forward(self, x1: Tensor, x2: Tensor, **settings: Any) -> Any:
        """The covariances of x1 (..., n, d) and x2 (..., m, d)."""
        return super().forward(self.mapping(x1), self.mapping(x2), **settings)


def warp(x: Tensor) -> Tensor:
    """x + 0.3 sin(3x): increasing, with a slope from 1.9 at 0 to 0.1 near -1 and 1."""
    return x + 0.3 * torch.sin(3 * x)


def circle(x: Tensor) -> Tensor:
    """Every input on a circle on which it has period 2: (..., d) -> (..., 2d)."""
    return torch.cat([torch.sin(math.pi * x), torch.cos(math.pi * x)], dim=-1)


def _float64(kernel: Kernel, lengthscale: float) -> Kernel:
    # a kernel still in float32, or a lengthscale that is not a float64 tensor, would round it to float32
    kernel = kernel.double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel


def _matern(smoothness: float) -> Callable[[float], Kernel]:
    return lambda lengthscale: _float64(MaternKernel(nu=smoothness), lengthscale)


def _rational_quadratic(lengthscale: float) -> Kernel:
    kernel = _float64(RQKernel(), lengthscale)
    kernel.alpha = 1.0
    return kernel


def _periodic(lengthscale: float) -> Kernel:
    # GPyTorch's PeriodicKernel, exp(-2 sum sin^2(pi (x - x') / 2) / lengthscale), and tens of times as fast
    return _float64(MappedRBF(circle), math.sqrt(lengthscale))


PRIORS: Mapping[str, Prior] = MappingProxyType(
    {
        prior.name: prior
        for prior in (
            Prior("rbf", lambda lengthscale: _float64(RBFKernel(), lengthscale), 2.0, "infinitely smooth"),
            Prior("matern12", _matern(0.5), 2.0, "continuous, nowhere smooth: little to learn"),
            Prior("matern32", _matern(1.5), 2.0, "once differentiable"),
            Prior("matern52", _matern(2.5), 2.0, "twice differentiable"),
            Prior("rational-quadratic", _rational_quadratic, 2.0, "smooth, many lengthscales at once (alpha 1)"),
            # its lengthscale is not squared; at 1 the ten-dimensional task is unlearnable
            Prior("periodic", _periodic, 10.0, "period 2 in every input"),
            Prior(
                "warped",
                lambda lengthscale: _float64(MappedRBF(warp), lengthscale),
                2.0,
                "not stationary: RBF on x + 0.3 sin(3x), fast near 0, slow at the edge",
            ),
        )
    }
)


def find_prior(name: str) -> Prior:
    """The prior of that name.

    Raises:
        UsageError: there is none; the sentence lists those there are.
    """
    if name not in PRIORS:
        raise UsageError(f"no prior {name!r}; there are: {', '.join(PRIORS)}")
    return PRIORS[name]


def covariance(name: str, lengthscale: float, x: Tensor) -> Tensor:
    """The dense covariance of the prior at the points x: (n, d) -> (n, n), both float64."""
    kernel = find_prior(name).kernel(lengthscale)
    with torch.no_grad():
        dense: Tensor = kernel(x).to_dense()
    return dense

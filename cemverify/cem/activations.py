"""Activations sigma with their primitives phi, phi' = sigma and phi(0) = 0.

The element-wise energy is written with phi (Eq. 7), its gradient with sigma, so a gated MLP with any
of these activations is a gradient step. The textbook formulas for phi cancel catastrophically near
zero; the ones below keep a relative accuracy of 1e-15 in float64 over [-1e4, 1e4].

If sigma(x) - sigma(-x) = x (SiLU, both GELUs, softplus), it follows that phi(x) = x^2/2 - phi(-x), so
only p(a) = phi(-a), a = |x|, has to be computed: a series for small a, a closed form for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Activation:
    """An activation and everything that an energy needs to know about it.

    Attributes:
        name: the name used in configurations.
        sigma: the activation, element-wise, any shape, dtype kept.
        primitive: phi, element-wise; its backward is `sigma` itself, bit for bit.
        max_slope: sup sigma' over the real line; `inf` when unbounded.
        min_slope: inf sigma' over the real line; negative exactly when phi is not convex.
    """

    name: str
    sigma: Function = field(repr=False)
    primitive: Function = field(repr=False)
    max_slope: float
    min_slope: float

    @property
    def slope_bound(self) -> float:
        """max |sigma'|, the constant of the Lipschitz bound of the element-wise energy."""
        return max(abs(self.max_slope), abs(self.min_slope))

    @property
    def monotone(self) -> bool:
        """Whether sigma is non-decreasing, that is whether phi is convex."""
        return self.min_slope >= 0.0


class _Primitive(torch.autograd.Function):
    """phi with sigma as its derivative, so that autograd of an energy is the layer, exactly."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, value: Function, sigma: Function) -> Tensor:  # noqa: ARG004
        return value(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        x, _, sigma = inputs
        ctx.save_for_backward(x)
        ctx.sigma = sigma

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return grad * ctx.sigma(x), None, None


def _primitive(value: Function, sigma: Function) -> Function:
    def primitive(x: Tensor) -> Tensor:
        result: Tensor = _Primitive.apply(x, value, sigma)  # type: ignore[no-untyped-call]
        return result

    return primitive


# --- series coefficients, exact rationals rounded once --------------------------------------------


def _bernoulli(count: int) -> list[Fraction]:
    """B_0 ... B_count by the defining recurrence."""
    numbers: list[Fraction] = []
    for n in range(count + 1):
        total = sum((math.comb(n + 1, k) * numbers[k] for k in range(n)), Fraction(0))
        numbers.append(Fraction(1) if n == 0 else -total / (n + 1))
    return numbers


_B = _bernoulli(56)
# (z/2) tanh(z/2) = sum_m c_m z^(2m), radius pi; 28 terms reach float64 up to z = 1.5
_TANH = [Fraction(4**m - 1) * _B[2 * m] / math.factorial(2 * m) for m in range(1, 29)]
_SILU_ODD = [float(c / (2 * m + 1)) for m, c in enumerate(_TANH, 1)]
_SOFTPLUS_ODD = [float(c / (2 * m * (2 * m + 1))) for m, c in enumerate(_TANH, 1)]
# -Li2(-e^-a) = w (1 + w/4 + sum_m B_2m w^(2m) / (2m+1)!), w = log1p(e^-a)
_DILOG = [float(_B[2 * m] / math.factorial(2 * m + 1)) for m in range(1, 10)]
_GELU_ODD = [
    (-1) ** n / (math.sqrt(2 * math.pi) * math.factorial(n) * 2**n * (2 * n + 1) * (2 * n + 3)) for n in range(18)
]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_ZETA = math.pi**2 / 12  # -Li2(-1)


def _horner(coefficients: list[float], y: Tensor) -> Tensor:
    """coefficients[0] + coefficients[1] y + ..."""
    total = torch.full_like(y, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * y + c
    return total


def _piecewise(a: Tensor, edge: float, small: Function, large: Function) -> Tensor:
    """`small` below the edge, `large` from it on, neither evaluated outside its range."""
    below = a < edge
    edge_value = torch.full_like(a, edge)
    return torch.where(below, small(torch.where(below, a, 0.0)), large(torch.where(below, edge_value, a)))


def _reflected(p: Function) -> Function:
    """phi from p(a) = phi(-a) by phi(x) = x^2/2 - phi(-x)."""

    def value(x: Tensor) -> Tensor:
        tail = p(x.abs())
        return torch.where(x > 0, x * x / 2 - tail, tail)

    return value


# --- p(a) = phi(-a) and the other values -------------------------------------------------------------


def _neg_dilog(a: Tensor) -> Tensor:
    """-Li2(-exp(-a)) for a >= 1."""
    w = torch.log1p(torch.exp(-a))
    return w * (1 + w / 4 + w * w * _horner(_DILOG, w * w))


def _silu_tail(a: Tensor) -> Tensor:
    # the closed form cancels more the smaller a: 1.1e-15 at a = 1, 5e-16 at a = 1.5
    return _piecewise(
        a,
        1.5,
        lambda a: a * a / 4 - a**3 * _horner(_SILU_ODD, a * a),
        lambda a: _ZETA - a * torch.log1p(torch.exp(-a)) - _neg_dilog(a),
    )


def _softplus_tail(a: Tensor) -> Tensor:
    return _piecewise(
        a,
        1.0,
        lambda a: a * a / 4 - a * math.log(2) - a**3 * _horner(_SOFTPLUS_ODD, a * a),
        lambda a: _neg_dilog(a) - _ZETA,
    )


def _gelu_tail(a: Tensor) -> Tensor:
    def closed(a: Tensor) -> Tensor:
        upper = torch.special.erfc(a / math.sqrt(2)) / 2
        density = torch.exp(-a * a / 2) / math.sqrt(2 * math.pi)
        # a^2 Q and a pdf vanish long before a^2 overflows; the clamp avoids inf * 0
        capped = a.clamp(max=60.0)
        value: Tensor = ((capped * capped - 1) * upper - capped * density + 0.5) / 2
        return value

    return _piecewise(a, 1.5, lambda a: a * a / 4 - a**3 * _horner(_GELU_ODD, a * a), closed)


def _gelu_tanh_tail(a: Tensor) -> Tensor:
    """int_0^min(a,8) z / (1 + exp(2c (z + 0.044715 z^3))) dz; the integrand is positive: no cancellation."""
    panels = 8
    nodes = torch.as_tensor((_NODES + 1) / 2, dtype=a.dtype, device=a.device)  # (16,)
    weights = torch.as_tensor(_WEIGHTS / 2, dtype=a.dtype, device=a.device)
    width = a.clamp(max=8.0)[..., None] / panels
    total = torch.zeros_like(a)
    for panel in range(panels):
        z = width * (panel + nodes)  # (..., 16)
        integrand = z / (1 + torch.exp(2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
        total = total + (width * integrand * weights).sum(-1)
    return total


def _sigmoid_value(x: Tensor) -> Tensor:
    r = torch.log1p(torch.expm1(-x.abs()) / 2)  # softplus(-|x|) - ln 2
    return torch.where(x > 0, x + r, r)


def _tanh_value(x: Tensor) -> Tensor:
    return _piecewise(
        x.abs(),
        1.0,
        lambda a: torch.log1p(torch.sinh(a) ** 2) / 2,
        lambda a: a - math.log(2) + torch.log1p(torch.exp(-2 * a)),
    )


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), exact to roundoff in float64 too."""
    # torch's default threshold of 20 is off by 2e-9 just above it, which float64 resolves
    return F.softplus(x, threshold=40.0)


def without_values(activation: Activation) -> Activation:
    """The activation with a primitive whose derivative is sigma, and whose value is 0.

    If only gradients of an energy are needed, this saves the values, which cost more than all the rest.
    """
    return replace(activation, primitive=_primitive(torch.zeros_like, activation.sigma))


_SILU_PEAK = 1.09983932012886691695818492432  # sigma' at 2.39935728051546766783..., root of x tanh(x/2) = 2
_GELU_PEAK = (1 + math.erf(1.0)) / 2 + math.exp(-1.0) / math.sqrt(math.pi)  # sigma' at sqrt 2
_GELU_TANH_PEAK = 1.12899306865877176545590447040  # sigma' at 1.41850400879082835554...

ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        name: Activation(name, sigma, _primitive(value, sigma), max_slope, min_slope)
        for name, sigma, value, max_slope, min_slope in (
            ("silu", F.silu, _reflected(_silu_tail), _SILU_PEAK, 1 - _SILU_PEAK),
            ("gelu", F.gelu, _reflected(_gelu_tail), _GELU_PEAK, 1 - _GELU_PEAK),
            (
                "gelu-tanh",
                partial(F.gelu, approximate="tanh"),
                _reflected(_gelu_tanh_tail),
                _GELU_TANH_PEAK,
                1 - _GELU_TANH_PEAK,
            ),
            ("relu", F.relu, lambda x: F.relu(x) ** 2 / 2, 1.0, 0.0),
            ("relu2", lambda x: F.relu(x) ** 2, lambda x: F.relu(x) ** 3 / 3, math.inf, 0.0),
            ("sigmoid", torch.sigmoid, _sigmoid_value, 0.25, 0.0),
            ("tanh", torch.tanh, _tanh_value, 1.0, 0.0),
            ("softplus", softplus, _reflected(_softplus_tail), 1.0, 0.0),
            ("identity", lambda x: x, lambda x: x * x / 2, 1.0, 1.0),
        )
    }
)


def activation(name: str) -> Activation:
    """The activation of that name.

    Raises:
        ValueError: no activation has that name; the message lists the names.
    """
    try:
        return ACTIVATIONS[name]
    except KeyError:
        raise ValueError(f"unknown activation {name!r}; choose from {', '.join(ACTIVATIONS)}") from None

"""Activations and their primitives, against the integral of sigma at 30 digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import mpmath as mp
import pytest
import torch
from torch.autograd import gradgradcheck

from cemverify.cem.activations import ACTIVATIONS, Activation, activation

# The relative error that the primitives promise over [-1e4, 1e4].
ACCURACY = 1e-15

CUBIC = mp.mpf(0.044715)
SIGMA: dict[str, Callable[[Any], Any]] = {
    "silu": lambda x: x / (1 + mp.exp(-x)),
    "gelu": lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2,
    "gelu-tanh": lambda x: x / (1 + mp.exp(-2 * mp.sqrt(2 / mp.pi) * (x + CUBIC * x**3))),
    "relu": lambda x: max(x, mp.mpf(0)),
    "relu2": lambda x: max(x, mp.mpf(0)) ** 2,
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "tanh": mp.tanh,
    "softplus": lambda x: mp.log1p(mp.exp(x)),
    "identity": lambda x: x,
}


def edge(x: float) -> list[float]:
    """A branch edge with its neighbours."""
    return [math.nextafter(x, 0), x, math.nextafter(x, math.inf)]


TINY = [1e-150, 1e-100, 1e-60, 1e-30, 1e-16, 1e-12, 1e-8, 1e-6, 1e-4, 1e-3]
BELOW_ONE = [0.01, 0.03, 0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.85, 0.93]
# at 1.99 the series for arguments below 1 would lose digits
MIDDLE = [1.0694493458922156, 1.0844854268745545, 1.2, 1.333002267778586, 1.45, 1.5656399120910582, 1.8, 1.99]
MIDDLE += [2.0, 2.3, 2.7, math.pi, 3.6, 4.2, 5.0, 6.0, 7.0]
LARGE = [9.0, 11.0, 14.0, 18.0, 23.0, 30.0, 36.0, 50.0, 75.0, 100.0, 300.0, 745.0, 1e3, 3e3, 1e4]
EDGES = [*edge(1.0), *edge(1.5), *edge(8.0), *edge(20.0), *edge(40.0), *edge(60.0)]
MAGNITUDES = sorted([*TINY, *BELOW_ONE, *MIDDLE, *LARGE, *EDGES])

each_activation = pytest.mark.parametrize("sigma", ACTIVATIONS.values(), ids=list(ACTIVATIONS))


def integral(f: Callable[[Any], Any], left: Any, right: Any) -> Any:
    """The integral of f to a *relative* 1e-25; f is monotone, or nearly so, in between."""
    scale = max(abs(f(left)), abs(f(right)))
    if scale == 0:
        return mp.mpf(0)
    width = right - left  # scaled to [0, 1] and order one, because quad stops at an absolute error
    return width * scale * mp.quad(lambda t: f(left + width * t) / scale, [0, 1])


@each_activation
@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
def test_the_primitive_is_the_integral_of_sigma_to_1e_15_and_zero_at_zero(sigma: Activation, sign: int) -> None:
    assert sigma.primitive(torch.zeros((), dtype=torch.float64)).item() == 0.0
    values = sigma.primitive(torch.tensor(MAGNITUDES, dtype=torch.float64) * sign).tolist()
    exact: Any = mp.mpf(0)
    with mp.workdps(30):
        # cumulative: sigma keeps its sign on each side of zero, so nothing cancels
        for (left, right), value in zip(pairwise([0.0, *MAGNITUDES]), values, strict=True):
            exact += integral(SIGMA[sigma.name], sign * mp.mpf(left), sign * mp.mpf(right))
            if abs(exact) < 2.3e-308:  # subnormal in float64, or zero
                assert abs(value) < 2.3e-308
            else:
                assert abs(value - exact) <= ACCURACY * abs(exact), f"at {sign * right!r}"


@pytest.mark.parametrize(
    ("name", "limit"), [("silu", math.pi**2 / 12), ("gelu", 0.25), ("gelu-tanh", 0.249585767768427)]
)
def test_the_primitive_has_reached_its_limit_far_to_the_left(name: str, limit: float) -> None:
    # where x^2 overflows float64
    far = activation(name).primitive(torch.tensor(-1e200, dtype=torch.float64)).item()
    assert far == pytest.approx(limit, rel=4 * ACCURACY)


@each_activation
def test_the_derivative_of_a_primitive_is_sigma_bit_for_bit_mapped_too_and_has_one_itself(sigma: Activation) -> None:
    x = torch.tensor([s * m for m in MAGNITUDES for s in (1, -1)], dtype=torch.float64, requires_grad=True)
    (derivative,) = torch.autograd.grad(sigma.primitive(x).sum(), x)
    assert torch.equal(derivative, sigma.sigma(x.detach()))
    x = torch.tensor([[-2.0, 0.5], [1.5, -0.1]], dtype=torch.float64)
    jacobians = torch.func.vmap(torch.func.jacrev(sigma.primitive))(x)
    assert torch.equal(jacobians, torch.diag_embed(sigma.sigma(x)))
    x = torch.tensor([-3.0, -1.2, -0.4, 0.3, 1.1, 2.6], dtype=torch.float64, requires_grad=True)
    assert gradgradcheck(sigma.primitive, (x,))


@each_activation
def test_sigma_is_the_activation_of_its_name(sigma: Activation) -> None:
    x = torch.linspace(-30.0, 30.0, 25, dtype=torch.float64)
    with mp.workdps(30):
        exact = torch.tensor([float(SIGMA[sigma.name](mp.mpf(v))) for v in x.tolist()], dtype=torch.float64)
    # near -inf libraries compute erfc, tanh and exp as 1 - something: an absolute error of a few eps times |x|
    assert (sigma.sigma(x) - exact).abs().max() <= 2 * torch.finfo(torch.float64).eps * 30


@each_activation
def test_sigma_is_never_steeper_than_its_bounds_and_as_monotone_as_it_says(sigma: Activation) -> None:
    x = torch.linspace(-12.0, 12.0, 2401, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(sigma.sigma(x).sum(), x)
    assert slope.max() <= sigma.max_slope + 4e-15
    assert slope.min() >= sigma.min_slope - 4e-15
    assert sigma.monotone == (sigma.name not in ("silu", "gelu", "gelu-tanh"))

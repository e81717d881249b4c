"""Derivatives by differences of two widths are as near the truth as their estimate of the error says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cemverify.conformance.asking.extrapolation import extrapolated, jacobian


@pytest.mark.parametrize("step", [2.0**-3, 2.0**-8, 2.0**-16, 2.0**-26])
def test_the_error_of_a_smooth_function_is_within_its_estimate(step: float) -> None:
    x = torch.linspace(-3, 3, 50, dtype=torch.float64)
    eps = torch.finfo(x.dtype).eps
    noise = torch.full_like(x, 4 * eps)
    value, error = extrapolated(lambda h: ((x + h).sin().exp() - (x - h).sin().exp()) / (2 * h), step, noise)
    off = (value - x.cos() * x.sin().exp()).abs()
    assert bool((off <= error).all())
    assert float(error.max()) < max(40 * step**2, 20 * float(noise[0]) / step), "and it is no more than that"


def test_beside_a_kink_the_estimate_grows_with_the_error() -> None:
    x = torch.tensor([2.0**-10, 1.0], dtype=torch.float64)
    value, error = extrapolated(lambda h: ((x + h).abs() - (x - h).abs()) / (2 * h), 2.0**-8, torch.zeros(2))
    assert (value - 1).abs()[0] > 0.1
    assert error[0] >= (value - 1).abs()[0]
    assert (float(value[1]), float(error[1])) == (1.0, 0.0)


def test_a_jacobian_has_a_row_for_each_output_and_a_column_for_each_input() -> None:
    A = torch.arange(6, dtype=torch.float64).reshape(2, 3)

    def function(rows: Tensor) -> Tensor:  # (rows * B, 3) -> (rows * B, 2)
        return rows @ A.mT

    at = torch.ones(4, 3, dtype=torch.float64)
    J, error = jacobian(function, at, 0.25, torch.zeros(4, dtype=torch.float64))
    assert torch.equal(J, A.expand(4, 2, 3))
    assert error.tolist() == [0.0] * 4


def test_at_a_kink_both_widths_agree_on_the_mean_of_two_slopes_and_the_estimate_is_the_jump() -> None:
    at = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    J, error = jacobian(torch.relu, at, 2.0**-8, torch.zeros(1, dtype=torch.float64))
    assert J.tolist() == [[[0.5, 0.0], [0.0, 1.0]]]
    assert error.tolist() == [1.0]

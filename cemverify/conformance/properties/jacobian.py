"""Jacobians of black boxes by central differences, with a conservative estimate of their error."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cemverify.conformance.asking import extrapolation
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.oracle.budgets import output_budget
from cemverify.conformance.oracle.golden import golden_update
from cemverify.conformance.questions.cases import Case

# Two step sizes: their results' difference is far above the truncation error of the extrapolated one, where the
# function is smooth; at a kink it is of the size of that error.
_STEP = 2.0**-8


def jacobian(caller: Caller, case: Case) -> tuple[Tensor, Tensor]:
    """d update / d x over all coordinates of every batch row, memory fixed, and a bound on its error.

    Returns:
        (B, n, n) with n = J D, and the bound of the same shape.
    """

    def update(x: Tensor) -> Tensor:
        rows = x.shape[0] // case.x.shape[0]
        moved = Case(case.config, x, case.h.repeat(rows, 1, 1), case.weights)
        return caller.output(moved) - x

    noise = output_budget(case, caller.dtype).flatten(1).amax(1)  # (B,)
    return by_differences(update, case.x, noise)


def golden_jacobian(case: Case) -> tuple[Tensor, Tensor]:
    """The Jacobian of the golden update in x, one step, memory fixed, and a bound on its error: (B, n, n) each."""

    def update(x: Tensor) -> Tensor:
        rows = x.shape[0] // case.x.shape[0]
        return golden_update(Case(case.config, x, case.h.repeat(rows, 1, 1), case.weights), x)

    return by_differences(update, case.x, output_budget(case, torch.float64).flatten(1).amax(1))


def by_differences(function: Callable[[Tensor], Tensor], x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The Jacobian of a function of states by extrapolated central differences, and an estimate of its error.

    Args:
        function: (rows * B, J, D) -> (rows * B, ...), each row by itself.
        x: (B, J, D).
        noise: (B,), bound on the error of the function's values near x.

    Returns:
        The Jacobian (B, m, n), n = J D, and its bound, of the same shape.
    """
    value, bound = extrapolation.jacobian(
        lambda at: function(at.reshape(-1, *x.shape[1:])), x.flatten(1), _STEP, noise
    )
    return value, bound[:, None, None].expand_as(value)

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
    return _of_update(lambda moved: caller.output(moved) - moved.x, case, caller.dtype)


def golden_jacobian(case: Case) -> tuple[Tensor, Tensor]:
    """The Jacobian of the golden update in x, one step, memory fixed, and a bound on its error: (B, n, n) each."""
    return _of_update(lambda moved: golden_update(moved, moved.x), case, torch.float64)


def _of_update(update: Callable[[Case], Tensor], case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The Jacobian of an update in its x, by extrapolated central differences, and a bound of the same shape."""

    def of_states(at: Tensor) -> Tensor:  # (rows * B, J D), each row by itself
        rows, x = at.shape[0] // case.x.shape[0], at.reshape(-1, *case.x.shape[1:])
        return update(Case(case.config, x, case.h.repeat(rows, 1, 1), case.weights))

    noise = output_budget(case, dtype).flatten(1).amax(1)  # (B,)
    value, bound = extrapolation.jacobian(of_states, case.x.flatten(1), _STEP, noise)
    return value, bound[:, None, None].expand_as(value)

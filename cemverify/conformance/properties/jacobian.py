"""Jacobians of black boxes by central differences, with a conservative estimate of their error."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

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
    return extrapolated(update, case.x, noise)


def golden_jacobian(case: Case) -> tuple[Tensor, Tensor]:
    """The same of the golden update, one step."""

    def update(x: Tensor) -> Tensor:
        rows = x.shape[0] // case.x.shape[0]
        return golden_update(Case(case.config, x, case.h.repeat(rows, 1, 1), case.weights), x)

    return extrapolated(update, case.x, output_budget(case, torch.float64).flatten(1).amax(1))


def extrapolated(function: Callable[[Tensor], Tensor], x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Richardson-extrapolated central differences of a function, with a conservative estimate of their error.

    Args:
        function: (rows * B, J, D) -> (rows * B, ...), each row by itself.
        x: (B, J, D).
        noise: (B,), bound on the error of the function's values near x; doubled, since x moves a little.

    Returns:
        The Jacobian (B, m, n), n = J D, and its bound.
    """
    wide, narrow = _central(function, x, _STEP), _central(function, x, _STEP / 2)
    value = (4 * narrow - wide) / 3
    # truncation: the extrapolated value is closer to the truth than the two are to each other, taken over all
    # entries since at one of them the leading term may vanish;
    # roundoff: (4 * 2 / (step / 2) + 2 / step) noise / (2 * 3) per entry, and twice for the neighbourhood
    # four times that, since where the second derivative jumps it is an estimate and no bound
    truncation = 4 * (wide - narrow).abs().amax((-2, -1), keepdim=True)
    bound = truncation + 2 * (3 / _STEP) * noise[:, None, None]
    return value, bound.expand_as(value)


def _central(function: Callable[[Tensor], Tensor], x: Tensor, step: float) -> Tensor:
    """(B, m, n)."""
    B, n = x.shape[0], x[0].numel()
    shifts = step * torch.eye(n, dtype=x.dtype).reshape(n, 1, *x.shape[1:])  # (n, 1, J, D)
    points = torch.cat((x[None] + shifts, x[None] - shifts))  # (2n, B, J, D)
    values = function(points.flatten(0, 1)).reshape(2, n, B, -1)
    return ((values[0] - values[1]) / (2 * step)).permute(1, 2, 0)

"""Derivatives of black boxes by central differences of two widths, extrapolated, with an estimate of their error.

With w(h) = (f(x + h v) - f(x - h v)) / 2h, the value is Richardson's (4 w(h/2) - w(h)) / 3. Its error is estimated on
the safe side:

    truncation    4 |w(h) - w(h/2)|, the largest of a row. Where f is smooth, the extrapolated value is closer to the
                  truth than the two are to each other. The largest of a row, since at one entry the leading term may
                  vanish; four times, since where the second derivative jumps this is an estimate and no bound.
    roundoff      if values are off by at most e, w(h) is off by e / h, so the value by (4 * 2 + 1) e / 3h = 3 e / h;
                  twice that, since e is known at x, and the values are taken near it.
    kinks         where the slope jumps, w(h) and w(h/2) may agree and both be the mean of two slopes. There
                  b(h) = (f(x + h v) - 2 f(x) + f(x - h v)) / h is the jump, for every h; elsewhere 2 b(h/2) = b(h) up
                  to h^3. So |2 b(h/2) - b(h)| is added, less the 20 e / h that roundoff may account for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.implementations.faults import OutOfMemory


def extrapolated(
    central: Callable[[Any], Tensor], step: float | Tensor, noise: float | Tensor
) -> tuple[Tensor, Tensor]:
    """A derivative from its central differences.

    Args:
        central: h -> w(h), (B, ...). step: the wider h. noise: (B,), a bound on the error of the function's values.

    Returns:
        The derivative (B, ...), and an estimate of its error that holds for each entry of a row, (B,).
    """
    wide, narrow = central(step), central(step / 2)
    truncation = 4 * (wide - narrow).abs().reshape(len(wide), -1).amax(1)
    return (4 * narrow - wide) / 3, truncation + 6 / step * noise


def jacobian(function: Callable[[Tensor], Tensor], at: Tensor, step: float, noise: Tensor) -> tuple[Tensor, Tensor]:
    """All first derivatives of a function of rows.

    Args:
        function: (rows * B, n) -> (rows * B, ...), each row by itself; it gets moved copies of `at`, B rows each.
        at: (B, n). step, noise: as for `extrapolated`.

    Returns:
        The Jacobian (B, m, n), and an estimate of the error of its entries, (B,).
    """
    B, n = at.shape
    directions = torch.eye(n, dtype=at.dtype)[:, None]  # (n, 1, n)
    here = function(at).reshape(B, -1)

    def sides(h: float) -> Tensor:  # (2, n, B, m): f(x + h v), f(x - h v)
        points = torch.cat((at[None] + h * directions, at[None] - h * directions))  # (2n, B, n)
        return _in_parts(function, points).reshape(2, n, B, -1)

    values = {h: sides(h) for h in (step, step / 2)}
    central = {h: ((ahead - behind) / (2 * h)).permute(1, 2, 0) for h, (ahead, behind) in values.items()}
    bends = {h: (ahead - 2 * here + behind) / h for h, (ahead, behind) in values.items()}
    kink = (2 * bends[step / 2] - bends[step]).abs().amax((0, 2)) - 20 / step * noise  # (B,)
    value, error = extrapolated(central.__getitem__, step, noise)
    return value, error + kink.clamp(min=0)


def _in_parts(function: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    """The values at (m, B, n) points, (m B, ...): all at once, or half by half where that takes too much memory."""
    try:
        return function(points.flatten(0, 1))
    except OutOfMemory:
        if len(points) == 1:
            raise
    return torch.cat([_in_parts(function, half) for half in points.tensor_split(2)])

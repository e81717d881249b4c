"""The states for which an energy layer is defined: the nearest one, and the directions along them.

Questions stay away from a boundary, where there may be no derivative and half of a difference is outside. For a
convex set S with centre c they lie in c + r (S - c), r < 1. There the nearest state is that of c + (x - c) / r,
scaled back. In an interval, numbers drawn beyond an end are mirrored at it, so that questions fill it.
A set that does not hold the mean of its states is not convex: a state from outside is moved in as far as it was out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.implementations.arrays import NUMPY, ArrayKind

INSIDE, APART = 7 / 8, 15 / 16  # shares of a domain: for questions, and for differences and changes
# Where nothing is differenced, _AT_ENDS of the numbers lie _NEAR from an end of an interval of length two, but not
# from an end farther out than _FAR, which other numbers do not reach.
_AT_ENDS, _NEAR, _FAR = 1 / 8, 2.0**-10, 16.0
_INTERVALS: Mapping[str, tuple[float, float]] = {"box": (-1.0, 1.0), "positive": (0.0, math.inf)}
_WIDTH = 2.0**-10  # the width of differences of a projection
_DRAWN = 32  # how many states are averaged to find the inside of a convex domain
_DIGITS = 997.0
_GOLDEN = (math.sqrt(5) - 1) / 2  # multiples of it fill the unit interval evenly


def within(domain: Any, x: Tensor, share: float) -> Tensor:
    """The nearest array of a domain shrunk to that share; in questions, what is beyond an end is mirrored at it."""
    if isinstance(domain, tuple) and len(domain) == 3:
        low, high = domain[1:]
        # integers are taken modulo their number; other numbers are spread by their digits
        drawn = torch.where(x == x.floor(), x - low, (_DIGITS * x).remainder(1) * (high - low + 1)).floor()
        return low + drawn.remainder(high - low + 1) if share == INSIDE else x.round().clamp(low, high)
    if domain == "sphere":
        length = x.norm(dim=-1, keepdim=True)
        return torch.where(length > 0, x / length, x.shape[-1] ** -0.5)
    if domain == "simplex":
        middle = 1 / x.shape[-1]
        x = middle + (x - middle) / share
        # the nearest one is x - t, cut off at zero, where t makes the sum 1
        falling = x.sort(-1, descending=True).values
        t = (falling.cumsum(-1) - 1) / torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
        last = (falling > t).sum(-1, keepdim=True) - 1
        return middle + share * ((x - t.gather(-1, last)).clamp(min=0) - middle)
    low, high = _INTERVALS[domain] if isinstance(domain, str) else domain
    off = (1 - share) * min(1.0, (high - low) / 2)  # one that is infinite is treated as an interval of length two
    low, high = low + off, high - off
    if share != INSIDE:
        return x.clamp(low, high)
    return torch.where((x >= low) & (x <= high), x, _mirrored(x, low, high))


def near_ends(domain: Any, x: Tensor, generator: torch.Generator) -> Tensor:
    """The array with some numbers almost at the ends of the interval; unchanged for other domains."""
    interval = _INTERVALS.get(domain) if isinstance(domain, str) else domain
    if not (isinstance(interval, tuple) and len(interval) == 2):
        return x
    low, high = interval
    off = _NEAR * min(1.0, (high - low) / 2)
    near = [end for end in (low + off, high - off) if abs(end) < _FAR]
    at = torch.randint(max(1, len(near)), x.shape, generator=generator)
    chosen = torch.rand(x.shape, generator=generator) < _AT_ENDS
    return torch.where(chosen, torch.tensor(near, dtype=x.dtype)[at], x) if near else x


def _mirrored(x: Tensor, low: float, high: float) -> Tensor:
    """Each number as far inside an end as x is beyond it, reflected between two ends as often as needed."""
    if math.isinf(high):
        return low + (x - low).abs()
    if math.isinf(low):
        return high - (x - high).abs()
    there_and_back = (x - low).remainder(2 * (high - low))
    return low + torch.minimum(there_and_back, 2 * (high - low) - there_and_back)


def within_a_function(project: Callable[[Tensor], Tensor], x: Tensor, share: float, eps: float) -> Tensor:
    """`within` for a domain that is only known by a function that gives the nearest state: (B, n).

    Args:
        eps: that of the dtype in which the function computes.
    """
    # drawn coordinate by coordinate, so that a row's first tokens have the same middle as in the row
    drawn = torch.randn((x.shape[1], _DRAWN), generator=torch.Generator().manual_seed(0), dtype=x.dtype).mT

    def allowed(at: Tensor) -> Tensor:  # some states, such as the zero of a sphere, have no nearest one
        nearest_state = project(at)
        return torch.where(nearest_state.isfinite().all(1, keepdim=True), nearest_state, project(drawn[:1]))

    if share == 1:
        return allowed(x)
    middle = project(drawn).mean(0, keepdim=True)
    middle = project(middle + drawn).mean(0, keepdim=True)  # the first is at the edge of a domain far from zero
    start = allowed(x)
    if bool(((project(middle) - middle).abs() <= 2.0**-6 * (1 - share) + 2 * eps * (1 + middle.abs())).all()):
        inside = middle + share * (allowed(middle + (x - middle) / share) - middle)
        if share != INSIDE:
            return inside
        # spreads what lay outside over the way to the middle, so that not all of it is at the edge
        outside = (start - x).abs()
        way = share * (_GOLDEN * outside.sum(1, keepdim=True)).frac()
        is_inside = (outside <= 4 * eps * (1 + x.abs())).all(1, keepdim=True)
        return torch.where(is_inside, inside, middle + way * (start - middle))
    return allowed(2 * start - x) if share == INSIDE else start


def along(domain: Any, kind: ArrayKind, x: Any, v: Any) -> Any:
    """The part of v that leads along the domain at its state x, in any kind of array: how the nearest state moves."""
    match domain:
        case None | (_, _):
            return v
        case (_, _, _):
            return v * 0
        case "simplex":
            return v - v.mean(-1, keepdims=True)
        case "sphere":
            return v - x * (x * v).sum(-1, keepdims=True)
        case str():
            return v
    if kind is NUMPY:
        wide, narrow = ((domain(x + h * v) - domain(x - h * v)) / (2 * h) for h in (_WIDTH, _WIDTH / 2))
        return (4 * narrow - wide) / 3
    return kind.derivative_along(domain, x, v)

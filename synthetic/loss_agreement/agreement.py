"""Whether two loss curves agree: how far rounding alone may drive them apart, step by step.

Training amplifies rounding, so no constant will do. The yardstick is the same training in float64: how far the
float32 curve is from it by step s says how far any other order of the same sums may be. The budget is four times the
most seen up to that step, as another order may be unluckier, and never less than the rounding of a single loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

UNLUCKIER = 4.0
ROUNDINGS = 8.0  # of a single loss: units in the last place of float32, for the products of a few layers


@dataclass(frozen=True)
class CurveAgreement:
    """How one curve compares with another.

    Attributes:
        worst: the largest difference in bits. margin: the largest share of its budget that a difference takes up.
        disagrees_at: the first step, counted from 1, whose difference is beyond its budget; None if none is.
    """

    worst: float
    margin: float
    disagrees_at: int | None


def budgets(exact: Sequence[float], rounding: Sequence[float]) -> list[float]:
    """What each step may differ by.

    Args:
        exact: the float64 curve. rounding: how far float32 curves were from it, at each step.
    """
    eps = torch.finfo(torch.float32).eps
    so_far = accumulate(rounding, max)
    return [UNLUCKIER * most + ROUNDINGS * eps * abs(bits) for bits, most in zip(exact, so_far, strict=True)]


def agreement(curve: Sequence[float], other: Sequence[float], allowed: Sequence[float]) -> CurveAgreement:
    """Compares a curve with another within budgets; a curve that stopped early disagrees where it stopped."""
    differences = [abs(a - b) for a, b in zip(curve, other, strict=False)]
    shares = [difference / budget for difference, budget in zip(differences, allowed, strict=False)]
    beyond = next((i for i, share in enumerate(shares) if not share <= 1), None)
    if beyond is None and len(differences) < len(allowed):
        beyond = len(differences)
    return CurveAgreement(
        max(differences, default=float("inf")),
        max(shares, default=float("inf")),
        None if beyond is None else beyond + 1,
    )

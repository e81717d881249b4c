"""How a learning rate is found: successive halving over rates that double, with the optimum never at an edge.

Short trainings at all rates are followed by longer ones at the best and its two neighbours. (Jamieson and Talwalkar
2016 keep the better half; for a curve with one valley these are the rates in the valley.) At every length more rates
are tried until the best has a worse neighbour on each side. Noise may mislead the search, like all tuning: the A/A
row, which is tuned anew, shows by how much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Rates double from the first one: half-octaves would cost twice as much, and the parabola interpolates.
FIRST_RATE = 2e-3
FEWEST_RATES = 4
# The search ends at these, 2e-6 and 2.0: no sound model has its optimum beyond.
LOWEST, HIGHEST = -10, 10
# The lowest point of the parabola is rounded to this fraction of an octave.
PARTS = 4


@dataclass(frozen=True)
class TuningCurve:
    """The bits per byte found at one length of training."""

    share: float  # of the full length
    bits: Mapping[int, float]  # by the number of the rate (`rate`); infinite where a run diverged

    @property
    def best(self) -> int:
        """The number of the best rate; the lower of two that are equally good."""
        return min(self.bits, key=lambda k: (self.bits[k], k))


def rate(number: float) -> float:
    """The learning rate with this number: 0 is 2e-3, and each further one doubles it."""
    return float(f"{FIRST_RATE * 2.0**number:.6g}")  # the same on every machine


def wanted(curve: Mapping[int, float], start: Sequence[int]) -> list[int]:
    """The rates to try next at one length; none once the best has neighbours on both sides.

    Args:
        curve: the bits found so far, infinite where a run diverged. start: the rates to begin with.
    """
    missing = [k for k in start if k not in curve]
    if missing:
        return missing
    best = TuningCurve(1.0, curve).best
    if math.isinf(curve[best]):
        return [min(curve) - 1]
    return [side for side in (best - 1, best + 1) if side not in curve]


def within(numbers: Sequence[int]) -> list[int]:
    """Those of the rates within the limits of a search."""
    return [k for k in numbers if LOWEST <= k <= HIGHEST]


def starts(before: TuningCurve | None) -> list[int]:
    """The rates that a length begins with: four, or the best of the previous length and its neighbours."""
    if before is None:
        return list(range(FEWEST_RATES))
    return [before.best - 1, before.best, before.best + 1]


def optimum(curve: TuningCurve, *, rounded: bool = True) -> float:
    """The rate at the lowest point of the parabola through the best rate and its neighbours, over log2 of the rate.

    If a neighbour diverged there is no parabola, and the best rate itself is returned.

    Args:
        rounded: whether to round it to a quarter of an octave.
    """
    k = curve.best
    left, middle, right = (curve.bits[i] for i in (k - 1, k, k + 1))
    if math.isinf(left) or math.isinf(right):
        return rate(k)
    bend = left - 2 * middle + right
    shift = 0.0 if bend <= 0 else (left - right) / (2 * bend)  # in [-1/2, 1/2], as the middle is the lowest
    return rate(k + (round(PARTS * shift) / PARTS if rounded else shift))

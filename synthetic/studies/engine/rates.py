"""Which learning rate a model gets: successive halving over rates that double, the optimum always inside.

Short trainings at all rates, then longer ones at the best and its two neighbours (Jamieson and Talwalkar 2016 keep
the better half; of a curve with one valley that is where the valley is). At every length more rates are tried until
the best has a worse neighbour on each side. Noise may mislead it, as it may mislead anybody who tunes: the A/A row,
which is tuned anew, shows by how much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Half-octaves would cost twice as much, and the parabola finds what lies between. Steps from the first rate upwards.
FIRST_RATE = 2e-3
FEWEST_RATES = 4
# An optimum that flees beyond these is none: 2e-6 to 2.0.
LOWEST, HIGHEST = -10, 10
# The lowest point of the parabola is rounded to so many parts of an octave.
PARTS = 4


@dataclass(frozen=True)
class TuningCurve:
    """The bits per byte found at one length of training."""

    share: float  # of the full length
    bits: Mapping[int, float]  # by the number of a rate, see `rate`; infinite where a run diverged

    @property
    def best(self) -> int:
        """The number of the best rate, the lower one of two that are as good."""
        return min(self.bits, key=lambda k: (self.bits[k], k))


def rate(number: float) -> float:
    """The learning rate of a number: 0 is 2e-3, and each further one doubles it."""
    return float(f"{FIRST_RATE * 2.0**number:.6g}")  # the same on every machine


def wanted(curve: Mapping[int, float], start: Sequence[int]) -> list[int]:
    """Which rates are to be tried next at one length; none once the best has neighbours on both sides.

    Args:
        curve: what was found so far, infinite where a run diverged. start: the rates to begin with.
    """
    missing = [k for k in start if k not in curve]
    if missing:
        return missing
    best = TuningCurve(1.0, curve).best
    if math.isinf(curve[best]):
        return [min(curve) - 1]
    return [side for side in (best - 1, best + 1) if side not in curve]


def within(numbers: Sequence[int]) -> list[int]:
    """Those of the rates that are tried at all: a search ends at the lowest and the highest."""
    return [k for k in numbers if LOWEST <= k <= HIGHEST]


def starts(before: TuningCurve | None) -> list[int]:
    """The rates that a length begins with: four, or those around the best of the length before."""
    if before is None:
        return list(range(FEWEST_RATES))
    return [before.best - 1, before.best, before.best + 1]


def optimum(curve: TuningCurve, *, rounded: bool = True) -> float:
    """The rate at the lowest point of the parabola through the best rate and its neighbours, over log2 of the rate.

    Where a neighbour diverged there is no parabola, and it is the best rate itself.

    Args:
        rounded: to a quarter of an octave.
    """
    k = curve.best
    left, middle, right = (curve.bits[i] for i in (k - 1, k, k + 1))
    if math.isinf(left) or math.isinf(right):
        return rate(k)
    bend = left - 2 * middle + right
    shift = 0.0 if bend <= 0 else (left - right) / (2 * bend)  # in [-1/2, 1/2], as the middle is the lowest
    return rate(k + (round(PARTS * shift) / PARTS if rounded else shift))

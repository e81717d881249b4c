"""The best learning rate of a model, between those that were tried: Akima interpolation over log2 of the rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import Akima1DInterpolator

from synthetic.studies.paper.rows import RATES, at_rate
from synthetic.studies.paper.summary import Row

# Of the interpolated curve between the smallest and the largest rate.
GRID = 4001


@dataclass(frozen=True)
class Optimum:
    """The lowest point of a curve.

    Attributes:
        rate: where. bits: how low. at_edge: whether it is the smallest or the largest rate, so that a better one may
            lie beyond.
    """

    rate: float
    bits: float
    at_edge: bool


def optimum(rates: Sequence[float], bits: Sequence[float]) -> Optimum:
    """The lowest point of Akima's curve through (log2 rate, bits); rates rise, and there are at least two.

    Akima (1970) weighs the slopes on both sides, so that one rate at which training goes badly bends the curve
    between the others less than a polynomial or a cubic spline would be bent.
    """
    curve = Akima1DInterpolator(np.log2(rates), np.asarray(bits, dtype=np.float64))
    x = np.linspace(np.log2(rates[0]), np.log2(rates[-1]), GRID)
    y = curve(x)  # (GRID,)
    lowest = int(np.argmin(y))
    return Optimum(float(2 ** x[lowest]), float(y[lowest]), lowest in (0, GRID - 1))


def tuned(named: Mapping[str, Row], name: str) -> list[Optimum] | None:
    """The optimum of each seed of a model of the learning-rate study; None if too many runs diverged.

    A model that diverges at some rates is tuned over those at which no run did, at least three of them.
    """
    sound = [rate for rate in RATES if not named[at_rate(name, rate)].diverged]
    if len(sound) < 3:
        return None
    by_seed = zip(*(named[at_rate(name, rate)].finals for rate in sound), strict=True)
    return [optimum(sound, bits) for bits in by_seed]

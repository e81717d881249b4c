"""Stopping by energy at test time: the shares at which it is tried, and the result of each.

The rule is `Descent.least_fall` (docs/mathematics.md §18g).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

# q: a token stops after a step that lowers the energy by less than this share of what its first step did.
STOPS = (1 / 2, 1 / 4, 1 / 8, 1 / 16)


@dataclass(frozen=True)
class AtStop:
    """A trained model whose tokens, or points, stop by themselves."""

    least_fall: float  # q
    steps: float  # the mean number that they took
    figure: float | None  # bits, or an error; None if it is not finite


def means(replicates: Sequence[Sequence[AtStop]]) -> tuple[AtStop, ...]:
    """Means over replicates at each q; the figure is None if any replicate's is."""
    stops_of_all = []
    for stops in zip(*replicates, strict=True):
        figures = [stop.figure for stop in stops if stop.figure is not None]
        whole = len(figures) == len(stops)
        stops_of_all.append(
            AtStop(stops[0].least_fall, fmean(stop.steps for stop in stops), fmean(figures) if whole else None)
        )
    return tuple(stops_of_all)


def share(least_fall: float) -> str:
    """A share as a fraction, "1/4" for 0.25."""
    return f"1/{1 / least_fall:g}"

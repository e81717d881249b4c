"""How many seeds show half a percent, and how much of what is left comes from the text that is scored.

Pairs of models differ from seed to seed by a log ratio with some standard deviation. From it follows how many seeds a
paired t test needs to find a difference with 80 % power, and how many two one-sided tests need to call models equal
that are. The windows that are scored are the same for all seeds, so more seeds do not make their share smaller; it is
estimated from groups of neighbouring windows, and more windows do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from cemverify.results.envelope import Cell, Table
from cemverify.results.statistics import spread
from synthetic.studies.engine.comparisons import MARGIN
from synthetic.studies.engine.trials import TrialRecord

POWER, ALPHA = 0.8, 0.05
# The standard deviation of a pair's log ratio that pilots at D = 64 had, 0.4 to 0.5 %; with D = 32 it was 1.5 %.
PILOT_SPREAD = 0.005
MOST_SEEDS = 1000
EFFECTS = (0.0025, MARGIN, 0.01, 0.02)


def seeds_to_find(effect: float, deviation: float) -> int | None:
    """How many pairs a two-sided t test needs to find a relative difference; None if more than a thousand.

    Args:
        deviation: of the pairs' log ratios.
    """
    return _fewest(lambda n: _power_to_find(math.log1p(effect), deviation, n))


def seeds_to_equal(margin: float, deviation: float) -> int | None:
    """How many pairs two one-sided t tests need to call equal models equivalent within a margin."""
    return _fewest(lambda n: _power_to_equal(math.log1p(margin), deviation, n))


def from_windows(first: Sequence[TrialRecord], second: Sequence[TrialRecord]) -> float | None:
    """The standard error that the choice of windows gives a comparison of two rows, paired by seed; None if untold.

    It is that of a pair's log ratio over the groups of windows, the mean over seeds.
    """
    pairs = [(a.groups, b.groups) for a, b in zip(first, second, strict=True) if a.groups and b.groups]
    if not pairs or len(pairs[0][0]) < 2:
        return None
    groups = len(pairs[0][0])
    # the same windows in every seed: what they do is what is left in the mean over seeds
    means = [math.fsum(math.log(a[g] / b[g]) for a, b in pairs) / len(pairs) for g in range(groups)]
    deviation = spread(means).std
    assert deviation is not None
    return deviation / math.sqrt(groups)


def needs(deviation: float, source: str) -> Table:
    """How many seeds show which difference, for a standard deviation of log ratios from a source."""
    rows: list[list[Cell]] = []
    for effect in EFFECTS:
        seeds = (seeds_to_find(effect, deviation), seeds_to_equal(effect, deviation))
        rows.append([f"{effect:.2%}", *(f"more than {MOST_SEEDS:,}" if n is None else n for n in seeds)])
    title = (
        f"Seeds for {POWER:.0%} power at 5 %, where log ratios of pairs have a standard deviation of {deviation:.2%},"
        f" {source}"
    )
    return Table(title, ("difference", "seeds that find it", "seeds that show equality within it"), rows)


def _fewest(power_of: Callable[[int], float]) -> int | None:
    return next((n for n in range(2, MOST_SEEDS + 1) if power_of(n) >= POWER), None)


def _power_to_find(shift: float, deviation: float, n: int) -> float:
    from scipy import stats  # here and below, since its import takes half a second

    critical = stats.t.ppf(1 - ALPHA / 2, n - 1)
    return float(stats.nct.sf(critical, n - 1, shift * math.sqrt(n) / deviation))


def _power_to_equal(shift: float, deviation: float, n: int) -> float:
    from scipy import stats

    critical = stats.t.ppf(1 - ALPHA, n - 1)
    one_side = float(stats.nct.sf(critical, n - 1, shift * math.sqrt(n) / deviation))
    return max(0.0, 2 * one_side - 1)

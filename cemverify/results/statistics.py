"""Means, spreads and paired comparisons over few replicates.

Errors are compared as ratios, replicate by replicate. The interval and the t test assume that the logarithms of
paired ratios are normal. The sign-flip test assumes only that, if there is no difference, a ratio is as likely as
its inverse. The distributions and tests are those of `scipy.stats`.

A verdict is that of the t test, corrected by Holm's method. A few ratios cannot show that their logarithms are
normal. Without that assumption, all n of them lie on one side of 1 by chance with probability 2 / 2^n, which is above
0.05 for n below six. So below six nothing is decided, however small the p-value of a t test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal, TypeVar

import numpy as np

# Two errors within this factor of each other count as equal, unless a study chooses another margin.
MARGIN = 0.02
# The least n with 2 / 2^n below 0.05: with fewer pairs there is no p-value and no verdict.
FEWEST = 6
# All 2^n sign flips are counted if there are no more than this; otherwise this many are drawn.
_FLIPS = 2**16

Conclusion = Literal["better", "worse", "equivalent", "inconclusive", "too few"]
Expected = Literal["better", "worse", "close", "no worse", "no better"]  # of a model against another


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (ddof 1) of n numbers."""

    mean: float
    std: float | None  # None at n = 1, where it is unknown
    n: int


@dataclass(frozen=True)
class Ratio:
    """The geometric mean of paired ratios."""

    mean: float
    # low, high: the interval that covers it with the requested confidence, from Student's t on the logarithms; None
    # with fewer than two pairs
    low: float | None
    high: float | None


@dataclass(frozen=True)
class PairedComparison:
    """Errors of one model against those of another on the same replicates."""

    ratio: Ratio  # with its 95 % interval; below 1 the model is better
    n: int  # pairs
    # t_test, sign_flip: two-sided p-values of "no difference"; None with fewer than `FEWEST` pairs
    t_test: float | None
    sign_flip: float | None
    # the t test's p-value, corrected for the number of comparisons in a table; None as above, or until corrected
    holm: float | None
    # the smallest relative difference that such a t test finds in 80 % of studies; None below 2 pairs
    detectable: float | None
    # "too few" with fewer than `FEWEST` pairs; "better" or "worse" if the corrected p-value is below 0.05;
    # "equivalent" if the 90 % interval lies within the margin; "inconclusive" otherwise
    conclusion: Conclusion


Compared = TypeVar("Compared", PairedComparison, PairedComparison | None)


def side_of(
    expected: Expected, low: float, high: float, margin: float, *, equivalent: bool
) -> Literal["for", "against", "neither"]:
    """Whether a ratio speaks for or against an expectation; below 1 the first model is better.

        better       for if the 95 % interval lies below 1; against if above, or if equivalent and around 1
        worse        for if it lies above 1; against if below, or if equivalent and around 1
        close        for if equivalent; against if the 95 % interval lies beyond the margin
        no worse     for if equivalent or below 1; against if it lies beyond the margin on the other side
        no better    for if it lies above 1, or if equivalent and around 1; against if below

    Args:
        low, high: the 95 % interval. equivalent: whether the 90 % interval lies within the margin.
    """
    if expected == "close":
        beyond = low > 1 + margin or high < 1 / (1 + margin)
        return "for" if equivalent else "against" if beyond else "neither"
    if expected == "no worse":
        return "for" if equivalent or high < 1 else "against" if low > 1 + margin else "neither"
    side = "better" if high < 1 else "worse" if low > 1 else "level" if equivalent else None
    if side is None:
        return "neither"
    return "for" if (side != "better" if expected == "no better" else side == expected) else "against"


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of at least one number."""
    return Spread(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def mean_interval(mean: float, std: float | None, n: int, confidence: float = 0.95) -> tuple[float, float] | None:
    """The interval of the mean of n positive numbers: Student's t on its logarithm, so that it stays above 0.

    To first order, the logarithm of the mean has the standard error std / (mean sqrt(n)).

    Returns:
        Its ends; None if they cannot be told: with one number, or if all are 0.
    """
    from scipy import stats

    if std is None or n < 2 or mean <= 0:
        return None
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * std / (mean * math.sqrt(n))
    return mean * math.exp(-half), mean * math.exp(half)


def paired_ratio(values: Sequence[float], references: Sequence[float], confidence: float = 0.95) -> Ratio:
    """How many times as large values are as the references they are paired with; all positive.

    Raises:
        ValueError: there are not as many values as references.
    """
    from scipy import stats  # here and below, because its import takes half a second and few commands need it

    logs = spread(_logs(values, references))
    if logs.std is None:
        return Ratio(math.exp(logs.mean), None, None)
    if logs.std == 0:
        return Ratio(*[math.exp(logs.mean)] * 3)
    low, high = stats.t.interval(confidence, logs.n - 1, logs.mean, logs.std / math.sqrt(logs.n))
    return Ratio(math.exp(logs.mean), math.exp(low), math.exp(high))


def compare(values: Sequence[float], references: Sequence[float], margin: float = MARGIN) -> PairedComparison:
    """The comparison of paired positive errors, on its own; see `correct` for a table of them.

    Args:
        margin: errors within a factor of 1 + margin count as equal.
    """
    logs = _logs(values, references)
    n = len(logs)
    enough = n >= FEWEST
    comparison = PairedComparison(
        ratio=paired_ratio(values, references),
        n=n,
        t_test=t_test(logs) if enough else None,
        sign_flip=sign_flip(logs) if enough else None,
        holm=None,
        detectable=smallest_detectable(logs) if n > 1 else None,
        conclusion="inconclusive",
    )
    narrower = paired_ratio(values, references, confidence=0.9)
    return replace(comparison, conclusion=_conclusion(comparison, narrower, margin))


def correct(comparisons: Sequence[Compared]) -> list[Compared]:
    """The comparisons of one table, with their t tests corrected by Holm's method; None stays None."""
    adjusted = iter(holm([c.t_test for c in comparisons if c is not None and c.t_test is not None]))
    corrected = []
    for each in comparisons:
        if each is not None and each.t_test is not None:
            p = next(adjusted)
            # a difference that one test alone would call real may be chance among many
            lost = each.conclusion in ("better", "worse") and p >= 0.05
            each = replace(each, holm=p, conclusion="inconclusive" if lost else each.conclusion)
        corrected.append(each)
    return corrected


def t_test(differences: Sequence[float]) -> float:
    """The two-sided p-value of "their mean is 0", for at least two normal differences."""
    from scipy import stats

    spread_ = spread(differences)
    assert spread_.std is not None
    if spread_.std == 0:
        return 1.0 if spread_.mean == 0 else 0.0
    # not `ttest_1samp`, which warns if differences are nearly equal
    return float(2 * stats.t.sf(abs(spread_.mean) / (spread_.std / math.sqrt(spread_.n)), spread_.n - 1))


def sign_flip(differences: Sequence[float]) -> float:
    """The two-sided p-value of "each sign is as likely as the other", from all sign flips or from 2^16 draws."""

    from scipy import stats

    test = stats.permutation_test(
        (np.asarray(differences, dtype=np.float64),),
        lambda flipped, axis: np.sum(flipped, axis),
        permutation_type="samples",
        n_resamples=_FLIPS,
        vectorized=True,
        rng=np.random.default_rng(0),
    )
    return float(test.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment, in the given order."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def smallest_detectable(differences: Sequence[float], power: float = 0.8, alpha: float = 0.05) -> float:
    """The relative difference that a paired t test on as many log ratios with this spread finds with that power.

    Args:
        differences: log ratios, at least two.
    """
    from scipy import stats
    from scipy.optimize import brentq

    spread_ = spread(differences)
    assert spread_.std is not None
    freedom = spread_.n - 1
    critical = float(stats.t.ppf(1 - alpha / 2, freedom))

    def missing(shift: float) -> float:
        # a difference found with the wrong sign is not found
        return float(stats.nct.sf(critical, freedom, shift)) - power

    shift = float(brentq(missing, 0.0, 1.5 * critical + 1))
    return math.expm1(shift * spread_.std / math.sqrt(spread_.n))


def _logs(values: Sequence[float], references: Sequence[float]) -> list[float]:
    return [math.log(v / r) for v, r in zip(values, references, strict=True)]


def _conclusion(comparison: PairedComparison, narrower: Ratio, margin: float) -> Conclusion:
    """The verdict on one comparison. `narrower`: its 90 % interval; within the margin it is two one-sided tests."""
    ratio = comparison.ratio
    if comparison.n < FEWEST or not (ratio.low and ratio.high and narrower.low and narrower.high):
        return "too few"
    if narrower.low > 1 / (1 + margin) and narrower.high < 1 + margin:
        return "equivalent"
    if ratio.high < 1:
        return "better"
    return "worse" if ratio.low > 1 else "inconclusive"

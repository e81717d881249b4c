"""Exact binomial intervals, from scipy, for the probability of detection given a number of detections.

`scipy.stats` takes half a second to import, so it is imported where it is used.
"""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=4096)
def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a binomial probability: it covers the true one with at least this confidence.

    Raises:
        ValueError: no trial, more successes than trials, or a confidence outside [0, 1].
    """
    from scipy.stats import binomtest

    interval = binomtest(successes, trials).proportion_ci(confidence, method="exact")
    return float(interval.low), float(interval.high)


@lru_cache(maxsize=4096)
def upper_bound(successes: int, trials: int, confidence: float = 0.95) -> float:
    """The exact one-sided upper bound of a binomial probability, with at least this confidence.

    Raises:
        ValueError: no trial, more successes than trials, or a confidence outside [0, 1].
    """
    from scipy.stats import binomtest

    test = binomtest(successes, trials, alternative="less")
    return float(test.proportion_ci(confidence, method="exact").high)

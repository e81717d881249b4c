"""What a number of detections says of the probability of detection."""

from __future__ import annotations

import math
from functools import lru_cache


@lru_cache(maxsize=4096)
def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a binomial probability: it covers the true one at least that often.

    The lower end is the p at which `successes` or more would come about with probability (1 - confidence) / 2,
    the upper end the p at which `successes` or fewer would. At 0 and at all of them, the interval is one-sided
    there: it ends at 0, at 1.

    Raises:
        ValueError: no trial, more successes than trials, or a confidence outside (0, 1).
    """
    if not 0 <= successes <= trials or not trials:
        raise ValueError(f"from 0 to {trials} successes in at least one trial, not {successes}")
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence lies between 0 and 1, not {confidence}")
    tail = (1 - confidence) / 2
    lower = 0.0 if successes == 0 else _beta_quantile(tail, successes, trials - successes + 1)
    upper = 1.0 if successes == trials else _beta_quantile(1 - tail, successes + 1, trials - successes)
    return lower, upper


def upper_bound(successes: int, trials: int, confidence: float = 0.95) -> float:
    """The exact one-sided upper bound: at least that often, the true probability is no larger."""
    return clopper_pearson(successes, trials, 2 * confidence - 1)[1]


def _beta_quantile(probability: float, a: int, b: int) -> float:
    """The x at which the regularised incomplete beta function I_x(a, b) is that probability, by bisection.

    For whole numbers it is the probability of `a` or more successes in a + b - 1 trials.
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_least(a, a + b - 1, middle) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _at_least(successes: int, trials: int, p: float) -> float:
    """The probability of so many successes or more, by the shorter of its two sums."""

    def exactly(k: int) -> float:
        ways = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        return math.exp(ways + k * math.log(p) + (trials - k) * math.log1p(-p))

    if successes <= trials - successes + 1:
        return 1 - math.fsum(exactly(k) for k in range(successes))
    return math.fsum(exactly(k) for k in range(successes, trials + 1))

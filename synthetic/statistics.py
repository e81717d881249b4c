"""Means, spreads and paired comparisons over few replicates.

Errors are compared as ratios, replicate by replicate: the logarithms of paired ratios are taken to be normal, for
the interval and the t test; the sign-flip test assumes nothing but that under "no difference" a ratio is as likely
as its inverse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.optimize import brentq
from scipy.stats import nct
from scipy.stats import t as student

# Two errors within this factor of each other are as good as equal, where a study does not say otherwise.
MARGIN = 0.02
# With fewer pairs no sign-flip test can reach 0.05, and no p-value is given.
FEWEST = 6
# Up to here all 2^n sign flips are counted, beyond it as many as that are drawn.
_EXACT_FLIPS = 16

Verdict = Literal["better", "worse", "equivalent", "inconclusive"]


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (ddof 1) of n numbers.

    Attributes:
        std: None at n = 1, where there is no telling.
    """

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Ratio:
    """The geometric mean of paired ratios.

    Attributes:
        low, high: the interval that covers it with the confidence asked for, from Student's t on the logarithms;
            None with fewer than two pairs.
    """

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Comparison:
    """Errors of one model against those of another on the same replicates.

    Attributes:
        ratio: with its 95 % interval; below 1 the model is better.
        n: pairs.
        t_test, sign_flip: two-sided p-values of "no difference"; None with fewer than `FEWEST` pairs.
        holm: the t test's, corrected for the number of comparisons in a table; None as above, or before that.
        detectable: the smallest relative difference that such a t test finds in 80 % of studies; None below 2 pairs.
        verdict: "better" or "worse" if the corrected p-value is below 0.05, or with too few pairs for one, if the
            interval excludes 1; "equivalent" if the 90 % interval lies within the margin; "inconclusive" otherwise.
    """

    ratio: Ratio
    n: int
    t_test: float | None
    sign_flip: float | None
    holm: float | None
    detectable: float | None
    verdict: Verdict


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of at least one number."""
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Spread(mean, None, n)
    return Spread(mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1)), n)


def paired_ratio(values: Sequence[float], references: Sequence[float], confidence: float = 0.95) -> Ratio:
    """How many times larger values are than the references they are paired with; all positive.

    Raises:
        ValueError: not as many values as references.
    """
    logs = spread(_logs(values, references))
    if logs.std is None:
        return Ratio(math.exp(logs.mean), None, None)
    half = float(student.ppf((1 + confidence) / 2, logs.n - 1)) * logs.std / math.sqrt(logs.n)
    return Ratio(math.exp(logs.mean), math.exp(logs.mean - half), math.exp(logs.mean + half))


def compare(values: Sequence[float], references: Sequence[float], margin: float = MARGIN) -> Comparison:
    """The comparison of paired positive errors, on its own; see `correct` for a table of them.

    Args:
        margin: within which factor, 1 + margin, errors are as good as equal.
    """
    logs = _logs(values, references)
    n = len(logs)
    enough = n >= FEWEST
    found = Comparison(
        ratio=paired_ratio(values, references),
        n=n,
        t_test=t_test(logs) if enough else None,
        sign_flip=sign_flip(logs) if enough else None,
        holm=None,
        detectable=smallest_detectable(logs) if n > 1 else None,
        verdict="inconclusive",
    )
    return replace(found, verdict=_verdict(found, paired_ratio(values, references, confidence=0.9), margin))


def correct(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons of one table, their t tests corrected by Holm's method."""
    tested = [c.t_test for c in comparisons if c.t_test is not None]
    adjusted = iter(holm(tested))
    corrected = []
    for c in comparisons:
        if c.t_test is None:
            corrected.append(c)
            continue
        p = next(adjusted)
        # a difference that one test alone would call real, may be chance among many
        lost = c.verdict in ("better", "worse") and p >= 0.05
        corrected.append(replace(c, holm=p, verdict="inconclusive" if lost else c.verdict))
    return corrected


def t_test(differences: Sequence[float]) -> float:
    """The two-sided p-value of "their mean is 0", for at least two normal differences."""
    found = spread(differences)
    assert found.std is not None
    if found.std == 0:
        return 1.0 if found.mean == 0 else 0.0
    statistic = abs(found.mean) / (found.std / math.sqrt(found.n))
    return float(2 * student.sf(statistic, found.n - 1))


def sign_flip(differences: Sequence[float]) -> float:
    """The two-sided p-value of "each is as likely to have the other sign": all 2^n flips, or 2^16 drawn ones."""
    d = np.asarray(differences, dtype=np.float64)  # (n,)
    n = len(d)
    if n <= _EXACT_FLIPS:
        flips = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)  # (2^n, n)
    else:
        # what was seen is one of the flips, so that the p-value is never 0
        drawn = np.random.default_rng(0).integers(0, 2, (2**_EXACT_FLIPS - 1, n))
        flips = np.concatenate([np.ones((1, n), dtype=np.int64), 1 - 2 * drawn])
    means = np.abs(flips @ d)
    # sums in another order differ by roundoff
    return float(np.mean(means >= abs(d.sum()) - n * np.finfo(np.float64).eps * np.abs(d).sum()))


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
    """The relative difference that a paired t test on as many log ratios, as spread as these, finds with that power.

    Args:
        differences: log ratios, at least two.
    """
    found = spread(differences)
    assert found.std is not None
    freedom = found.n - 1
    critical = float(student.ppf(1 - alpha / 2, freedom))

    def missing(shift: float) -> float:
        # a difference found with the wrong sign is not found
        return float(nct.sf(critical, freedom, shift)) - power

    shift = float(brentq(missing, 0.0, 1.5 * critical + 1))
    return math.expm1(shift * found.std / math.sqrt(found.n))


def _logs(values: Sequence[float], references: Sequence[float]) -> list[float]:
    return [math.log(v / r) for v, r in zip(values, references, strict=True)]


def _verdict(found: Comparison, narrower: Ratio, margin: float) -> Verdict:
    """Of one comparison alone. `narrower`: its 90 % interval, which within the margin means two one-sided tests."""
    ratio = found.ratio
    if ratio.low is None or ratio.high is None or narrower.low is None or narrower.high is None:
        return "inconclusive"
    if narrower.low > 1 / (1 + margin) and narrower.high < 1 + margin:
        return "equivalent"
    if ratio.high < 1:
        return "better"
    return "worse" if ratio.low > 1 else "inconclusive"

"""Means, spreads and paired ratios over few replicates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t as student


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
    logs = spread([math.log(v / r) for v, r in zip(values, references, strict=True)])
    if logs.std is None:
        return Ratio(math.exp(logs.mean), None, None)
    half = float(student.ppf((1 + confidence) / 2, logs.n - 1)) * logs.std / math.sqrt(logs.n)
    return Ratio(math.exp(logs.mean), math.exp(logs.mean - half), math.exp(logs.mean + half))

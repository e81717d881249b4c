"""Whether draws come from N(0, K): tests that can fail, with a stated rate of false alarms.

With nearly singular covariances, whitening is unreliable. Therefore known white noise is added to the draws and to K
(`with_noise`). At 1e-9 of the variance, the error of a float32 factor (1e-7) still shows clearly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # its parts load when they are first used
import torch
from torch import Tensor

# How often draws from the right distribution are rejected, by both tests together.
FALSE_ALARM = 1e-6

# White noise added before testing, in units of the mean variance.
NOISE = 1e-9


@dataclass(frozen=True)
class DrawsTest:
    """The results of the tests on some draws."""

    # whiteness, pairs: p-values of `whiteness` and `pairs`
    whiteness: float
    pairs: float

    @property
    def accepted(self) -> bool:
        """Whether neither p-value is below half the false-alarm rate."""
        return min(self.whiteness, self.pairs) >= FALSE_ALARM / 2


def check_draws(draws: Tensor, covariance: Tensor, generator: torch.Generator) -> DrawsTest:
    """Whether draws (s, n) come from N(0, covariance), all float64.

    Args:
        covariance: (n, n), computed independently of the draws; otherwise the test proves little.
        generator: for the noise that is added.
    """
    draws, covariance = with_noise(draws, covariance, generator)
    return DrawsTest(whiteness(draws, covariance), pairs(draws, covariance))


def with_noise(draws: Tensor, covariance: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws (s, n) and covariance (n, n), both with white noise of variance `NOISE` times the mean variance."""
    variance = NOISE * float(covariance.diagonal().mean())
    noise = torch.randn(draws.shape, generator=generator, dtype=torch.float64)
    return draws + variance**0.5 * noise, covariance + variance * torch.eye(len(covariance), dtype=torch.float64)


def whiteness(draws: Tensor, covariance: Tensor) -> float:
    """The smaller p-value, doubled, of two tests that draws (s, n) come from N(0, covariance).

    Whitened by SciPy's Cholesky factor, they are s n standard normals. One test asks whether the sum of their squares
    is chi-squared (two-sided), the other whether their distribution is normal (Kolmogorov and Smirnov).
    """
    factor = scipy.linalg.cholesky(covariance.numpy(), lower=True)
    white = scipy.linalg.solve_triangular(factor, draws.mT.numpy(), lower=True).ravel()  # (s n,)
    distance = float(scipy.stats.kstest(white, "norm").pvalue)
    return min(1.0, 2 * min(float(_two_sided((white**2).sum(), white.size)), distance))


def pairs(draws: Tensor, covariance: Tensor) -> float:
    """The smallest p-value, times the number of tests, of tests that pairs of points have the stated covariance.

    A pair is a point and the one most correlated with it. The variances of their sum and difference follow from three
    entries of the covariance, without a factorisation. Sums of their squares over draws (s, n) are chi-squared.
    """
    K, f = covariance.numpy(), draws.numpy()
    variance = np.diag(K)
    correlation = np.abs(K / np.sqrt(np.outer(variance, variance)))
    np.fill_diagonal(correlation, -1.0)
    i, j = np.arange(len(K)), correlation.argmax(1)
    smallest = 1.0
    for sign in (1, -1):
        squares = ((f[:, i] + sign * f[:, j]) ** 2).sum(0) / (variance[i] + variance[j] + 2 * sign * K[i, j])  # (n,)
        smallest = min(smallest, float(_two_sided(squares, len(f)).min()))
    return min(1.0, 2 * len(K) * smallest)


def _two_sided(squares: Any, degrees: int) -> Any:
    """Two-sided p-values of sums of squares of this many standard normals."""
    return 2 * np.minimum(scipy.stats.chi2.cdf(squares, degrees), scipy.stats.chi2.sf(squares, degrees))

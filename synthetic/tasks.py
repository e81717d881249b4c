"""Regression tasks drawn exactly from a Gaussian process, each with its own Bayes-optimal predictor.

Training and test points come from one draw f = L z, L the Cholesky factor of the prior covariance over all of
them in float64. (GPyTorch's own sampler turns to a rank-100 root above 800 points and gets variances wrong.)
If rounding makes the covariance lose definiteness, a jitter is added, recorded, and known to the oracle: the
function then *is* a draw from the prior plus that little white noise, so its posterior stays exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from synthetic.errors import UsageError
from synthetic.priors import covariance, find_prior
from synthetic.streams import Stream, Streams

# Jitters in units of the mean variance, tried in order; more would be another prior.
JITTERS = (0.0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)


@dataclass(frozen=True)
class TaskConfig:
    """What a task is drawn from.

    Attributes:
        prior: a name of `synthetic.priors.PRIORS`. lengthscale: its lengthscale.
        dimensions: d, inputs are uniform in [-1, 1]^d.
        train_points, test_points: n and m. noise: standard deviation of the noise on training targets.

    Raises:
        UsageError: an unknown prior, or a number out of range.
    """

    prior: str
    lengthscale: float
    dimensions: int = 10
    train_points: int = 1024
    test_points: int = 1024
    noise: float = 0.1

    def __post_init__(self) -> None:
        find_prior(self.prior)
        for name in ("lengthscale", "noise"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise UsageError(f"the {name} must be a positive number, not {value}")
        # two training points: one to learn from, one to choose the weights by
        for name, least in (("dimensions", 1), ("train_points", 2), ("test_points", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name.replace('_', ' ')} must be at least {least}, not {getattr(self, name)}")


@dataclass(frozen=True)
class Score:
    """How good predictions of the noise-free function are on the test points.

    Attributes:
        expected: sqrt(mean((p - mu)^2 + v)), the root of the mean squared error that is to be expected given the
            training data; far less noisy than `observed`, and never below the floor.
        observed: the root mean squared error against the function that was drawn.
        excess: sqrt(mean((p - mu)^2)), the distance to the Bayes-optimal predictor.
    """

    expected: float
    observed: float
    excess: float


@dataclass(frozen=True)
class Task:
    """A task and its oracle, all float64.

    Attributes:
        inputs: (n, d). targets: (n,), noisy. test_inputs: (m, d). test_values: (m,), without noise.
        mean, variance: (m,), the posterior of the test values given the training data.
        jitter: what was added to the prior variance.
    """

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_values: Tensor
    mean: Tensor
    variance: Tensor
    jitter: float

    @property
    def floor(self) -> float:
        """sqrt(mean v): no predictor expects a smaller root mean squared error on these test points."""
        return float(self.variance.mean().sqrt())

    def score(self, predictions: Tensor) -> Score:
        """The score of predictions (m,) of the test values."""
        gap = (predictions - self.mean) ** 2  # (m,)
        return Score(
            expected=float((gap + self.variance).mean().sqrt()),
            observed=float(((predictions - self.test_values) ** 2).mean().sqrt()),
            excess=float(gap.mean().sqrt()),
        )


def draw(config: TaskConfig, streams: Streams) -> Task:
    """A function, its noisy training set and its posterior on the test set.

    Raises:
        UsageError: in float64 the prior is not positive definite at that many points.
    """
    n, m = config.train_points, config.test_points
    uniform = torch.rand(n + m, config.dimensions, generator=streams.generator(Stream.INPUTS), dtype=torch.float64)
    x = 2 * uniform - 1  # (n + m, d)
    joint = covariance(config.prior, config.lengthscale, x)  # (n + m, n + m)
    try:
        factor, jitter = factorise(joint)
    except ArithmeticError as error:
        raise UsageError(
            f"prior {config.prior} with lengthscale {config.lengthscale:g} at {n + m} points: {error}; "
            f"choose another lengthscale or fewer points"
        ) from error
    f = factor @ _standard_normal(n + m, streams, Stream.FUNCTION)  # (n + m,)
    targets = f[:n] + config.noise * _standard_normal(n, streams, Stream.NOISE)
    mean, variance = posterior(joint, targets, config.noise**2)
    return Task(x[:n], targets, x[n:], f[n:], mean, variance, jitter)


def factorise(matrix: Tensor) -> tuple[Tensor, float]:
    """The Cholesky factor of matrix + jitter I, and the jitter, the smallest of `JITTERS` with which there is one.

    Args:
        matrix: symmetric, (n, n), float64; in place, the jitter is added to it, as at this size copies matter.

    Raises:
        ArithmeticError: there is none with any of them.
    """
    if not bool(torch.isfinite(matrix).all()):
        raise ArithmeticError("its covariance is not finite")
    diagonal = matrix.diagonal().clone()
    scale = float(diagonal.mean())
    for relative in JITTERS:
        matrix.diagonal().copy_(diagonal + relative * scale)
        factor, info = torch.linalg.cholesky_ex(matrix)
        if int(info) == 0:
            return factor, relative * scale
    raise ArithmeticError(f"its covariance is not positive definite, even with a jitter of {JITTERS[-1]:g}")


def posterior(joint: Tensor, targets: Tensor, noise_variance: float) -> tuple[Tensor, Tensor]:
    """Mean and variance (m,) of the function at the last m points, given noisy targets (n,) at the first n.

    mu = K_*t K_y^-1 y,   v = k_** - diag(K_*t K_y^-1 K_t*),   K_y = K_tt + sigma^2 I (Rasmussen and Williams 2.23-24)

    Args:
        joint: the prior covariance of all points, (n + m, n + m), float64.
    """
    n = len(targets)
    noisy = joint[:n, :n].clone()
    noisy.diagonal().add_(noise_variance)
    factor = torch.linalg.cholesky(noisy)  # (n, n)
    whitened = torch.linalg.solve_triangular(factor, joint[:n, n:], upper=False)  # (n, m)
    white_targets = torch.linalg.solve_triangular(factor, targets[:, None], upper=False)  # (n, 1)
    mean = (whitened.mT @ white_targets)[:, 0]
    return mean, joint.diagonal()[n:] - (whitened**2).sum(0)


def ridge(task: Task, penalty: float) -> Tensor:
    """Predictions (m,) of the linear fit with intercept that minimises |y - Xw|^2 + penalty |w|^2."""
    X, X_test = _with_ones(task.inputs), _with_ones(task.test_inputs)  # (n, d + 1), (m, d + 1)
    gram = X.mT @ X + penalty * torch.eye(X.shape[1], dtype=X.dtype)
    weights: Tensor = torch.linalg.solve(gram, X.mT @ task.targets)  # (d + 1,)
    return X_test @ weights


def _with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], dim=1)


def _standard_normal(count: int, streams: Streams, stream: Stream) -> Tensor:
    return torch.randn(count, generator=streams.generator(stream), dtype=torch.float64)

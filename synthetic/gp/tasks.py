"""Regression tasks drawn from a Gaussian process, each with its own Bayes-optimal predictor.

    config = TaskConfig("rbf(lengthscale=2)", train_points=1024)
    task = draw(config, Streams(root=0, task=config.prior, seed=0))
    task.floor, task.score(predictions).expected

Training and test points come from one exact draw over all of them (`synthetic.gp.sampling`), so there are as many as
memory holds: 8,192 take seconds and 1.5 GB.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from cemverify.console.errors import UsageError
from synthetic import memory
from synthetic.gp import priors, sampling
from synthetic.gp.algebra import LARGEST, SMALLEST


@dataclass(frozen=True)
class TaskConfig:
    """What a task is drawn from. Plain strings and numbers, with every default filled in: `dataclasses.asdict` of
    two configurations is equal if and only if they mean the same task.
    """

    prior: str  # as text (`synthetic.gp.priors`), made canonical: "rbf" becomes "rbf(lengthscale=2)"
    dimensions: int = 10  # d, inputs are uniform in [-1, 1]^d
    # train_points, test_points: n and m
    train_points: int = 1024
    test_points: int = 1024
    noise: float = 0.1  # standard deviation of the noise on training targets
    features: int = 0  # part of the names of cells; it was not 0 in tasks of random features
    # J, the points of each function, seen one after the other; n and m then count functions
    # (`synthetic.gp.sequences`); 0: n and m count points of one function
    sequence: int = field(default=0, metadata={"added": True})

    def __post_init__(self) -> None:
        if self.train_points < 2:  # one to learn from, one to choose the weights
            raise UsageError(f"train points must be at least 2, not {self.train_points}")
        if not SMALLEST <= self.noise <= LARGEST:
            raise UsageError(f"the noise must be from {SMALLEST:g} to {LARGEST:g}, not {self.noise:g}")
        if self.features:
            raise UsageError(f"features must be 0, not {self.features}: every task is exact")
        object.__setattr__(self, "prior", priors.canonical(self.prior, self.dimensions))
        object.__setattr__(self, "noise", float(self.noise))

    @property
    def points(self) -> int:
        """The number of points that are drawn at once: n for training and m for testing."""
        return self.train_points + self.test_points


@dataclass(frozen=True)
class Score:
    """How good predictions of the noise-free function are on the test points."""

    # sqrt(mean((p - mu)^2 + v)), the root of the expected mean squared error given the training data; far less noisy
    # than `observed`, and never below the floor
    expected: float
    # the root mean squared error on the one function that was drawn; it may lie below the floor, which bounds the
    # mean of its square over functions
    observed: float
    excess: float  # sqrt(mean((p - mu)^2)), the distance to the Bayes-optimal predictor


@dataclass(frozen=True)
class Task:
    """A task and its oracle, all float64; for sequences, with the shapes in `synthetic.gp.sequences`."""

    config: TaskConfig  # what it was drawn from
    inputs: Tensor  # (n, d)
    targets: Tensor  # (n,), noisy
    test_inputs: Tensor  # (m, d)
    test_values: Tensor  # (m,), without noise
    # mean, variance: (m,), the posterior of the test values given the training data
    mean: Tensor
    variance: Tensor
    prior_std: float  # root of the mean prior variance over all points
    jitter: float  # added to the prior variance

    @property
    def sampling(self) -> str:
        """How it was drawn, in words: exactly, with the jitter if any."""
        return "exact" + (f", jitter {self.jitter:.0e}" if self.jitter else "")

    @property
    def floor(self) -> float:
        """sqrt(mean v): no predictor has a smaller root mean squared error over functions here.

        The mean is over all functions that fit this training set. On a single function the RMSE of a predictor may
        lie below the floor, and that of the best one often does: for `constant` it is 0.80 of the floor on average,
        sqrt(2 / pi), as all test points are then off by the same normal number.
        """
        return float(self.variance.mean().sqrt())

    def score(self, predictions: Tensor) -> Score:
        """The score of predictions of the test values, (m,) or (m, J)."""
        gap = (predictions - self.mean) ** 2  # (m,)
        return Score(
            expected=float((gap + self.variance).mean().sqrt()),
            observed=float(((predictions - self.test_values) ** 2).mean().sqrt()),
            excess=float(gap.mean().sqrt()),
        )


@lru_cache(maxsize=4)
def draw(config: TaskConfig, streams: Streams) -> Task:
    """A function, its noisy training set and its posterior on the test set.

    The last few are kept, so that all models on one task share its factorisation; do not write into its tensors.
    """
    return draw_many(config, streams, 1)[0]


def draw_many(config: TaskConfig, streams: Streams, functions: int) -> list[Task]:
    """Several functions on the same points, at the price of one factorisation. The first is that of `draw`.

    They are independent given the points, which they share; for replicates of a study, draw with several seeds.
    """
    needed = sampling.bytes_needed(config.train_points, config.test_points, config.dimensions)
    use = f"a task of {config.points} points in {config.dimensions} dimensions"
    memory.require(needed, use, "draw fewer points or dimensions")
    shape = config.points, config.dimensions
    x = 2 * torch.rand(shape, generator=streams.generator(Stream.INPUTS), dtype=torch.float64) - 1  # (n + m, d)
    n = config.train_points
    try:
        joint = sampling.covariance(priors.kernel(config.prior, config.dimensions), x)  # (n + m, n + m)
        prior_std = float(joint.diagonal().mean().sqrt())
        factor, jitter = sampling.factorise(joint)
        normals = _standard_normals(config.points, streams, Stream.FUNCTION, functions)
        values = [factor @ z for z in normals]  # (n + m,)
        del factor
        noise = _standard_normals(n, streams, Stream.NOISE, functions)
        targets = [f[:n] + config.noise * e for f, e in zip(values, noise, strict=True)]  # (n,)
        means, variance = sampling.posterior(joint, targets, config.noise**2)
    except ArithmeticError as error:
        raise UsageError(
            f"prior {config.prior} at {config.points} points: {error}; choose other parameters or fewer points"
        ) from error
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise UsageError(
            f"prior {config.prior} with noise {config.noise:g}: its covariance cannot be factorised in float64 "
            f"({str(error).splitlines()[0]}); choose other parameters or more noise"
        ) from error
    return [
        Task(config, x[:n], y, x[n:], f[n:], mean, variance, prior_std, jitter)
        for f, y, mean in zip(values, targets, means, strict=True)
    ]


def ridge(task: Task) -> Tensor:
    """Predictions (m,) of the linear fit with intercept, of least |y - Xw|^2 + sigma^2 |w|^2, sigma the noise."""
    X, X_test = (torch.cat([x, x.new_ones(len(x), 1)], 1) for x in (task.inputs, task.test_inputs))  # (., d + 1)
    gram = X.mT @ X + task.config.noise**2 * torch.eye(X.shape[1], dtype=X.dtype)
    weights: Tensor = torch.linalg.solve(gram, X.mT @ task.targets)  # (d + 1,)
    return X_test @ weights


def _standard_normals(count: int, streams: Streams, stream: Stream, functions: int) -> list[Tensor]:
    """(count,) for each function; the first function's do not depend on the number of functions."""
    parts: Sequence[str] = ["", *(f"function {i}" for i in range(1, functions))]
    return [torch.randn(count, generator=streams.generator(stream, part), dtype=torch.float64) for part in parts]


# --- random streams ---------------------------------------------------------------------------------


class Stream(IntEnum):
    """Things that are drawn; the numbers are part of the seed, so they never change."""

    INPUTS = 0
    FUNCTION = 1
    NOISE = 2
    WEIGHTS = 3
    BATCHES = 4
    FEATURES = 5
    SELF_TEST = 6


@dataclass(frozen=True)
class Streams:
    """The streams of one replicate of one task: one generator for each thing drawn, so that runs can be paired.

    Two runs that differ only in recursion depth share the function, the split, the initial weights and the batches,
    because no stream depends on the depth.
    """

    root: int  # the seed the user gave, at least 0
    task: str  # the name of the task
    seed: int  # the number of the replicate

    def generator(self, stream: Stream, part: str = "") -> torch.Generator:
        """A fresh CPU generator, at the start of the stream, or of one part of it that has a name of its own."""
        # a hash of the name, not its index in a list, so that new tasks do not change the old ones
        parts = (zlib.crc32(part.encode()),) if part else ()
        key = (zlib.crc32(self.task.encode()), self.seed, int(stream), *parts)
        sequence = np.random.SeedSequence(self.root, spawn_key=key)
        return torch.Generator().manual_seed(int(sequence.generate_state(1, np.uint64)[0]))

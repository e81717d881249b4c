"""Functions seen point by point: sequences of noisy values, and the posterior before each of them.

One Cholesky factor L of the covariance of a sequence's noisy values, K + sigma^2 I, holds the posterior at every
position. With y = L z,

    y_j = sum_{k < j} L_jk z_k + L_jj z_j,

the sum is the mean of y_j given y_1 ... y_(j-1), and L_jj^2 its variance. The function without noise has the same
mean there and the variance L_jj^2 - sigma^2. GPyTorch gives the covariances, in batches of sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cemverify.console.errors import UsageError
from synthetic.gp import priors
from synthetic.gp.kernels import evaluate
from synthetic.gp.tasks import Stream, Streams, Task, TaskConfig

# Added to the prior variance, relative to its mean: points of a sequence may lie close to each other.
JITTER = 1e-8
# Sequences that are drawn and conditioned at once.
BATCH = 4096


@dataclass(frozen=True)
class ByPoints:
    """How good predictions are after 0, 1, 2, ... points of a function, means over functions."""

    rmse: tuple[float, ...]  # the expected error on the noise-free function, as in `Score`
    # (m - mu)^2 / 2v, v the variance of the next noisy value: the nats that a Gaussian around the prediction m, with
    # the exact variance, needs beyond the exact posterior to code that value
    nats: tuple[float, ...]


def by_points(task: Task, predictions: Tensor) -> ByPoints:
    """The scores of predictions (m, J) at each position."""
    gap = (predictions - task.mean) ** 2  # (m, J)
    rmse = (gap + task.variance).mean(0).sqrt()
    nats = (gap / (2 * (task.variance + task.config.noise**2))).mean(0)
    return ByPoints(tuple(rmse.tolist()), tuple(nats.tolist()))


def draw_sequences(config: TaskConfig, streams: Streams) -> Task:
    """n functions to train on and m to test on, each with J points of its own.

    Returns:
        A task with inputs (n, J, d + 1), each point with its noisy value last, targets (n, J), the noisy values;
        test_inputs (m, J, d + 1), test_values (m, J) without noise, mean and variance (m, J): the posterior of each
        test value given the points before it.
    """
    n, m, J, d = config.train_points, config.test_points, config.sequence, config.dimensions
    kernel = priors.kernel(config.prior, d)
    at, of_f, of_noise = (streams.generator(stream) for stream in (Stream.INPUTS, Stream.FUNCTION, Stream.NOISE))
    x = 2 * torch.rand(n + m, J, d, generator=at, dtype=torch.float64) - 1
    z, e = (torch.randn(n + m, J, generator=g, dtype=torch.float64) for g in (of_f, of_noise))
    values, spread = [], evaluate(kernel, x, x, diag=True).detach()
    jitter = JITTER * float(spread.mean())
    for first in range(0, n + m, BATCH):
        points, normals = x[first : first + BATCH], z[first : first + BATCH]
        covariance = evaluate(kernel, points, points).detach()  # (N, J, J)
        covariance.diagonal(dim1=-2, dim2=-1).add_(jitter)
        factor, info = torch.linalg.cholesky_ex(covariance)
        if bool(info.any()):
            raise UsageError(f"prior {config.prior}: its covariance is not positive definite; choose another one")
        values.append((factor @ normals[..., None])[..., 0])
    f = torch.cat(values)
    y = f + config.noise * e
    mean, variance = conditioned(kernel, x[n:], y[n:], config.noise**2, jitter)
    pairs = torch.cat([x, y[..., None]], -1)
    return Task(config, pairs[:n], y[:n], pairs[n:], f[n:], mean, variance, float(spread.mean().sqrt()), jitter)


def conditioned(
    kernel: Kernel, x: Tensor, y: Tensor, noise_variance: float, jitter: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Mean and variance (N, J) of each function value, given the noisy values y (N, J) at the points before it.

    Args:
        x: (N, J, d), float64. jitter: added to the prior variance, as part of the function.
    """
    with torch.no_grad():
        covariance = evaluate(kernel, x, x)
        covariance.diagonal(dim1=-2, dim2=-1).add_(noise_variance + jitter)
        factor = torch.linalg.cholesky(covariance)  # (N, J, J)
        z = torch.linalg.solve_triangular(factor, y[..., None], upper=False)[..., 0]
        own: Tensor = factor.diagonal(dim1=-2, dim2=-1)  # L_jj
        return y - own * z, own**2 - noise_variance


def kernel_means(kernels: Sequence[tuple[Kernel, float]], chosen_on: Tensor, pairs: Tensor) -> Tensor:
    """Predictions (m, J) of kernel ridge regression on the earlier points, with the best of several kernels.

    Args:
        kernels: with penalties. chosen_on: (n, J, d + 1), the functions on which the squared error chooses one.
        pairs: (m, J, d + 1).
    """

    def means(choice: tuple[Kernel, float], points: Tensor) -> Tensor:
        return conditioned(choice[0], points[..., :-1], points[..., -1], choice[1])[0]

    best: tuple[Kernel, float] = min(
        kernels, key=lambda choice: float((means(choice, chosen_on) - chosen_on[..., -1]).square().mean())
    )
    return means(best, pairs)

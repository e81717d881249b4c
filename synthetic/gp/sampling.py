"""Exact draws and the exact posterior, in float64, by Cholesky factors of dense covariances.

A draw over all points at once is f = L z, L the factor of the prior covariance. (GPyTorch's own sampler turns to a
rank-100 root above 800 points and gets variances wrong.) If rounding makes the covariance lose definiteness, a jitter
is added and recorded, and the oracle knows it: the function then *is* a draw from the prior plus this small white
noise, so its posterior stays exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from synthetic.gp.kernels import evaluate

# Jitters in units of the mean variance, tried in order; larger ones would change the prior.
JITTERS = (0.0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)

# Covariances are built in blocks of this many points, because kernels hold several copies of their results.
BLOCK = 1024


def bytes_needed(n: int, m: int, dimensions: int = 1) -> int:
    """The peak memory of a task with n training and m test points: two joint matrices, or one and the posterior's.

    It includes the points, and what kernels compute from a block of them: copies, sines and cosines.
    """
    joint, train, cross = (n + m) ** 2, n**2, n * m
    points = (3 * (n + m) + 8 * BLOCK) * dimensions
    return 8 * (joint + max(joint, 2 * train + 2 * cross) + 12 * BLOCK**2 + points)


def covariance(kernel: Kernel, x: Tensor) -> Tensor:
    """The dense covariance at the points x: (n, d) -> (n, n), both float64; symmetric to the last bit.

    Raises:
        ArithmeticError: it is not finite, or the kernel gives another shape.
    """
    n = len(x)
    dense = torch.empty(n, n, dtype=torch.float64)
    with torch.no_grad():
        for i in range(0, n, BLOCK):
            for j in range(0, i + 1, BLOCK):
                block = _evaluated(kernel, x[i : i + BLOCK], x[j : j + BLOCK])
                if not bool(torch.isfinite(block).all()):
                    raise ArithmeticError("its covariance is not finite")
                if i == j:
                    block = block.tril() + block.tril(-1).mT  # the upper triangle differs by rounding
                dense[i : i + BLOCK, j : j + BLOCK] = block
                dense[j : j + BLOCK, i : i + BLOCK] = block.mT
    return dense


def _evaluated(kernel: Kernel, rows: Tensor, columns: Tensor) -> Tensor:
    """The covariances of two blocks of points, by a kernel that may be the user's own and may fail in any way."""
    try:
        block = evaluate(kernel, rows, columns)
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        raise ArithmeticError(f"its kernel raised {type(error).__name__}: {error}") from error
    if block.shape != (len(rows), len(columns)):
        raise ArithmeticError(
            f"its kernel returned shape {tuple(block.shape)} for {len(rows)} and {len(columns)} points"
        )
    return block


def factorise(matrix: Tensor) -> tuple[Tensor, float]:
    """The Cholesky factor of matrix + jitter I, and the jitter: the smallest of `JITTERS` for which a factor exists.

    Args:
        matrix: symmetric, (n, n), float64; the jitter is added in place, because at this size copies matter.

    Raises:
        ArithmeticError: none exists.
    """
    diagonal = matrix.diagonal().clone()
    scale = float(diagonal.mean())
    for relative in JITTERS:
        matrix.diagonal().copy_(diagonal + relative * scale)
        factor, info = torch.linalg.cholesky_ex(matrix)
        if int(info) == 0:
            return factor, relative * scale
    raise ArithmeticError(f"its covariance is not positive definite, even with a jitter of {JITTERS[-1]:g}")


def posterior(joint: Tensor, targets: Sequence[Tensor], noise_variance: float) -> tuple[list[Tensor], Tensor]:
    """Means (m,), one for each set of noisy targets (n,) at the first n points, and the variance (m,) of the last m.

    mu = K_*t K_y^-1 y,   v = k_** - diag(K_*t K_y^-1 K_t*),   K_y = K_tt + sigma^2 I (Rasmussen and Williams 2.23-24)

    Args:
        joint: the prior covariance of all points, (n + m, n + m), float64.
    """
    n = len(targets[0])
    noisy = joint[:n, :n].clone()
    noisy.diagonal().add_(noise_variance)
    factor = torch.linalg.cholesky(noisy)  # (n, n)
    del noisy
    whitened = torch.linalg.solve_triangular(factor, joint[:n, n:], upper=False)  # (n, m)
    # one by one, so that a mean does not depend on which others are computed with it
    white_targets = [torch.linalg.solve_triangular(factor, y[:, None], upper=False)[:, 0] for y in targets]  # (n,)
    return [whitened.mT @ w for w in white_targets], joint.diagonal()[n:] - (whitened**2).sum(0)

"""A second opinion: scikit-learn's Gaussian process regression on the same data, with separate covariances.

Covariances of GPyTorch kernels are written a second time, from scikit-learn's kernels and NumPy alone (the periodic
one as an RBF on circles: scikit-learn's ExpSineSquared is not a kernel in several dimensions). A kernel not known
here is evaluated as it is; then only the linear algebra is checked, and `OracleAgreement.independent` is False.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpytorch import kernels as gp
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from synthetic.gp import kernels as own
from synthetic.gp import priors
from synthetic.gp.tasks import Task

Array = np.ndarray[Any, np.dtype[np.float64]]

# Kernels that `covariance` implements a second time.
KERNELS = (
    *(gp.RBFKernel, gp.MaternKernel, gp.RQKernel, gp.ScaleKernel, gp.AdditiveKernel, gp.ProductKernel),
    *(own.Constant, own.Linear, own.Gibbs, own.Mapped, own.Modulated, own.ChangePoint, own.Additive),
)


@dataclass(frozen=True)
class OracleAgreement:
    """How far two oracles differ on one task."""

    mean: float  # the largest difference of posterior means, in units of the prior standard deviation
    variance: float  # the same for posterior variances, in units of the prior variance
    floor: float  # the relative difference of the floors
    independent: bool  # whether the covariance was implemented twice, too

    @property
    def worst(self) -> float:
        """The largest relative difference between the two libraries, over posterior mean, variance and floor."""
        return max(self.mean, self.variance, self.floor)


def second_opinion(task: Task) -> OracleAgreement:
    """Compares the task's oracle with scikit-learn's, on all its points."""
    config = task.config
    kernel = priors.kernel(config.prior, config.dimensions)
    regressor = GaussianProcessRegressor(Adapter(kernel), alpha=config.noise**2 + task.jitter, optimizer=None)
    regressor.fit(task.inputs.numpy(), task.targets.numpy())
    mean, std = regressor.predict(task.test_inputs.numpy(), return_std=True)
    variance = std**2 + task.jitter  # the jitter is part of the function
    floor = float(np.sqrt(variance.mean()))
    return OracleAgreement(
        float(np.abs(mean - task.mean.numpy()).max()) / task.prior_std,
        float(np.abs(variance - task.variance.numpy()).max()) / task.prior_std**2,
        abs(floor - task.floor) / floor,
        is_known(kernel),
    )


class Adapter(sk.Kernel):  # type: ignore[misc]  # scikit-learn has no types
    """The covariances of a GPyTorch kernel as a scikit-learn kernel without hyperparameters."""

    def __init__(self, kernel: gp.Kernel) -> None:
        self.kernel = kernel

    def __call__(self, X: Array, Y: Array | None = None, eval_gradient: bool = False) -> Any:
        """The covariances of X and Y, or of X with itself; the gradient is empty, as there are no hyperparameters."""
        K = covariance(self.kernel, X, X if Y is None else Y)
        return (K, np.empty((*K.shape, 0))) if eval_gradient else K

    def diag(self, X: Array) -> Array:
        """The variances at X, block by block."""
        blocks = (X[i : i + 256] for i in range(0, len(X), 256))
        return np.concatenate([np.diag(covariance(self.kernel, block, block)) for block in blocks])

    def is_stationary(self) -> bool:
        """Whether the prior is known to be stationary; False if that is unknown."""
        return False


def is_known(kernel: gp.Kernel) -> bool:
    """Whether every part of the kernel is implemented here, so that nothing is shared with GPyTorch."""
    return type(kernel) in KERNELS and all(is_known(part) for part in kernel.sub_kernels())


def covariance(kernel: gp.Kernel, X: Array, Y: Array) -> Any:
    """The covariances of a GPyTorch kernel, implemented a second time: (n, d), (m, d) -> (n, m)."""
    if kernel.active_dims is not None:
        X, Y = (points[:, kernel.active_dims.numpy()] for points in (X, Y))
    match type(kernel):  # not a subclass, which may compute anything
        case gp.RBFKernel:
            return sk.RBF(_lengthscale(kernel))(X, Y)
        case gp.MaternKernel:
            return sk.Matern(_lengthscale(kernel), nu=kernel.nu)(X, Y)
        case gp.RQKernel:  # scikit-learn's takes one lengthscale, so the inputs are divided by theirs
            length = _lengthscale(kernel)
            return sk.RationalQuadratic(1.0, alpha=kernel.alpha.item())(X / length, Y / length)
        case own.Linear:
            return sk.DotProduct(sigma_0=0.0)(X, Y)
        case own.Constant:
            return sk.ConstantKernel(1.0)(X, Y)
        case gp.ScaleKernel:
            return kernel.outputscale.item() * covariance(kernel.base_kernel, X, Y)
        case gp.AdditiveKernel:
            return np.sum([covariance(part, X, Y) for part in kernel.kernels], axis=0)
        case gp.ProductKernel:
            return np.prod([covariance(part, X, Y) for part in kernel.kernels], axis=0)
        case own.Mapped:
            return covariance(kernel.base, _field(kernel.mapping, X), _field(kernel.mapping, Y))
        case own.Modulated:
            return np.outer(_field(kernel.amplitude, X), _field(kernel.amplitude, Y)) * covariance(kernel.base, X, Y)
        case own.ChangePoint:
            g, h = _field(kernel.gate, X)[:, None], _field(kernel.gate, Y)[None, :]
            before, after = (covariance(side, X, Y) for side in (kernel.before, kernel.after))
            return (1 - g) * before * (1 - h) + g * after * h
        case own.Additive:
            each = [covariance(kernel.base, X[:, [i]], Y[:, [i]]) for i in range(X.shape[1])]
            return np.mean(each, axis=0)
        case own.Gibbs:  # the product over the inputs of the kernel of one input, which needs no exponent d/2
            here, there = _field(kernel.lengths, X)[:, None], _field(kernel.lengths, Y)[None, :]
            total, product = here**2 + there**2, np.ones((len(X), len(Y)))
            for i in range(X.shape[1]):
                squares = (X[:, i, None] - Y[None, :, i]) ** 2
                product *= np.sqrt(2 * here * there / total) * np.exp(-squares / total)
            return product
    return own.evaluate(kernel, torch.from_numpy(X), torch.from_numpy(Y)).detach().numpy()


def _field(field: own.Field | own.Mapping, X: Array) -> Array:
    values: Array = field(torch.from_numpy(X)).numpy()
    return values


def _lengthscale(kernel: gp.Kernel) -> Array:
    lengthscale: Array = kernel.lengthscale.detach().numpy()[0]
    return lengthscale

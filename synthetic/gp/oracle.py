"""The second opinion: scikit-learn's Gaussian process regression on the same data, with covariances of its own.

Covariances of GPyTorch kernels are written down once more, from scikit-learn's kernels and NumPy alone (the periodic
one as an RBF on circles: scikit-learn's ExpSineSquared is no kernel in more than one dimension). A kernel that is not
known here is evaluated as it is; then only the algebra is checked, and `OracleAgreement.independent` says so.
"""

from __future__ import annotations

from collections.abc import Callable
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
Covariance = Callable[[Array, Array], Array]  # (n, d), (m, d) -> (n, m)

# Kernels that `covariance` writes down once more.
KERNELS = (
    *(gp.RBFKernel, gp.MaternKernel, gp.RQKernel, gp.ScaleKernel, gp.AdditiveKernel, gp.ProductKernel),
    *(own.Constant, own.Linear, own.Gibbs, own.Mapped, own.Modulated, own.ChangePoint, own.Additive),
)


@dataclass(frozen=True)
class OracleAgreement:
    """How far two oracles are apart on one task."""

    mean: float  # the largest difference of posterior means, in units of the prior standard deviation
    variance: float  # that of posterior variances, in units of the prior variance
    floor: float  # the relative difference of the floors
    independent: bool  # whether the covariance was written down twice, too

    @property
    def worst(self) -> float:
        """The largest relative difference between the two libraries, over posterior mean, variance and floor."""
        return max(self.mean, self.variance, self.floor)


def second_opinion(task: Task) -> OracleAgreement:
    """The task's oracle beside scikit-learn's, on all its points."""
    config = task.config
    kernel = priors.kernel(config.prior, config.dimensions)
    theirs = Adapter(covariance(kernel))
    regressor = GaussianProcessRegressor(theirs, alpha=config.noise**2 + task.jitter, optimizer=None)
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
    """A scikit-learn kernel without hyperparameters, from a function that gives covariances."""

    def __init__(self, function: Covariance) -> None:
        self.function = function  # of two sets of points, (n, d) and (m, d)

    def __call__(self, X: Array, Y: Array | None = None, eval_gradient: bool = False) -> Any:
        """The covariances of X and Y, or of X with itself; there is no hyperparameter to take a gradient for."""
        K = self.function(X, X if Y is None else Y)
        return (K, np.empty((*K.shape, 0))) if eval_gradient else K

    def diag(self, X: Array) -> Array:
        """The variances at X, block by block."""
        return np.concatenate([np.diag(self.function(X[i : i + 256], X[i : i + 256])) for i in range(0, len(X), 256)])

    def is_stationary(self) -> bool:
        """Whether the prior is known to be stationary; False where nothing is known."""
        return False


def covariance(kernel: gp.Kernel) -> Covariance:
    """The covariance function of a GPyTorch kernel, written down once more."""
    inside: Covariance = _covariance(kernel)
    if kernel.active_dims is None:
        return inside
    chosen = kernel.active_dims.numpy()
    return lambda X, Y: inside(X[:, chosen], Y[:, chosen])


def is_known(kernel: gp.Kernel) -> bool:
    """Whether every part of the kernel is written down here, so that nothing is shared with GPyTorch."""
    return type(kernel) in KERNELS and all(is_known(part) for part in kernel.sub_kernels())


def _covariance(kernel: gp.Kernel) -> Any:
    match type(kernel):  # and no subclass, which may be anything
        case gp.RBFKernel:
            return sk.RBF(_lengthscale(kernel))
        case gp.MaternKernel:
            return sk.Matern(_lengthscale(kernel), nu=kernel.nu)
        case gp.RQKernel:
            # scikit-learn's takes one lengthscale, so the inputs are divided by theirs
            length, base = _lengthscale(kernel), sk.RationalQuadratic(1.0, alpha=kernel.alpha.item())
            return lambda X, Y: base(X / length, Y / length)
        case own.Linear:
            return sk.DotProduct(sigma_0=0.0)
        case own.Constant:
            return sk.ConstantKernel(1.0)
        case gp.ScaleKernel:
            scale, scaled = kernel.outputscale.item(), covariance(kernel.base_kernel)
            return lambda X, Y: scale * scaled(X, Y)
        case gp.AdditiveKernel:
            terms = [covariance(part) for part in kernel.kernels]
            return lambda X, Y: np.sum([term(X, Y) for term in terms], axis=0)
        case gp.ProductKernel:
            factors = [covariance(part) for part in kernel.kernels]
            return lambda X, Y: np.prod([factor(X, Y) for factor in factors], axis=0)
        case own.Mapped:
            base, mapping = covariance(kernel.base), kernel.mapping
            return lambda X, Y: base(mapping(torch.from_numpy(X)).numpy(), mapping(torch.from_numpy(Y)).numpy())
        case own.Modulated:
            inside, amplitude = covariance(kernel.base), kernel.amplitude
            return lambda X, Y: np.outer(_field(amplitude, X), _field(amplitude, Y)) * inside(X, Y)
        case own.ChangePoint:
            return _change_point(covariance(kernel.before), covariance(kernel.after), kernel.gate)
        case own.Additive:
            one = covariance(kernel.base)
            return lambda X, Y: np.mean([one(X[:, [i]], Y[:, [i]]) for i in range(X.shape[1])], axis=0)
        case own.Gibbs:
            return _gibbs(kernel.lengths)
    return lambda X, Y: own.evaluate(kernel, torch.from_numpy(X), torch.from_numpy(Y)).detach().numpy()


def _change_point(before: Covariance, after: Covariance, gate: own.Field) -> Covariance:
    def function(X: Array, Y: Array) -> Array:
        g, h = _field(gate, X)[:, None], _field(gate, Y)[None, :]
        return (1 - g) * before(X, Y) * (1 - h) + g * after(X, Y) * h

    return function


def _gibbs(lengths: own.Field) -> Covariance:
    """The product over the inputs of Gibbs' kernel of one input, which needs no exponent d/2."""

    def function(X: Array, Y: Array) -> Array:
        here, there = _field(lengths, X)[:, None], _field(lengths, Y)[None, :]
        total, product = here**2 + there**2, np.ones((len(X), len(Y)))
        for i in range(X.shape[1]):
            product *= np.sqrt(2 * here * there / total) * np.exp(-((X[:, i, None] - Y[None, :, i]) ** 2) / total)
        return product

    return function


def _field(field: own.Field, X: Array) -> Array:
    values: Array = field(torch.from_numpy(X)).numpy()
    return values


def _lengthscale(kernel: gp.Kernel) -> Array:
    lengthscale: Array = kernel.lengthscale.detach().numpy()[0]
    return lengthscale

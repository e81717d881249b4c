"""References to compare regressors with: predictors that are not trained by gradient descent.

Each is a function of a task that returns predictions (m,) of its test values. It makes all its choices on the
training points alone. scikit-learn is imported only when one of its models is fitted, because that takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from synthetic.gp import sampling, sequences
from synthetic.gp.priors import kernel
from synthetic.gp.tasks import Task, ridge
from synthetic.studies.recursion.rows import FLOOR

# Hyperparameters are searched with at most this many points; the final fit uses all points.
SEARCH_POINTS = 512

# not the values of any preset: a grid that contains the truth would find the floor by luck
_PENALTIES = (5e-3, 5e-2)
_LENGTHSCALES = (0.75, 1.5, 3.0, 6.0, 12.0)
_HELD_OUT = 0.125


def kernel_ridge(task: Task) -> Tensor:
    """Kernel ridge regression with an RBF kernel, its penalty and lengthscale chosen on held-out points."""
    from sklearn.kernel_ridge import KernelRidge

    x, y = task.inputs.numpy(), task.targets.numpy()
    n = len(y) - max(1, round(_HELD_OUT * len(y)))
    few = min(n, SEARCH_POINTS)

    def error(penalty: float, lengthscale: float) -> float:
        model = KernelRidge(alpha=penalty, kernel="rbf", gamma=0.5 / lengthscale**2).fit(x[:few], y[:few])
        return float(np.mean((model.predict(x[n:]) - y[n:]) ** 2))

    penalty, lengthscale = min(
        ((p, length) for p in _PENALTIES for length in _LENGTHSCALES), key=lambda chosen: error(*chosen)
    )
    model = KernelRidge(alpha=penalty, kernel="rbf", gamma=0.5 / lengthscale**2).fit(x, y)
    return torch.from_numpy(model.predict(task.test_inputs.numpy()))


def boosting(task: Task) -> Tensor:
    """scikit-learn's histogram gradient boosting, stopped early on held-out points."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(
        max_iter=1000, learning_rate=0.1, early_stopping=True, validation_fraction=_HELD_OUT, random_state=0
    )
    model.fit(task.inputs.numpy(), task.targets.numpy())
    return torch.from_numpy(model.predict(task.test_inputs.numpy()))


def fitted_gp(task: Task) -> Tensor:
    """A Gaussian process that fits amplitude, lengthscale and noise; its kernel is an RBF, whatever the prior."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    x, y = task.inputs.numpy(), task.targets.numpy()
    kernel = ConstantKernel(1.0) * RBF(2.0, (1e-1, 1e2)) + WhiteKernel(1e-2, (1e-6, 1e1))
    searched = GaussianProcessRegressor(kernel, alpha=0.0).fit(x[:SEARCH_POINTS], y[:SEARCH_POINTS])
    amplitude, noise = searched.kernel_.k1, searched.kernel_.k2.noise_level
    points = np.concatenate([x, task.test_inputs.numpy()])
    means, _ = sampling.posterior(torch.from_numpy(amplitude(points)), [task.targets], noise)
    return means[0]


def kernel_ridge_before(task: Task) -> Tensor:
    """Kernel ridge regression on the earlier points, its penalty and lengthscale chosen on training functions."""
    d = task.config.dimensions
    choices = [(kernel(f"rbf(lengthscale={length})", d), p) for length in (0.35, *_LENGTHSCALES) for p in _PENALTIES]
    return sequences.kernel_means(choices, task.inputs[:SEARCH_POINTS], task.test_inputs)


def ridge_before(task: Task) -> Tensor:
    """The linear fit with intercept to the earlier points, as `ridge`: its kernel is 1 + x . x'."""
    linear = kernel("linear + constant", task.config.dimensions)
    return sequences.kernel_means([(linear, task.config.noise**2)], task.inputs[:1], task.test_inputs)


# In the order in which tables show them.
REFERENCES: Mapping[str, Callable[[Task], Tensor]] = {
    # knows the prior, and has seen no data
    "prior mean": lambda task: torch.zeros_like(task.mean),
    "ridge": ridge,
    "gradient boosting": boosting,
    "kernel ridge": kernel_ridge,
    "GP, fitted": fitted_gp,
    FLOOR: lambda task: task.mean,
}
OF_SEQUENCES: Mapping[str, Callable[[Task], Tensor]] = {
    "prior mean": REFERENCES["prior mean"],
    "ridge": ridge_before,
    "kernel ridge": kernel_ridge_before,
    FLOOR: REFERENCES[FLOOR],
}

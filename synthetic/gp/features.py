"""Tasks of finite rank: functions that are weighted sums of random features, for any number of points.

    f(x) = m^(-1/2) sum_i w_i phi_i(x),   w ~ N(0, I),   E phi_i(x) phi_i(x') = k(x, x')

With the features drawn, f is a Gaussian process of rank m whose covariance is near k (0.6 / sqrt(m) for RBF and
Matern), and Bayesian linear regression in the same features is its exact posterior. Features are computed in blocks
of points and never stored whole.

Random features compose as the kernels do: of a sum they are sums, of a product products, of a map composed with it.
Stationary kernels are the Fourier transforms of a distribution of frequencies (Rahimi and Recht 2007).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from gpytorch import kernels as gp
from torch import Tensor

from cemverify.cem.torch_internals import standard_gamma
from cemverify.console.errors import UsageError
from synthetic.gp import kernels as own

Features = Callable[[Tensor], Tensor]  # (n, d) -> (n, m), each column one phi_i, not yet divided by sqrt(m)

# Points whose features are computed at a time.
BLOCK = 4096


def bytes_needed(count: int, points: int, dimensions: int) -> int:
    """Peak memory of a task with that many features and points: two Gram matrices, a few blocks, and the points."""
    return 8 * (2 * count**2 + 6 * BLOCK * count + points * (2 * dimensions + 6) + 4 * count * dimensions)


def draw_features(kernel: gp.Kernel, count: int, dimensions: int, generator: torch.Generator) -> Features:
    """A number of random features of a kernel over `dimensions` inputs."""
    if kernel.active_dims is not None:
        chosen = kernel.active_dims
        inside = _draw(kernel, count, len(chosen), generator)
        return lambda x: inside(x[:, chosen])
    return _draw(kernel, count, dimensions, generator)


def combine(phi: Features, weights: Tensor, x: Tensor) -> Tensor:
    """The functions with weights (m, k) at the points x (n, d): (n, k)."""
    # one by one, so that a function does not depend on the company it is computed in
    blocks = [torch.stack([block @ w for w in weights.mT], dim=1) for block in _blocks(phi, x)]
    return torch.cat(blocks) / math.sqrt(len(weights))


def variances(phi: Features, x: Tensor) -> Tensor:
    """The prior variances (n,) at the points x (n, d)."""
    return torch.cat([(block**2).mean(1) for block in _blocks(phi, x)])


def posterior(
    phi: Features, count: int, inputs: Tensor, targets: Tensor, test_inputs: Tensor, noise_variance: float
) -> tuple[Tensor, Tensor]:
    """Means (m, k) and variance (m,) at the test inputs (m, d), given noisy targets (n, k) at the inputs (n, d).

    A = Phi^T Phi / sigma^2 + I,   mu = phi_*^T A^-1 Phi^T y / sigma^2,   v = phi_*^T A^-1 phi_*  (Rasmussen and
    Williams 2.11), Phi (n, count) already divided by sqrt(count)
    """
    root = math.sqrt(count)
    A = torch.eye(count, dtype=torch.float64)
    projected = torch.zeros(count, targets.shape[1], dtype=torch.float64)  # Phi^T y / sigma^2
    for block, y in zip(_blocks(phi, inputs), torch.split(targets, BLOCK), strict=True):
        Phi = block / root
        A.addmm_(Phi.mT, Phi, alpha=1 / noise_variance)
        for i in range(targets.shape[1]):
            projected[:, i] += Phi.mT @ y[:, i] / noise_variance
    factor = torch.linalg.cholesky(A)
    del A
    weights = [torch.cholesky_solve(column[:, None], factor)[:, 0] for column in projected.mT]
    means, variance = [], []
    for block in _blocks(phi, test_inputs):
        Phi = block / root
        means.append(torch.stack([Phi @ w for w in weights], dim=1))
        variance.append((torch.linalg.solve_triangular(factor, Phi.mT, upper=False) ** 2).sum(0))
    return torch.cat(means), torch.cat(variance)


def _blocks(phi: Features, x: Tensor) -> Iterator[Tensor]:
    with torch.no_grad():
        for points in torch.split(x, BLOCK):
            yield phi(points)


# --- one kernel after another -------------------------------------------------------------------


def _draw(kernel: gp.Kernel, count: int, d: int, generator: torch.Generator) -> Features:
    """Random features of a kernel, where its own choice of inputs has been applied already."""

    def inside(part: gp.Kernel, inputs: int = d) -> Features:
        return draw_features(part, count, inputs, generator)

    match type(kernel):  # and no subclass, which may be anything
        case gp.RBFKernel | gp.MaternKernel | gp.RQKernel:
            return _waves(kernel, count, d, generator)
        case own.Constant:
            signs = 2 * torch.randint(2, (count,), generator=generator).double() - 1
            return lambda x: signs.expand(len(x), count)
        case own.Linear:
            directions = torch.randn(d, count, generator=generator, dtype=torch.float64)
            return lambda x: x @ directions
        case gp.ScaleKernel:
            scale, base = math.sqrt(kernel.outputscale.item()), inside(kernel.base_kernel)
            return lambda x: scale * base(x)
        case gp.AdditiveKernel:
            terms = [inside(part) for part in kernel.kernels]
            return lambda x: torch.stack([term(x) for term in terms]).sum(0)  # independent, of mean 0
        case gp.ProductKernel:
            factors = [inside(part) for part in kernel.kernels]
            return lambda x: torch.stack([factor(x) for factor in factors]).prod(0)
        case own.Mapped:
            width = kernel.mapping(torch.zeros(1, d, dtype=torch.float64)).shape[-1]
            base, mapping = inside(kernel.base, width), kernel.mapping
            return lambda x: base(mapping(x))
        case own.Modulated:
            base, amplitude = inside(kernel.base), kernel.amplitude
            return lambda x: amplitude(x)[:, None] * base(x)
        case own.ChangePoint:
            before, after, gate = inside(kernel.before), inside(kernel.after), kernel.gate
            return lambda x: (1 - gate(x))[:, None] * before(x) + gate(x)[:, None] * after(x)
        case own.Additive:
            return _of_one_input(kernel.base, count, d, generator)
    raise UsageError(
        f"random features are not available for a {type(kernel).__name__} kernel; "
        f"draw an exact task (features=0) with fewer points"
    )


def _waves(kernel: gp.Kernel, count: int, d: int, generator: torch.Generator) -> Features:
    """sqrt(2) cos(omega x + b), b uniform, omega from the spectral density: normal, Student or mixed by a gamma."""

    def gamma(shape: float) -> Tensor:
        return standard_gamma(torch.full((count,), shape, dtype=torch.float64), generator)

    normal = torch.randn(d, count, generator=generator, dtype=torch.float64)
    if isinstance(kernel, gp.MaternKernel):
        normal = normal / (gamma(kernel.nu) / kernel.nu).sqrt()  # Student with 2 nu degrees of freedom
    elif isinstance(kernel, gp.RQKernel):
        alpha = kernel.alpha.item()
        normal = normal * (gamma(alpha) / alpha).sqrt()
    lengthscale = kernel.lengthscale.detach()[0]  # (1,) or (d,)
    frequencies = normal / lengthscale[:, None]
    phases = 2 * math.pi * torch.rand(count, generator=generator, dtype=torch.float64)
    return lambda x: math.sqrt(2) * torch.cos(x @ frequencies + phases)


def _of_one_input(base: gp.Kernel, count: int, d: int, generator: torch.Generator) -> Features:
    """Each feature depends on one randomly drawn input, which gives the mean over inputs in expectation."""
    seen = torch.randint(d, (count,), generator=generator)
    parts = [(seen == i).nonzero()[:, 0] for i in range(d)]
    drawn = [draw_features(base, len(part), 1, generator) for part in parts]

    def phi(x: Tensor) -> Tensor:
        features = x.new_empty(len(x), count)
        for i, part in enumerate(parts):
            features[:, part] = drawn[i](x[:, i : i + 1])
        return features

    return phi

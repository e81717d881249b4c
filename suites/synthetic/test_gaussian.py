"""The tasks: exact draws, an exact posterior, and a floor that nothing gets below."""

from __future__ import annotations

import math
from collections.abc import Callable

import gpytorch
import pytest
import torch
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from synthetic.errors import UsageError
from synthetic.priors import PRIORS, circle, covariance, warp
from synthetic.streams import Stream, Streams
from synthetic.tasks import JITTERS, TaskConfig, draw, factorise, posterior, ridge

# Two tests on one draw, each at half of this level; the seeds are fixed, so a pass stays a pass.
FALSE_ALARM = 1e-6


def points(n: int, d: int, seed: int = 0) -> Tensor:
    """Uniform in [-1, 1]^d: (n, d)."""
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(n, d, generator=generator, dtype=torch.float64) - 1


# scikit-learn's form of each prior: its kernel, and the inputs on which it is that kernel
SECOND_OPINION: dict[str, tuple[Callable[[float], sk.Kernel], Callable[[Tensor], Tensor]]] = {
    "rbf": (sk.RBF, lambda x: x),
    "matern12": (lambda length: sk.Matern(length, nu=0.5), lambda x: x),
    "matern32": (lambda length: sk.Matern(length, nu=1.5), lambda x: x),
    "matern52": (lambda length: sk.Matern(length, nu=2.5), lambda x: x),
    "rational-quadratic": (lambda length: sk.RationalQuadratic(length, alpha=1.0), lambda x: x),
    # GPyTorch's length is not squared; scikit-learn's own ExpSineSquared is no kernel for d > 1
    "periodic": (lambda length: sk.RBF(math.sqrt(length)), circle),
    "warped": (sk.RBF, warp),
}


def whiteness(draws: Tensor, exact: Tensor) -> float:
    """The smaller p-value, doubled, of two tests that draws (s, n) come from N(0, exact).

    Whitened by the exact factor they are s n standard normals: the sum of their squares is chi-squared, and
    their distribution function is the normal one (Kolmogorov-Smirnov).
    """
    factor = torch.linalg.cholesky(exact)
    white = torch.linalg.solve_triangular(factor, draws.mT, upper=False).flatten().numpy()
    squares = float((white**2).sum())
    tail = min(stats.chi2.cdf(squares, white.size), stats.chi2.sf(squares, white.size))
    return float(min(1.0, 2 * min(2 * tail, stats.kstest(white, "norm").pvalue)))


def smallest_eigenvalue(matrix: Tensor) -> float:
    return float(torch.linalg.eigvalsh(matrix)[0])


def rounding(n: int) -> float:
    """How far rounding moves eigenvalues of an n x n matrix of entries up to 1, each wrong by a few ulp."""
    return 8 * n * torch.finfo(torch.float64).eps


def test_every_prior_has_a_second_opinion() -> None:
    assert SECOND_OPINION.keys() == PRIORS.keys()


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("dimensions", [1, 2, 10])
def test_every_prior_is_positive_semi_definite_with_variance_one(name: str, dimensions: int) -> None:
    n = 300
    matrix = covariance(name, PRIORS[name].lengthscale, points(n, dimensions))
    assert smallest_eigenvalue(matrix) >= -rounding(n)
    torch.testing.assert_close(matrix.diagonal(), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-7)


def test_the_eigenvalue_test_finds_a_kernel_that_is_none_in_ten_dimensions() -> None:
    n = 300
    matrix = torch.as_tensor(sk.ExpSineSquared(length_scale=1.0, periodicity=2.0)(points(n, 10).numpy()))
    assert smallest_eigenvalue(matrix) < -rounding(n)


def test_the_periodic_prior_is_gpytorchs_and_repeats_after_two() -> None:
    x = points(50, 10)
    kernel = gpytorch.kernels.PeriodicKernel().double()
    kernel.period_length, kernel.lengthscale = 2.0, 10.0
    with torch.no_grad():
        theirs = kernel(x).to_dense()
    torch.testing.assert_close(covariance("periodic", 10.0, x), theirs, rtol=0, atol=rounding(1))
    again = covariance("periodic", 10.0, torch.cat([x[:1], x[:1] + 2.0]))
    assert float(again[0, 1]) == pytest.approx(1.0, abs=rounding(1))


def test_the_warped_prior_is_not_stationary_and_the_rbf_is() -> None:
    x = torch.zeros(4, 10, dtype=torch.float64)
    x[:, 0] = torch.tensor([-0.25, 0.25, 0.5, 1.0])  # two pairs, the same distance apart
    near, far = {}, {}
    for name in ("rbf", "warped"):
        matrix = covariance(name, 2.0, x)
        near[name], far[name] = float(matrix[0, 1]), float(matrix[2, 3])
    assert near["rbf"] == pytest.approx(far["rbf"], rel=1e-12)
    assert near["warped"] < far["warped"] - 0.01


@pytest.mark.parametrize("name", PRIORS)
def test_the_posterior_agrees_with_scikit_learn(name: str) -> None:
    n, noise = 200, 0.1
    x = points(n + 100, 10)
    generator = torch.Generator().manual_seed(1)
    targets = torch.randn(n, generator=generator, dtype=torch.float64)
    mean, variance = posterior(covariance(name, PRIORS[name].lengthscale, x), targets, noise**2)
    kernel, embed = SECOND_OPINION[name]
    embedded = embed(x).numpy()
    other = GaussianProcessRegressor(kernel(PRIORS[name].lengthscale), alpha=noise**2, optimizer=None)
    other_mean, other_std = other.fit(embedded[:n], targets.numpy()).predict(embedded[n:], return_std=True)
    torch.testing.assert_close(mean, torch.as_tensor(other_mean), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(variance, torch.as_tensor(other_std**2), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_our_draws_are_from_the_prior_and_gpytorchs_at_1500_points_are_not() -> None:
    n, draws = 1500, 4
    x = points(n, 10)
    exact = covariance("rbf", 2.0, x)
    factor, jitter = factorise(exact)
    assert jitter == 0.0
    standard = torch.randn(n, draws, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert whiteness((factor @ standard).mT, exact) > FALSE_ALARM
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 2.0
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(2)  # the only seed that GPyTorch's sampler takes
        theirs = gpytorch.distributions.MultivariateNormal(x.new_zeros(n), kernel(x)).sample(torch.Size([draws]))
    assert whiteness(theirs, exact) < FALSE_ALARM


@pytest.mark.slow
def test_a_tasks_function_is_a_draw_from_its_prior_over_train_and_test_together() -> None:
    config = TaskConfig("matern52", 2.0, train_points=1000, test_points=500, noise=0.3)
    task = draw(config, Streams(0, "matern52", 0))
    joint = covariance("matern52", 2.0, torch.cat([task.inputs, task.test_inputs]))
    noise = torch.zeros(1500, dtype=torch.float64)
    noise[:1000] = 0.09
    values = torch.cat([task.targets, task.test_values])
    assert whiteness(values[None], joint + noise.diag()) > FALSE_ALARM
    assert whiteness(1.1 * values[None], joint + noise.diag()) < FALSE_ALARM  # it would see an amplitude 10 % off


def test_a_singular_covariance_gets_the_smallest_jitter_that_helps_and_it_is_reported() -> None:
    matrix = torch.ones(50, 50, dtype=torch.float64)  # rank one
    factor, jitter = factorise(matrix)
    assert jitter in JITTERS[1:]
    expected = torch.ones(50, 50, dtype=torch.float64) + jitter * torch.eye(50, dtype=torch.float64)
    torch.testing.assert_close(factor @ factor.mT, expected, rtol=0, atol=1e-14)
    assert torch.equal(matrix, expected)  # the oracle sees what was sampled


def test_a_definite_covariance_gets_no_jitter() -> None:
    assert factorise(torch.eye(5, dtype=torch.float64))[1] == 0.0


def test_the_floor_of_a_task_with_jitter_knows_of_it() -> None:
    # one input dimension and a long lengthscale: in float64 the prior has rank 10 or so
    config = TaskConfig("rbf", 2.0, dimensions=1, train_points=300, test_points=100)
    task = draw(config, Streams(0, "rbf", 0))
    assert task.jitter > 0
    assert bool((task.variance >= task.jitter).all())


def test_a_covariance_that_is_not_one_is_refused() -> None:
    with pytest.raises(ArithmeticError, match="not positive definite, even with a jitter of 1e-06"):
        factorise(torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64))
    with pytest.raises(ArithmeticError, match="not finite"):
        factorise(torch.full((2, 2), math.nan, dtype=torch.float64))


def test_a_task_that_cannot_be_sampled_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synthetic.tasks.covariance", lambda *_: 2 - torch.eye(3, dtype=torch.float64))
    with pytest.raises(UsageError, match=r"prior rbf with lengthscale 2 at 3 points: .* choose another lengthscale"):
        draw(TaskConfig("rbf", 2.0, train_points=2, test_points=1), Streams(0, "rbf", 0))


@pytest.mark.parametrize("name", PRIORS)
def test_no_predictor_scores_below_the_floor_and_the_posterior_mean_attains_it(name: str) -> None:
    config = TaskConfig(name, PRIORS[name].lengthscale, train_points=300, test_points=200)
    task = draw(config, Streams(0, name, 0))
    assert task.score(task.mean).expected == pytest.approx(task.floor, rel=1e-12)
    assert task.score(task.mean).excess == 0.0
    for predictions in (ridge(task, 0.01), torch.zeros_like(task.mean), task.test_values):
        assert task.score(predictions).expected > task.floor


def test_the_expected_score_is_the_mean_of_the_observed_one() -> None:
    # resample the test values from the posterior: their mean squared error is what `expected` says, squared
    config = TaskConfig("rbf", 2.0, train_points=200, test_points=100)
    task = draw(config, Streams(0, "rbf", 0))
    predictions = ridge(task, 0.01)
    generator = torch.Generator().manual_seed(3)
    draws = 20_000
    noise = torch.randn(draws, 100, generator=generator, dtype=torch.float64) * task.variance.sqrt()
    squared = (predictions - task.mean - noise) ** 2  # (draws, m)
    error = squared.mean(1)
    five_sigma = 5 * float(error.std()) / math.sqrt(draws)
    assert float(error.mean()) == pytest.approx(task.score(predictions).expected ** 2, abs=five_sigma)


def test_streams_are_independent_of_each_other_and_repeatable() -> None:
    def first(root: int, task: str, seed: int, stream: Stream) -> float:
        return float(torch.rand((), generator=Streams(root, task, seed).generator(stream), dtype=torch.float64))

    keys = [(r, t, s, k) for r in (0, 1) for t in ("rbf", "warped") for s in (0, 1) for k in Stream]
    assert len({first(*key) for key in keys}) == len(keys)
    assert first(0, "rbf", 0, Stream.NOISE) == first(0, "rbf", 0, Stream.NOISE)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prior": "rfb"}, "no prior 'rfb'; there are: rbf, matern12"),
        ({"noise": -0.1}, "the noise must be a positive number, not -0.1"),
        ({"noise": math.nan}, "the noise must be a positive number, not nan"),
        ({"lengthscale": 0.0}, "the lengthscale must be a positive number, not 0.0"),
        ({"train_points": 1}, "train points must be at least 2, not 1"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        TaskConfig(**{"prior": "rbf", "lengthscale": 2.0, **change})  # type: ignore[arg-type]

"""The tasks: draws from the prior, an exact posterior, and a floor under the mean squared error over functions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import scipy
import torch
from torch import Tensor

from cemverify.console.errors import UsageError
from suites.cem.helpers import randn
from suites.synthetic.test_priors import COMPOSED, OWN, SINGLE, dense, points
from synthetic.examine import AGREEMENT
from synthetic.gp.difficulty import NEGATIVE_CONTROLS, admit, assess, is_negative_control
from synthetic.gp.distribution import FALSE_ALARM, DrawsTest, check_draws, pairs, whiteness, with_noise
from synthetic.gp.sampling import JITTERS, factorise
from synthetic.gp.tasks import Stream, Streams, Task, TaskConfig, draw_many, ridge

SMALL = {"train_points": 200, "test_points": 100}


def drawn(text: str, functions: int = 1, **sizes: int) -> list[Task]:
    config = TaskConfig(text, **{**SMALL, **sizes})
    return draw_many(config, Streams(0, config.prior, 0), functions)


def judged(draws: Tensor, exact: Tensor) -> DrawsTest:
    return check_draws(draws, exact, torch.Generator().manual_seed(3))


# --- draws come from the prior ------------------------------------------------------------------


def test_right_draws_are_rejected_no_more_often_than_stated() -> None:
    n, draws, runs, level = 30, 3, 200, 0.05
    exact = dense("rbf", points(n, 10))
    factor = torch.linalg.cholesky(exact)
    for test in (whiteness, pairs):
        p_values = [test((factor @ randn(n, draws, seed=s)).mT, exact) for s in range(runs)]
        rejected = sum(p < level for p in p_values)
        assert scipy.stats.binomtest(rejected, runs, level, alternative="greater").pvalue > 1e-3


def test_pairs_see_a_wrong_covariance_that_leaves_every_variance_right() -> None:
    exact = dense("matern12", points(100, 10))
    white = randn(2000, 100, seed=2)  # variances 1, covariances 0
    assert pairs((torch.linalg.cholesky(exact) @ white.mT).mT, exact) > FALSE_ALARM
    assert pairs(white, exact) < FALSE_ALARM


@pytest.mark.slow
def test_a_tasks_function_is_a_draw_from_its_prior_over_train_and_test_together() -> None:
    config = TaskConfig("matern52", train_points=700, test_points=300, noise=0.3)
    tasks = draw_many(config, Streams(0, config.prior, 0), 4)
    joint = dense(config.prior, torch.cat([tasks[0].inputs, tasks[0].test_inputs]))
    joint.diagonal()[:700] += 0.09
    assert judged(torch.stack([torch.cat([task.targets, task.test_values]) for task in tasks]), joint).accepted


def test_noise_for_a_test_is_added_to_draws_and_covariance_alike() -> None:
    n = 400
    draws, exact = with_noise(
        torch.zeros(5, n, dtype=torch.float64), torch.zeros(n, n).double() + 1, torch.Generator()
    )
    assert float(draws.var()) == pytest.approx(float((exact.diagonal() - 1).mean()), rel=0.15)


# --- jitter -------------------------------------------------------------------------------------


def test_a_singular_covariance_alone_gets_the_smallest_jitter_that_helps_and_it_is_reported() -> None:
    assert factorise(torch.eye(5, dtype=torch.float64))[1] == 0.0
    matrix = torch.ones(50, 50, dtype=torch.float64)  # rank one
    factor, jitter = factorise(matrix)
    assert jitter in JITTERS[1:]
    expected = torch.ones(50, 50, dtype=torch.float64) + jitter * torch.eye(50, dtype=torch.float64)
    torch.testing.assert_close(factor @ factor.mT, expected, rtol=0, atol=1e-14)
    assert torch.equal(matrix, expected)  # the oracle sees the sampled covariance


def test_the_floor_of_a_task_with_jitter_knows_of_it_and_the_task_says_so() -> None:
    # one input dimension and a long lengthscale: in float64 the prior has rank of about 10
    task = drawn("rbf", dimensions=1, train_points=300)[0]
    assert task.jitter > 0
    assert f"jitter {task.jitter:.0e}" in task.sampling
    assert bool((task.variance >= task.jitter).all())


# --- the oracle ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*SINGLE, *COMPOSED, "rational-quadratic(lengthscale=[1,2,3])"])
def test_the_oracle_agrees_with_scikit_learn(text: str) -> None:
    from synthetic.gp.oracle import second_opinion

    agreement = second_opinion(drawn(text, dimensions=3)[0])
    assert agreement.worst <= AGREEMENT
    assert agreement.independent == (OWN not in text)


def test_the_second_opinion_would_notice_a_wrong_oracle() -> None:
    from synthetic.gp.oracle import second_opinion

    task = drawn("matern52")[0]
    for wrong in (
        replace(task, mean=task.mean + 2e-6),
        replace(task, variance=task.variance + 2e-6),
        replace(task, config=replace(task.config, prior="matern52(lengthscale=2.0001)")),
        replace(task, jitter=1e-3),
    ):
        assert second_opinion(wrong).worst > AGREEMENT


@pytest.mark.parametrize("text", ["rbf", "periodic", "linear", "modulated"])
def test_no_predictor_scores_below_the_floor_and_the_posterior_mean_attains_it(text: str) -> None:
    task = drawn(text)[0]
    assert task.score(task.mean).expected == pytest.approx(task.floor, rel=1e-12)
    assert task.score(task.mean).excess == 0.0
    for predictions in (ridge(task), torch.zeros_like(task.mean), task.test_values):
        assert task.score(predictions).expected > task.floor


def test_the_expected_score_is_the_mean_of_the_observed_one() -> None:
    # resample the test values from the posterior: the mean squared error must be the square of `expected`
    task = drawn("rbf")[0]
    predictions = ridge(task)
    draws = 20_000
    squared = (predictions - task.mean - randn(draws, 100, seed=3) * task.variance.sqrt()) ** 2  # (draws, m)
    error = squared.mean(1)
    five_sigma = 5 * float(error.std()) / math.sqrt(draws)
    assert float(error.mean()) == pytest.approx(task.score(predictions).expected ** 2, abs=five_sigma)


# --- many functions ----------------------------------------------------------------


def test_functions_on_the_same_points_differ_and_the_first_is_the_one_drawn_alone() -> None:
    tasks, alone = drawn("rbf", functions=3), drawn("rbf")[0]
    for name in ("inputs", "targets", "test_inputs", "test_values", "mean", "variance"):
        assert torch.equal(getattr(tasks[0], name), getattr(alone, name)), name
    assert torch.equal(tasks[1].inputs, alone.inputs)
    correlation = torch.corrcoef(torch.stack([task.targets for task in tasks]))
    assert float((correlation - torch.eye(3)).abs().max()) < 0.5


# --- difficulty ---------------------------------------------------------------------------------


def test_declared_negative_controls_are_admitted_though_there_is_little_to_learn() -> None:
    for text in NEGATIVE_CONTROLS:
        task = drawn(text)[0]
        assert is_negative_control(task.config)
        assert assess(task).objection is not None
        admit(task.config, assess(task))


# --- streams and refusals -----------------------------------------------------------------------


def test_streams_are_independent_of_each_other_and_repeatable() -> None:
    def first(root: int, task: str, seed: int, stream: Stream, part: str) -> float:
        generator = Streams(root, task, seed).generator(stream, part)
        return float(torch.rand((), generator=generator, dtype=torch.float64))

    keys = [
        (r, t, s, k, p) for r in (0, 1) for t in ("rbf", "warped") for s in (0, 1) for k in Stream for p in ("", "V")
    ]
    assert len({first(*key) for key in keys}) == len(keys)
    assert first(0, "rbf", 0, Stream.NOISE, "") == first(0, "rbf", 0, Stream.NOISE, "")


def test_a_task_that_makes_no_sense_is_refused() -> None:
    for change in ({"noise": math.nan}, {"noise": -1.0}, {"train_points": 1}, {"features": 10}):
        with pytest.raises(UsageError, match=f"{next(iter(change)).replace('_', ' ')} must be"):
            TaskConfig(**{"prior": "rbf", **change})  # type: ignore[arg-type]

"""Functions from context: an exact floor at every position, models that see only the past, and a fair comparison."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gpytorch
import pytest
import torch
from scipy import stats
from torch import Tensor

from cemverify.results.statistics import compare
from cemverify.runs.plain import plain
from synthetic.gp import priors
from synthetic.gp.sequences import by_points, draw_sequences
from synthetic.gp.tasks import Stream, Streams, Task, TaskConfig
from synthetic.studies.engine.conduct import WantedCells, follow
from synthetic.studies.recursion import findings
from synthetic.studies.recursion.blocks import BlockSpec, InContext
from synthetic.studies.recursion.cells import compute_model, compute_task
from synthetic.studies.recursion.contenders import BLOCK, OF_SEQUENCES, Contender, cost_of, stack
from synthetic.studies.recursion.ensembles import Recipe, fit
from synthetic.studies.recursion.presets import PRESETS
from synthetic.studies.recursion.references import OF_SEQUENCES as REFERENCES

CONFIG = TaskConfig("rbf(lengthscale=0.5)", 1, 256, 512, 0.1, sequence=16)


def streams(seed: int) -> Streams:
    return Streams(0, "context", seed)


@pytest.fixture(scope="module")
def task() -> Task:
    return draw_sequences(CONFIG, streams(0))


# --- the floor --------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", ["rbf(lengthscale=0.5)", "matern52(lengthscale=1)", "warped(rbf(lengthscale=1))"])
def test_the_floor_is_gpytorchs_own_posterior_at_drawn_positions(prior: str) -> None:
    config = TaskConfig(prior, 2, 2, 40, 0.1, sequence=24)
    drawn = draw_sequences(config, streams(1))
    positions = torch.randint(1, config.sequence, (config.test_points,), generator=torch.Generator().manual_seed(0))
    for i, j in enumerate(positions.tolist()):
        x, y = drawn.test_inputs[i, :, :-1], drawn.test_inputs[i, :, -1]
        known = ExactGP(x[:j], y[:j], priors.kernel(prior, 2), config.noise**2 + drawn.jitter).eval()
        with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
            theirs = known(x[j : j + 1])
        assert abs(float(theirs.mean) - float(drawn.mean[i, j])) < 1e-10
        assert abs(float(theirs.variance) + drawn.jitter - float(drawn.variance[i, j])) < 1e-10


class ExactGP(gpytorch.models.ExactGP):  # type: ignore[misc]  # GPyTorch has no types
    """A Gaussian process with mean 0 that knows its kernel and its noise."""

    def __init__(self, x: Tensor, y: Tensor, kernel: Any, noise_variance: float) -> None:
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        super().__init__(x, y, likelihood)
        likelihood.noise = torch.tensor(noise_variance, dtype=torch.float64)  # a float would be cut to 24 bits
        self.kernel = kernel

    def forward(self, x: Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(x.new_zeros(len(x)), self.kernel(x))


def test_no_contender_and_no_reference_is_below_the_floor_in_200_pairs_of_function_and_position(task: Task) -> None:
    g = torch.Generator().manual_seed(0)
    functions, positions = torch.randperm(512, generator=g)[:200], torch.randint(16, (200,), generator=g)

    def below(predictions: Tensor) -> tuple[float, float]:
        """How far the mean squared error is above the floor's, and half of the 95 % interval."""
        gap = ((predictions - task.test_values) ** 2 - task.variance)[functions, positions]
        return float(gap.mean()), float(stats.t.ppf(0.975, 199) * gap.std() / math.sqrt(200))

    optimum, half = below(task.mean)
    assert abs(optimum) < half  # the exact posterior reaches exactly the floor
    for name, predict in REFERENCES.items():
        mean, half = below(predict(task))
        assert mean > -half, name
    contenders = [c for family in OF_SEQUENCES.values() for c in family.contenders((1, 2))]
    assert len(contenders) == 9
    for contender in contenders:
        mean, half = below(predicted(contender, task))
        assert mean > -half, contender.name


def predicted(contender: Contender, task: Task) -> Tensor:
    """Test predictions (m, J) after a short training."""
    model = stack(contender.spec, 2, [streams(0)])
    recipe = Recipe(20, 32, 1e-2, check_every=20)
    fit(model, task.inputs[None].float(), task.targets[None].float(), recipe, [streams(0).generator(Stream.BATCHES)])
    with torch.no_grad():
        predictions: Tensor = model.double()(task.test_inputs[None])[0]
    return predictions


def test_a_planted_difference_is_found_and_equal_contenders_are_equivalent() -> None:
    """Contenders that are the floor plus known noise."""
    errors: dict[str, list[float]] = {"floor": [], "noisy": [], "as noisy": []}
    for seed in range(8):
        drawn = draw_sequences(CONFIG, streams(seed))
        for number, (name, noise) in enumerate((("floor", 0.0), ("noisy", 0.1), ("as noisy", 0.1))):
            z = torch.randn(drawn.mean.shape, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
            errors[name].append(drawn.score(drawn.mean + noise * z).expected)
    found, equal = compare(errors["noisy"], errors["floor"]), compare(errors["as noisy"], errors["noisy"])
    level = sum(e**2 for e in errors["floor"]) / 8
    assert (1.0 if found.t_test is None else found.t_test) < 1e-6
    assert found.ratio.mean == pytest.approx(math.sqrt(1 + 0.01 / level), rel=1e-2)
    assert equal.conclusion == "equivalent"


def test_the_excess_in_nats_is_the_divergence_of_the_next_noisy_value(task: Task) -> None:
    off = by_points(task, task.mean + 0.1)
    exact, shifted = (
        torch.distributions.Normal(task.mean + shift, (task.variance + 0.01).sqrt()) for shift in (0.0, 0.1)
    )
    expected = torch.distributions.kl_divergence(exact, shifted).mean(0)
    torch.testing.assert_close(torch.tensor(off.nats, dtype=torch.float64), expected)
    assert off.rmse[0] == pytest.approx(math.sqrt(1 + 0.01), rel=1e-6)  # before the first point nothing is known


# --- the models -------------------------------------------------------------------------------------

SPECS = (BLOCK, BlockSpec(steps=4), BlockSpec(steps=2, memory="refreshed"), BlockSpec(layers=2), BlockSpec("Llama"))


def made(spec: BlockSpec) -> InContext:
    return InContext(spec, 2, torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_a_prediction_sees_the_points_before_it_and_its_own_input_alone(spec: BlockSpec, task: Task) -> None:
    model, points = made(spec), task.test_inputs[:4]
    with torch.no_grad():
        before = model(points)
        for j in (0, 5, 15):
            other = points.clone()
            other[:, j, 1] += 1.0  # its value
            other[:, j + 1 :] += 0.3
            after = model(other)
            torch.testing.assert_close(after[:, : j + 1], before[:, : j + 1], rtol=0, atol=1e-12)
            assert not torch.allclose(after[:, j + 1 :], before[:, j + 1 :], atol=1e-3) or j == 15
            other = points.clone()
            other[:, j, 0] += 0.3  # its input
            assert (model(other) - before)[:, j].abs().min() > 1e-6


def test_one_step_is_one_layer_and_reads_its_memory_once() -> None:
    points = torch.randn(3, 5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        one, refreshed = made(BLOCK)(points), made(BlockSpec(memory="refreshed"))(points)
        two, twice = made(BlockSpec(steps=2))(points), made(BlockSpec(steps=2, memory="refreshed"))(points)
    assert torch.equal(refreshed, one)
    assert not torch.allclose(two, twice, atol=1e-3)
    costs = [cost_of(BlockSpec(steps=T), 1, 16) for T in (1, 2, 3)]
    matmuls = [cost.inference.matmul for cost in costs]
    assert matmuls[2] - matmuls[1] == matmuls[1] - matmuls[0] > 0
    assert len({cost.parameters for cost in costs}) == 1


# --- the study --------------------------------------------------------------------------------------


def test_rates_are_found_on_some_sets_of_functions_and_judged_on_all() -> None:
    smoke = PRESETS["context-smoke"].config
    config = replace(smoke, families=("block",), depths=(1,), seeds=3, rates=(), tuning=2)
    (prior,) = config.priors
    payload, (contender,) = compute_task(config.task_cells(prior)[0]), config.contenders(prior)
    run = compute_model(config.model_cell(prior, contender, 8e-3))["runs"][0]
    seen: list[tuple[int, float]] = []

    def look(wanted: WantedCells) -> list[Any]:
        specs = [cell.spec for cell in wanted.cells]
        trained = [(len(s["replicates"]), s["recipe"]["learning_rate"]) for s in specs if "recipe" in s]
        seen.extend(trained)
        held_out = [abs(math.log2(rate / 8e-3)) + 1 for _, rate in trained]
        if not trained:
            return [payload] * len(specs)
        return [{"runs": [run | {"held_out_rmse": e}] * n} for e, (n, _) in zip(held_out, trained, strict=True)]

    rows = follow(findings.study(config), look).result["rows"]
    assert seen == [*((2, rate) for rate in (4e-3, 8e-3, 1.6e-2, 3.2e-2)), (1, 8e-3)]
    (row,) = (row for row in rows if row["contender"])
    assert (row["learning_rate"], len(row["runs"]), row["at_edge"]) == (8e-3, 3, False)


def test_a_task_of_one_function_and_its_cells_have_nothing_of_sequences() -> None:
    config = PRESETS["smoke"].config
    cell = replace(config, train_points=64, test_points=64).task_cells(config.priors[0])[0]
    assert "sequence" not in plain(cell)["replicate"]["task"]
    assert "by_points" not in compute_task(cell)

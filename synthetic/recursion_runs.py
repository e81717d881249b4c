"""The runs of the recursion study: one function drawn, one regressor of depth T trained on it and scored."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from cemverify.cem.models import Regressor, RegressorConfig
from synthetic.flops import matmul_flops
from synthetic.streams import Stream, Streams
from synthetic.tasks import Score, Task, TaskConfig, draw, ridge
from synthetic.training import TrainingConfig, fit, squared_error


@dataclass(frozen=True)
class Replicate:
    """A function of a prior: everything that the runs at different depths share.

    Attributes:
        task: what it is drawn from. root: the seed of the study. seed: the number of the replicate.
    """

    task: TaskConfig
    root: int
    seed: int

    @property
    def streams(self) -> Streams:
        """The random streams of this replicate."""
        return Streams(self.root, self.task.prior, self.seed)


@dataclass(frozen=True)
class TaskRecord:
    """What is known of a function before any model is trained.

    Attributes:
        floor: the Bayes-optimal root mean squared error. bayes, ridge, prior_mean: the scores of the posterior
            mean, of a linear fit and of predicting 0. jitter: what was added to the prior variance.
    """

    replicate: Replicate
    floor: float
    jitter: float
    bayes: Score
    ridge: Score
    prior_mean: Score


@dataclass(frozen=True)
class Run:
    """One training: a replicate and a depth.

    Attributes:
        regressor: the model; its own depth is replaced by `depth`.
    """

    replicate: Replicate
    depth: int
    regressor: RegressorConfig
    training: TrainingConfig


@dataclass(frozen=True)
class RunRecord:
    """What came of a run.

    Attributes:
        score: None if it diverged. train_rmse: on the noisy training targets, None likewise.
        diverged_at: the training step at which the loss ceased to be finite; the number of steps, if only the
            predictions did.
        best_step: after how many training steps the model had the weights that are scored.
        energy_falls: for each of the T steps, the share of test points whose energy it lowers; None if diverged.
        seconds: of training.
    """

    run: Run
    score: Score | None
    train_rmse: float | None
    diverged_at: int | None
    best_step: int
    energy_falls: tuple[float, ...] | None
    seconds: float


@dataclass(frozen=True)
class Size:
    """What a regressor of some depth costs.

    Attributes:
        parameters: their number. forward, training: matrix-product FLOPs for one point, of a prediction and of
            a training step. The read-out, a matrix-vector product of 2D, is not counted.
    """

    parameters: int
    forward: int
    training: int


def record_task(replicate: Replicate) -> TaskRecord:
    """Draws a function and scores what needs no training."""
    task = _task(replicate)
    linear = ridge(task, penalty=replicate.task.noise**2)
    return TaskRecord(
        replicate,
        task.floor,
        task.jitter,
        bayes=task.score(task.mean),
        ridge=task.score(linear),
        prior_mean=task.score(torch.zeros_like(task.mean)),
    )


def train(run: Run) -> RunRecord:
    """Trains and scores one regressor: in float32, evaluated in float64."""
    task, streams = _task(run.replicate), run.replicate.streams
    started = time.monotonic()
    model = Regressor(at_depth(run.regressor, run.depth), streams.generator(Stream.WEIGHTS))
    batches = streams.generator(Stream.BATCHES)
    trained = fit(model, task.inputs.float(), task.targets.float(), run.training, batches)
    seconds = time.monotonic() - started
    model.double()  # so that rounding does not decide whether an energy falls
    with torch.no_grad():
        predictions = model(task.test_inputs)  # (m,)
        train_rmse = float(squared_error(model, task.inputs, task.targets).sqrt())
        falls = energy_falls(model, task.test_inputs)
    if trained.diverged_at is not None or not bool(torch.isfinite(predictions).all()):
        at = run.training.steps if trained.diverged_at is None else trained.diverged_at
        return RunRecord(run, None, None, at, trained.best_step, None, seconds)
    return RunRecord(run, task.score(predictions), train_rmse, None, trained.best_step, falls, seconds)


def energy_falls(model: Regressor, inputs: torch.Tensor) -> tuple[float, ...]:
    """For each descent step, the share of the inputs (m, d) whose energy it lowers."""
    start = inputs if model.lift is None else inputs @ model.lift.mT
    energies = model.mlp.trajectory(start).energies  # (T + 1, m)
    return tuple((energies[1:] < energies[:-1]).double().mean(dim=1).tolist())


def measure_size(regressor: RegressorConfig, depth: int) -> Size:
    """Parameters and FLOPs of a regressor, counted on the meta device."""
    points = 2
    with torch.device("meta"):
        model = Regressor(at_depth(regressor, depth), torch.Generator(device="cpu"))
        inputs, targets = torch.empty(points, regressor.inputs), torch.empty(points)

    def training_step() -> None:
        squared_error(model, inputs, targets).backward()  # type: ignore[no-untyped-call]

    with torch.no_grad():
        forward = matmul_flops(model, inputs) // points
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Size(parameters, forward, matmul_flops(training_step) // points)


def at_depth(regressor: RegressorConfig, depth: int) -> RegressorConfig:
    """The same regressor with another T; the parameters, and so the initial weights, do not depend on it."""
    return replace(regressor, mlp=replace(regressor.mlp, steps=depth))


@lru_cache(maxsize=2)
def _task(replicate: Replicate) -> Task:
    """The function of a replicate; a worker that trains several depths on it factorises once."""
    return draw(replicate.task, replicate.streams)

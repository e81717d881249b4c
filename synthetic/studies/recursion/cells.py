"""The cells of the recursion study: a function with the scores of its references, or one contender at one learning
rate, trained on all functions of a prior at once.

A cell is a frozen specification of plain values. Its result consists of plain values too, and depends on the
specification alone, not on the clock or the machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from cemverify.runs import algorithm
from cemverify.runs.plain import restore
from synthetic.gp.sequences import ByPoints, by_points, draw_sequences
from synthetic.gp.tasks import Score, Stream, Streams, Task, TaskConfig, draw
from synthetic.studies.engine.stopping import AtStop
from synthetic.studies.recursion.contenders import Contender, cost_of, stack
from synthetic.studies.recursion.ensembles import Fit, Recipe, Stack, fit, squared_errors
from synthetic.studies.recursion.references import OF_SEQUENCES, REFERENCES
from synthetic.studies.recursion.regressors import CEMCore, RegressorStack

# Trained models are also evaluated with these numbers of steps, whatever their own T.
TEST_DEPTHS = tuple(range(1, 17))
# For sequences, the training error is computed on this many functions.
_FEW = 512


@dataclass(frozen=True)
class Replicate:
    """A function of a prior: everything that runs on it share."""

    task: TaskConfig  # what it is drawn from
    root: int  # the seed of the study
    seed: int  # the replicate's number

    @property
    def streams(self) -> Streams:
        """The random streams of this replicate."""
        return Streams(self.root, self.task.prior, self.seed)


@dataclass(frozen=True)
class TaskCell:
    """A function, and the scores of the references on it."""

    replicate: Replicate

    @property
    def label(self) -> str:
        """The cell in the progress of a run: prior, and function or model."""
        return f"{self.replicate.task.prior} seed {self.replicate.seed}: function and references"

    @property
    def cost(self) -> float:
        """Seconds, roughly: a Cholesky factorisation, and references that need several of that size."""
        points = 512 if self.replicate.task.sequence else self.replicate.task.points
        return 1.0 + 12.0 * (points / 5120) ** 3


@dataclass(frozen=True)
class ModelCell:
    """A contender trained on all functions of a prior at once, at one learning rate."""

    replicates: tuple[Replicate, ...]
    contender: Contender
    recipe: Recipe
    # shares (`engine.stopping`) at which an energy, if it has one, stops its points at test time
    stops: tuple[float, ...] = field(default=(), metadata={"added": True})

    @property
    def label(self) -> str:
        """The cell in the progress of a run: prior, and function or model."""
        return f"{self.replicates[0].task.prior}: {self.contender.name} at rate {self.recipe.learning_rate:g}"

    @property
    def cost(self) -> float:
        """Roughly the seconds that the cell takes on one core, to order the cells and to estimate the time."""
        task, points = self.replicates[0].task, len(self.replicates) * self.recipe.steps * self.recipe.batch
        if task.sequence:  # many small operations take longer than their FLOPs suggest
            return 1.0 + 1.6e-5 * points * task.sequence * (0.2 + 0.8 * (self.contender.depth or 1))
        flops = cost_of(self.contender.spec, task.dimensions).training
        return 1.0 + points * (flops.matmul / 3.5e10 + flops.elementwise / 4e9)


@dataclass(frozen=True)
class TaskRecord:
    """What is known of a function before any model is trained."""

    floor: float  # the root of the least mean squared error, expected over functions
    prior_std: float  # the error of predicting 0
    jitter: float  # added to the prior variance
    sampling: str  # how it was drawn, in words
    scores: Mapping[str, Score]  # of the references, by name
    by_points: Mapping[str, ByPoints] = field(default_factory=dict)  # the same at each position of sequences


@dataclass(frozen=True)
class RunRecord:
    """The result of one replicate of a model cell."""

    score: Score | None  # None if it diverged
    train_rmse: float | None  # on the noisy training targets
    held_out_rmse: float | None  # on the held-out points; None if it was never finite
    best_step: int  # the training step after which the model had the weights that are scored
    # the training step at which the loss ceased to be finite; the number of steps if only the predictions did
    diverged_at: int | None
    # the expected error of these weights with T' = 1 ... 16 steps, None where not finite; () for a user's own model
    at_depth: tuple[float | None, ...]
    # energies, norms: mean energy, and root mean square of x, over the test points at x^(0) ... x^(T)
    energies: tuple[float, ...] | None = None
    norms: tuple[float, ...] | None = None
    falls: tuple[float, ...] | None = None  # for each of the T steps, the share of test points whose energy it lowers
    smallest_eigenvalue: float | None = None  # of P
    # eta. All fields from `energies` on are None for a model without an energy, and where they are not finite
    step_size: float | None = None
    # the expected error with each of the cell's stops, after at most 16 steps; () without an energy
    at_stops: tuple[AtStop, ...] = ()
    by_points: ByPoints | None = None  # for sequences: the score at each position


@algorithm("synthetic.recursion.cells:compute_task", tasks=1, references=1)
def compute_task(cell: TaskCell) -> dict[str, Any]:
    """Draws a function and scores the references on it."""
    task = _drawn(cell.replicate)
    sequences = bool(task.config.sequence)
    made = {name: predict(task) for name, predict in (OF_SEQUENCES if sequences else REFERENCES).items()}
    scores = {name: task.score(predictions) for name, predictions in made.items()}
    at = {name: by_points(task, predictions) for name, predictions in made.items() if sequences}
    return _told(asdict(TaskRecord(task.floor, task.prior_std, task.jitter, task.sampling, scores, at)))


@algorithm("synthetic.recursion.cells:compute_model", tasks=1, regressors=1, training=1, evaluation=1)
def compute_model(cell: ModelCell) -> dict[str, Any]:
    """Trains a contender on all replicates at once, in float32, and evaluates it in float64."""
    tasks = _tasks(cell.replicates)
    part = f"draw {cell.contender.draw}" if cell.contender.draw else ""
    streams = [replicate.streams for replicate in cell.replicates]
    inputs, targets = torch.stack([t.inputs for t in tasks]), torch.stack([t.targets for t in tasks])
    device = cell.recipe.device
    model = stack(cell.contender.spec, inputs.shape[-1], streams, part).to(device)
    batches = [s.generator(Stream.BATCHES, part) for s in streams]
    fits = fit(model, inputs.float().to(device), targets.float().to(device), cell.recipe, batches)
    model.cpu().double()  # so rounding does not decide whether an energy falls
    with torch.no_grad():
        few = _FEW if tasks[0].config.sequence else inputs.shape[1]
        train_errors = squared_errors(model, inputs[:, :few], targets[:, :few]).sqrt()  # (S,)
        records = _evaluate(model, tasks, fits, train_errors, cell.recipe, cell.stops)
    runs = [_told(asdict(record)) for record in records]
    if not cell.stops:
        for run in runs:
            del run["at_stops"]
    return {"runs": runs}


def _told(record: dict[str, Any]) -> dict[str, Any]:
    """A record as a payload; an empty `by_points` is left out, as in payloads from before there were sequences."""
    return {name: value for name, value in record.items() if value or name != "by_points"}


def read_task(payload: Mapping[str, Any]) -> TaskRecord:
    """The record of a task cell's payload."""
    record: TaskRecord = restore(TaskRecord, payload)
    names = [name for name in REFERENCES if name in record.scores]  # JSON objects have no order
    return replace(record, scores={name: record.scores[name] for name in names})


def read_runs(payload: Mapping[str, Any]) -> list[RunRecord]:
    """The records of a model cell's payload, one for each replicate."""
    return [restore(RunRecord, run) for run in payload["runs"]]


# --- evaluation ---------------------------------------------------------------------------------


def _evaluate(
    model: Stack,
    tasks: Sequence[Task],
    fits: Sequence[Fit],
    train_errors: Tensor,
    recipe: Recipe,
    stops: Sequence[float],
) -> list[RunRecord]:
    points = torch.stack([task.test_inputs for task in tasks])  # (S, m, d)
    own, predictions, ended = model(points), [], []
    ways: list[dict[str, Any]] = [{} for _ in points]
    # a user's model has no known steps, and layers with separate weights are not steps
    if isinstance(model, RegressorStack) and model.spec.layers == 1:
        predictions = [model(points, steps=T) for T in TEST_DEPTHS]  # (S, m) each
        ended = [(q, e) for q in stops if (e := model.stopped(points, TEST_DEPTHS[-1], q)) is not None]
        ways = _ways(model, points)
    records = []
    for s, (task, fitted) in enumerate(zip(tasks, fits, strict=True)):
        diverged_at = fitted.diverged_at
        if diverged_at is None and _expected(task, own[s]) is None:
            diverged_at = recipe.steps
        sound = diverged_at is None
        records.append(
            RunRecord(
                score=task.score(own[s]) if sound else None,
                train_rmse=float(train_errors[s]) if sound else None,
                held_out_rmse=fitted.held_out_rmse if math.isfinite(fitted.held_out_rmse) else None,
                best_step=fitted.best_step,
                diverged_at=diverged_at,
                at_depth=tuple(_expected(task, p[s]) if sound else None for p in predictions),
                **(ways[s] if sound else {}),
                at_stops=tuple(
                    AtStop(q, float(steps[s].double().mean()), _expected(task, predicted[s]) if sound else None)
                    for q, (predicted, steps) in ended
                ),
                by_points=by_points(task, own[s]) if sound and task.config.sequence else None,
            )
        )
    return records


def _ways(model: RegressorStack, points: Tensor) -> list[dict[str, Any]]:
    """How the states and energies of each replicate change along the descent; {} for a model without an energy."""
    core, trajectory = model.core, model.trajectory(points)
    if trajectory is None or not isinstance(core, CEMCore):
        return [{} for _ in points]
    states, energies = trajectory.states, trajectory.energies  # (T + 1, S, m, D), (T + 1, S, m)
    falls = (energies[1:] < energies[:-1]).double().mean(-1)  # (T, S)
    smallest = None if core.d is None else core.preconditioner.smallest_eigenvalue()
    return [
        {
            "energies": _finite(energies[:, s].mean(-1)),
            "norms": _finite(states[:, s].square().mean((-1, -2)).sqrt()),
            "falls": tuple(falls[:, s].tolist()),
            "smallest_eigenvalue": None if smallest is None else float(smallest[s]),
            "step_size": None if core.log_step is None else float(core.log_step[s].exp()),
        }
        for s in range(len(points))
    ]


def _finite(values: Tensor) -> tuple[float, ...] | None:
    return tuple(values.tolist()) if bool(values.isfinite().all()) else None


def _expected(task: Task, predictions: Tensor) -> float | None:
    error = task.score(predictions).expected
    return error if math.isfinite(error) else None


@lru_cache(maxsize=8)
def _tasks(replicates: tuple[Replicate, ...]) -> tuple[Task, ...]:
    """The functions of a prior, kept so that a worker that trains several contenders on them factorises once.

    It bypasses the cache of `draw`, which holds only a few.
    """
    return tuple(map(_drawn, replicates))


def _drawn(replicate: Replicate) -> Task:
    make = draw_sequences if replicate.task.sequence else draw.__wrapped__
    return make(replicate.task, replicate.streams)

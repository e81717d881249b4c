"""The recursion study: what more descent steps buy at the same parameters, on functions of known difficulty.

A CEM MLP is trained at several depths T on functions drawn from Gaussian processes with ten inputs. Beside its
error stands the floor, the error of the Bayes-optimal predictor, and that of a linear fit.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from cemverify import results
from cemverify.cem.layers import MLPConfig
from cemverify.cem.models import RegressorConfig
from reports.render import terminal
from synthetic.errors import UsageError
from synthetic.priors import PRIORS, find_prior
from synthetic.recursion_runs import (
    Replicate,
    Run,
    RunRecord,
    Size,
    TaskRecord,
    measure_size,
    record_task,
    train,
)
from synthetic.recursion_summary import Summary, summarise_depth, summarise_references, table
from synthetic.tasks import TaskConfig
from synthetic.training import TrainingConfig
from synthetic.workers import run_all

DESCRIPTION = """\
Trains a recursive CEM MLP with T = 1, 2, 4, 8 descent steps (--steps) on functions drawn from a Gaussian
process, several functions per prior (--seeds), and sets its error beside the smallest there can be.
Everything but T is shared between the depths: function, split, initial weights, batches.
"""

EPILOG = """\
priors:
{priors}

presets (an option given by itself overrides one of their values):
{presets}

columns of the table:
  FLOPs/point     matrix-product FLOPs of one prediction, counted as they run
  expected RMSE   sqrt(mean (p - mu)^2 + v): the error to expect given the data, mu and v the exact posterior
  observed RMSE   the error on the noise-free function that was drawn
  excess          sqrt(mean (p - mu)^2): the distance to the Bayes-optimal predictor, 0 at best
  gap closed      how much of the way from the linear fit (ridge) to the floor
  ratio           expected RMSE over that of the smallest T on the same function; geometric mean, 95 % interval
  energy falls    share of test points whose energy a descent step lowers, at the step that lowers the fewest

A run that is no longer finite is reported as diverged, and its row then shows no mean over the others.
The same command gives the same table, bit for bit, with any number of workers.

examples:
  python -m synthetic recursion --preset smoke
  python -m synthetic recursion --train-points 1024 --output out/few-points.json
  python -m synthetic recursion --prior rbf warped --seeds 10 --output out/ten-seeds.json
"""


@dataclass(frozen=True)
class RecursionConfig:
    """A complete study.

    Attributes:
        priors: what functions are drawn from. steps: the depths T. seeds: functions per prior. seed: the root seed.
        train_points, test_points: sizes of each function's two sets. noise: standard deviation on training targets.
        lengthscale: for all priors, instead of each one's own.
        regressor: the model, whose inputs are those of the functions; its own depth is replaced by each T.
        training: how it is trained, the same at every depth.

    Raises:
        UsageError: a number out of range, a name unknown or given twice.
    """

    priors: Sequence[str] = ("rbf",)
    steps: Sequence[int] = (1, 2, 4, 8)
    seeds: int = 3
    seed: int = 0
    # with 1024 points every depth beyond 1 only learns the noise faster
    train_points: int = 4096
    test_points: int = 1024
    noise: float = 0.1
    lengthscale: float | None = None
    # no norm inside the recursion: it hides the magnitude of x, on which the functions depend
    regressor: RegressorConfig = field(
        default_factory=lambda: RegressorConfig(10, MLPConfig(dim=32, hidden=128, init_std=0.05))
    )
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        for name, values in (("prior", self.priors), ("T", self.steps)):
            if not values:
                raise UsageError(f"at least one {name} is needed")
            if twice := sorted({str(v) for v in values if list(values).count(v) > 1}):
                raise UsageError(f"{name} {', '.join(twice)} is given twice; name each once")
        if bad := [str(T) for T in self.steps if T < 1]:
            raise UsageError(f"a descent takes T >= 1 steps, not {', '.join(bad)}")
        if self.seeds < 1:
            raise UsageError(f"at least one seed (function per prior) is needed, not {self.seeds}")
        if self.seed < 0:
            raise UsageError(f"the root seed must be at least 0, not {self.seed}")
        for prior in self.priors:
            self.task(prior)

    def task(self, prior: str) -> TaskConfig:
        """The task of one prior."""
        lengthscale = find_prior(prior).lengthscale if self.lengthscale is None else self.lengthscale
        return TaskConfig(prior, lengthscale, self.regressor.inputs, self.train_points, self.test_points, self.noise)

    def replicates(self, prior: str) -> list[Replicate]:
        """The functions of one prior."""
        return [Replicate(self.task(prior), self.seed, seed) for seed in range(self.seeds)]


def quick() -> RecursionConfig:
    """Four depths, three functions: a first look within a minute or two."""
    return RecursionConfig()


def smoke() -> RecursionConfig:
    """Whether everything works, in well under a minute; too small to conclude anything from."""
    return RecursionConfig(
        steps=(1, 2), seeds=2, train_points=1024, test_points=512, training=TrainingConfig(steps=300)
    )


PRESETS: Mapping[str, Callable[[], RecursionConfig]] = MappingProxyType({"quick": quick, "smoke": smoke})


@dataclass(frozen=True)
class Study:
    """What a study found.

    Attributes:
        tasks, runs: one record for each function, and for each function at each depth. rows: prior by prior.
        tables: one for each prior.
    """

    config: RecursionConfig
    tasks: Sequence[TaskRecord]
    runs: Sequence[RunRecord]
    rows: Sequence[Summary]
    tables: Sequence[results.Table]


def study(config: RecursionConfig, workers: int, report: Callable[[str], None]) -> Study:
    """Runs the whole study.

    Args:
        workers: how many processes, at least 1.
        report: takes lines of progress.

    Raises:
        UsageError: a prior cannot be sampled at this size, or a worker died.
    """
    replicates = [replicate for prior in config.priors for replicate in config.replicates(prior)]
    jobs: list[Replicate | Run] = [
        *replicates,
        *(Run(replicate, T, config.regressor, config.training) for replicate in replicates for T in config.steps),
    ]
    outcomes = run_all(_perform, jobs, workers, _cost, report, _describe)
    tasks = [outcome for outcome in outcomes if isinstance(outcome, TaskRecord)]
    runs = [outcome for outcome in outcomes if isinstance(outcome, RunRecord)]
    sizes = {T: measure_size(config.regressor, T) for T in config.steps}
    rows, tables = [], []
    for prior in config.priors:
        own = [task for task in tasks if task.replicate.task.prior == prior]
        own_rows = _rows(own, [run for run in runs if run.run.replicate.task.prior == prior], sizes)
        rows += own_rows
        tables.append(table(own, own_rows))
    return Study(config, tasks, runs, rows, tables)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m synthetic recursion`."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG.format(
        priors="\n".join(f"  {p.name:<20}{p.summary}; lengthscale {p.lengthscale:g}" for p in PRIORS.values()),
        presets="\n".join(f"  {name:<20}{_about(make())}" for name, make in PRESETS.items()),
    )
    parser.add_argument("--prior", nargs="+", metavar="NAME", help="what functions are drawn from (default: rbf)")
    parser.add_argument("--steps", nargs="+", type=int, metavar="T", help="recursion depths to compare")
    parser.add_argument("--seeds", type=int, metavar="N", help="functions per prior; 10 for a comparison to rely on")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="quick", help="sizes (default: %(default)s)")
    parser.add_argument("--seed", type=int, metavar="N", help="root of every random stream (default: 0)")
    parser.add_argument("--train-points", type=int, metavar="N", help="size of each training set")
    parser.add_argument("--noise", type=float, metavar="SD", help="noise on training targets (default: 0.1)")
    parser.add_argument("--lengthscale", type=float, metavar="L", help="instead of each prior's own")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes, one thread and about 1 GB each (default: one per CPU)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        default=Path("out/recursion.json"),
        help="the result, with every run, as JSON (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Runs the study that the options of the command line ask for; returns the exit code.

    Raises:
        UsageError: the options make no sense. cemverify.results.ResultError: the output cannot be written.
    """
    config = _configured(options)
    workers = os.cpu_count() or 1 if options.workers is None else options.workers
    if workers < 1:
        raise UsageError(f"at least one worker is needed, not {workers}")
    results.check_writable(options.output)
    torch.set_num_threads(1)  # as in the workers, and as the result says
    maker = results.Maker.now(_command(options), asdict(config), config.seed, "cpu")
    found = study(config, workers, report=lambda line: print(line, file=sys.stderr, flush=True))
    print(terminal(found.tables))
    for note in notes(found.tasks):
        print(f"note: {note}", file=sys.stderr)
    results.write(options.output, results.result("recursion", maker, found.tables, _payload(found)))
    print(f"wrote {options.output}", file=sys.stderr)
    return 0


def _configured(options: argparse.Namespace) -> RecursionConfig:
    given = {
        "priors": options.prior,
        "steps": options.steps,
        "seeds": options.seeds,
        "seed": options.seed,
        "noise": options.noise,
        "lengthscale": options.lengthscale,
        "train_points": options.train_points,
    }
    return replace(PRESETS[options.preset](), **{name: value for name, value in given.items() if value is not None})


def _command(options: argparse.Namespace) -> str:
    """The command that makes the same table again."""
    words = ["python", "-m", "synthetic", "recursion", "--preset", options.preset]
    for name in ("prior", "steps", "seeds", "seed", "train_points", "noise", "lengthscale"):
        value = getattr(options, name)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", *(map(str, value) if isinstance(value, list) else [str(value)])]
    return shlex.join(words)


def _perform(job: Replicate | Run) -> TaskRecord | RunRecord:
    return record_task(job) if isinstance(job, Replicate) else train(job)


def _cost(job: Replicate | Run) -> float:
    """In units of what one more T costs a run; drawing the function and everything else weighs about 8 (quick)."""
    return 5.0 if isinstance(job, Replicate) else 8.0 + job.depth


def _describe(outcome: TaskRecord | RunRecord) -> str:
    if isinstance(outcome, TaskRecord):
        task = outcome.replicate
        return f"{task.task.prior} seed {task.seed}: floor {outcome.floor:.4f}, ridge {outcome.ridge.expected:.4f}"
    name = f"{outcome.run.replicate.task.prior} seed {outcome.run.replicate.seed} T = {outcome.run.depth}"
    if outcome.score is None:
        return f"{name}: diverged at step {outcome.diverged_at}"
    return f"{name}: RMSE {outcome.score.expected:.4f} in {outcome.seconds:.1f} s"


def _rows(tasks: Sequence[TaskRecord], runs: Sequence[RunRecord], sizes: Mapping[int, Size]) -> list[Summary]:
    at = {T: [run for run in runs if run.run.depth == T] for T in sizes}
    references = summarise_references(tasks)
    return [*references[:-1], *(summarise_depth(tasks, at[T], at[min(at)], sizes[T]) for T in at), references[-1]]


def notes(tasks: Sequence[TaskRecord]) -> list[str]:
    """Warnings about tasks on which a comparison of models would compare noise."""
    found = []
    for prior in dict.fromkeys(task.replicate.task.prior for task in tasks):
        own = [task for task in tasks if task.replicate.task.prior == prior]
        floor, ridge = sum(t.floor for t in own), sum(t.ridge.expected for t in own)
        if floor > 0.9 * ridge:
            found.append(
                f"on {prior} a linear fit is within 10 % of the floor: there is little to tell models apart by"
            )
        if jitter := max(t.jitter for t in own):
            found.append(f"on {prior} sampling needed a jitter of up to {jitter:.0e}; the floor knows of it")
    return found


def _about(config: RecursionConfig) -> str:
    depths = ", ".join(map(str, config.steps))
    return (
        f"T = {depths}, {config.seeds} seeds, {config.train_points} training points, "
        f"{config.training.steps} optimiser steps"
    )


def _payload(found: Study) -> dict[str, Any]:
    return {
        "tasks": [_task_entry(task) for task in found.tasks],
        "cells": [_run_entry(run) for run in found.runs],
        "summary": [asdict(row) for row in found.rows],
        "notes": notes(found.tasks),
    }


def _task_entry(record: TaskRecord) -> dict[str, Any]:
    entry = asdict(record)
    replicate = entry.pop("replicate")
    return {**replicate["task"], "seed": replicate["seed"], **entry}


def _run_entry(record: RunRecord) -> dict[str, Any]:
    entry = asdict(record)
    run = entry.pop("run")  # its model and training are those of the configuration
    return {
        "prior": run["replicate"]["task"]["prior"],
        "seed": run["replicate"]["seed"],
        "steps": run["depth"],
        **entry,
    }

"""How far a recursion study is, and what it found, as plain values from the payloads of its cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cemverify.runs import Cell
from synthetic.gp import difficulty
from synthetic.gp.difficulty import Difficulty, average
from synthetic.studies.engine.conduct import Look
from synthetic.studies.recursion.cells import (
    ModelCell,
    RunRecord,
    TaskCell,
    TaskRecord,
    compute_model,
    compute_task,
    read_runs,
    read_task,
)
from synthetic.studies.recursion.contenders import INPUTS, Contender, cost_of
from synthetic.studies.recursion.presets import RecursionConfig
from synthetic.studies.recursion.statements import read
from synthetic.studies.recursion.summary import Row, summarise

Payloads = Mapping[TaskCell | ModelCell, Mapping[str, Any]]


@dataclass(frozen=True)
class State:
    """How far a study is.

    Attributes:
        todo: the cells that are wanted next. known: those that have a payload. payloads: what they found.
    """

    todo: tuple[Cell, ...]
    known: tuple[Cell, ...]
    payloads: Payloads


def state(config: RecursionConfig, look: Look, part: bool = False) -> State:
    """First all functions are drawn, then models are trained on them.

    Args:
        part: a machine that computes a part of the study takes its part of both, and judges nothing.

    Raises:
        UsageError: a prior is not worth a comparison.
    """
    tasks = {t: compute_task.cell(t, cost=t.cost, label=t.label) for p in config.priors for t in config.task_cells(p)}
    models = {
        m: compute_model.cell(m, cost=m.cost, label=m.label) for p in config.priors for m in config.model_cells(p)
    }
    every: dict[TaskCell | ModelCell, Cell] = dict([*tasks.items(), *models.items()])
    payloads = {spec: payload for spec, cell in every.items() if (payload := look(cell)) is not None}
    drawn = tasks.keys() <= payloads.keys()
    if drawn and not part:
        admit(config, payloads)
    due = every if drawn or part else tasks
    todo = tuple(cell for spec, cell in every.items() if spec in due and spec not in payloads)
    return State(todo, tuple(cell for spec, cell in every.items() if spec in payloads), payloads)


def assemble(config: RecursionConfig, payloads: Payloads) -> dict[str, Any]:
    """Everything for the result file (docs/result-files.md), from the payloads of all cells."""
    tasks: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for prior in config.priors:
        records = [read_task(payloads[cell]) for cell in config.task_cells(prior)]
        runs: dict[Contender, dict[float, list[RunRecord]]] = {}
        for cell in config.model_cells(prior):
            runs.setdefault(cell.contender, {})[cell.recipe.learning_rate] = read_runs(payloads[cell])
        found = summarise(records, runs, {contender: cost_of(contender.spec) for contender in runs})
        tasks += [{"prior": prior, "seed": seed, **asdict(record)} for seed, record in enumerate(records)]
        rows += [entry(prior, row) for row in found]
        notes += _notes(prior, records)
    statements = [asdict(statement) for statement in read({"rows": rows})]
    return {"inputs": INPUTS, "tasks": tasks, "rows": rows, "statements": statements, "notes": notes}


def admit(config: RecursionConfig, payloads: Payloads) -> None:
    """Accepts a study if each of its tasks is worth a comparison or is a declared negative control.

    Raises:
        UsageError: one is neither; a table of models on it would compare noise.
    """
    for prior in config.priors:
        records = [read_task(payloads[cell]) for cell in config.task_cells(prior)]
        difficulty.admit(config.task(prior), _difficulty(records))


def _difficulty(tasks: Sequence[TaskRecord]) -> Difficulty:
    return average([Difficulty(t.floor, t.scores["ridge"].expected, t.prior_std) for t in tasks])


def _notes(prior: str, tasks: Sequence[TaskRecord]) -> list[str]:
    """Warnings about tasks on which a comparison of models would compare noise."""
    notes = []
    if objection := _difficulty(tasks).objection:
        notes.append(f"{prior} is a negative control, {objection}: a model that does well on it gives away a leak")
    if jitter := max(t.jitter for t in tasks):
        notes.append(f"on {prior} sampling needed a jitter of up to {jitter:.0e}; the floor knows of it")
    return notes


def entry(prior: str, row: Row) -> dict[str, Any]:
    """A row of the summary as the result file keeps it: with its prior and its T, as plain values."""
    depth = None if row.contender is None else row.contender.depth
    return {"prior": prior, **asdict(row), "depth": depth}

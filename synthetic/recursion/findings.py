"""What a recursion study found, as plain values, from the payloads of its cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from synthetic.gp import difficulty
from synthetic.gp.difficulty import Difficulty, average
from synthetic.recursion.cells import ModelCell, RunRecord, TaskCell, TaskRecord, read_runs, read_task
from synthetic.recursion.contenders import INPUTS, Contender, cost_of
from synthetic.recursion.presets import RecursionConfig
from synthetic.recursion.statements import read
from synthetic.recursion.summary import Row, summarise

Look = Callable[[TaskCell | ModelCell], Mapping[str, Any]]


def assemble(config: RecursionConfig, look: Look) -> dict[str, Any]:
    """Everything for the result file (docs/result-files.md), from the payload that `look` returns for each cell."""
    tasks: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for prior in config.priors:
        records = [read_task(look(cell)) for cell in config.task_cells(prior)]
        runs: dict[Contender, dict[float, list[RunRecord]]] = {}
        for cell in config.model_cells(prior):
            runs.setdefault(cell.contender, {})[cell.recipe.learning_rate] = read_runs(look(cell))
        found = summarise(records, runs, {contender: cost_of(contender.spec) for contender in runs})
        tasks += [{"prior": prior, "seed": seed, **asdict(record)} for seed, record in enumerate(records)]
        rows += [entry(prior, row) for row in found]
        notes += _notes(prior, records)
    statements = [asdict(statement) for statement in read({"rows": rows})]
    return {"inputs": INPUTS, "tasks": tasks, "rows": rows, "statements": statements, "notes": notes}


def admit(config: RecursionConfig, look: Look) -> None:
    """Accepts a study if each of its tasks is worth a comparison or is a declared negative control.

    Raises:
        UsageError: one is neither; a table of models on it would compare noise.
    """
    for prior in config.priors:
        records = [read_task(look(cell)) for cell in config.task_cells(prior)]
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

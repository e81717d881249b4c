"""What a recursion study found: rows, tables and statements, assembled from the payloads of its cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cemverify.console.errors import UsageError
from cemverify.results.envelope import Table
from synthetic.gp.difficulty import Difficulty, average, is_negative_control
from synthetic.recursion import tables
from synthetic.recursion.cells import ModelCell, RunRecord, TaskCell, TaskRecord, read_runs, read_task
from synthetic.recursion.contenders import Contender, cost_of
from synthetic.recursion.presets import RecursionConfig
from synthetic.recursion.statements import read
from synthetic.recursion.summary import Row, summarise
from synthetic.statements import Statement

Payload = Mapping[str, Any]
Look = Callable[[TaskCell | ModelCell], Payload]


@dataclass(frozen=True)
class RecursionFindings:
    """What a study found.

    Attributes:
        tasks: for each prior a record for each function. rows: for each prior the rows of its table.
        statements: of the paper, read. tables: for people.
    """

    config: RecursionConfig
    tasks: Mapping[str, Sequence[TaskRecord]]
    rows: Mapping[str, Sequence[Row]]
    statements: Sequence[Statement]
    tables: Sequence[Table]

    @property
    def notes(self) -> list[str]:
        """Warnings about tasks on which a comparison of models would compare noise."""
        return [note for prior, found in self.tasks.items() for note in _notes(prior, found)]

    def payload(self) -> dict[str, Any]:
        """Everything as plain values, for the result file."""
        return {
            "tasks": [
                {"prior": prior, "seed": seed, **asdict(record)}
                for prior, records in self.tasks.items()
                for seed, record in enumerate(records)
            ],
            "rows": [_row_entry(prior, row) for prior, rows in self.rows.items() for row in rows],
            "statements": [asdict(statement) for statement in self.statements],
            "notes": self.notes,
        }


def assemble(config: RecursionConfig, look: Look) -> RecursionFindings:
    """The findings, from the payload that `look` returns for each cell."""
    found_tasks: dict[str, list[TaskRecord]] = {}
    found_rows: dict[str, list[Row]] = {}
    shown: list[Table] = []
    for prior in config.priors:
        records = [read_task(look(cell)) for cell in config.task_cells(prior)]
        runs: dict[Contender, dict[float, list[RunRecord]]] = {}
        for cell in config.model_cells(prior):
            runs.setdefault(cell.contender, {})[cell.recipe.learning_rate] = read_runs(look(cell))
        rows = summarise(records, runs, {contender: cost_of(contender.spec) for contender in runs})
        found_tasks[prior], found_rows[prior] = records, rows
        task = config.task(prior)
        optional = (
            tables.same_depth(task, rows),
            tables.ways_down(task, rows),
            tables.test_depths(task, rows),
            tables.stopped(task, rows),
        )
        shown += [tables.errors(task, records[0].sampling, rows), *(table for table in optional if table is not None)]
    return RecursionFindings(config, found_tasks, found_rows, read(found_rows), shown)


def admit(config: RecursionConfig, look: Look) -> None:
    """Accepts a study if each of its tasks is worth a comparison or is a declared negative control.

    Raises:
        UsageError: one is neither; a table of models on it would compare noise.
    """
    for prior in config.priors:
        records = [read_task(look(cell)) for cell in config.task_cells(prior)]
        objection = _difficulty(records).objection
        if objection and not is_negative_control(config.task(prior)):
            raise UsageError(
                f"prior {prior} with {config.train_points} training points leaves {objection}; "
                "choose another lengthscale or more points (see docs/tasks.md)"
            )


def _difficulty(tasks: Sequence[TaskRecord]) -> Difficulty:
    return average([Difficulty(t.floor, t.scores["ridge"].expected, t.prior_std) for t in tasks])


def _notes(prior: str, tasks: Sequence[TaskRecord]) -> list[str]:
    notes = []
    if objection := _difficulty(tasks).objection:
        notes.append(f"{prior} is a negative control, {objection}: a model that does well on it gives away a leak")
    if jitter := max(t.jitter for t in tasks):
        notes.append(f"on {prior} sampling needed a jitter of up to {jitter:.0e}; the floor knows of it")
    return notes


def _row_entry(prior: str, row: Row) -> dict[str, Any]:
    entry = {"prior": prior, **asdict(row)}
    entry["depth"] = None if row.contender is None else row.contender.depth
    return entry

"""Cells, the store that keeps what they found, and the processes that compute them: one mechanism for all studies.

A study says what it needs as *cells* and reads the records:

    from cemverify.runs import RunOptions, add_run_arguments, algorithm, payloads, run_cells

    @algorithm(draw=1, references=1)           # hand-bumped versions of whatever decides the payload
    def record_task(spec: TaskCell) -> dict[str, Any]:
        return {"floor": ..., "scores": {...}}  # plain JSON values, finite, following from the specification alone

    add_run_arguments(parser)                  # --store --workers --cluster --shard --retry-failed --resume
    run = RunOptions.of(options)               # checked; UsageError is one sentence
    cells = [record_task.cell(spec, cost=spec.cost, label="rbf seed 0") for spec in specs]
    records = run_cells(cells, run)            # in the order of the cells; what is in the store is not computed again
    found = payloads(records)                  # or look at record.failure, one by one

* A specification is a frozen dataclass of plain values and of further frozen dataclasses (tuples, mappings, None and
  unions of them included). It is written as JSON and restored from JSON by the type annotations: workers and
  `python -m synthetic explain KEY --rerun` get exactly what the store holds.
* `cell.key` is the SHA-256 of the specification, the algorithm's name and its versions. Never of source text.
* `cost` is roughly proportional to time, and orders the cells, longest first; `label` is what progress says. Neither
  is part of the key.
* What varies between identical runs (seconds, host, date) lies in a side file, and reaches the study as
  `record.made_by`.
* A cell that raises is stored as failed, with its cause; it is tried again with --retry-failed only.
* `run_cells` leaves by an exception where there is nothing to tabulate, and `synthetic.__main__` knows each:
  `ShardFinished` (exit code 0), `Interrupted` (130), `UsageError` (2).
  A shard ends with its first `run_cells`: ask for all cells of a sharded run in one call.
* `RunOptions(store, workers=0)` computes in the calling process: for tests and debuggers.

Nothing here imports torch; an algorithm's own module does.
"""

from __future__ import annotations

from cemverify.runs.cells import Algorithm, Cell, algorithm
from cemverify.runs.options import RunOptions, add_run_arguments
from cemverify.runs.run import Interrupted, ShardFinished, payloads, run_cells
from cemverify.runs.store import Failure, Record, Store

__all__ = [
    "Algorithm",
    "Cell",
    "Failure",
    "Interrupted",
    "Record",
    "RunOptions",
    "ShardFinished",
    "Store",
    "add_run_arguments",
    "algorithm",
    "payloads",
    "run_cells",
]

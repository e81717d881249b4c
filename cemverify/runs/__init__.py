"""Resumable computations: cells, the store that keeps their results, and the processes that compute them.

A caller states what it needs as *cells* and reads what is stored for them. The studies of the synthetic bench and
`cemverify power` all run this way:

    from cemverify.runs import add_run_arguments, algorithm, payloads, run_cells, run_options

    @algorithm("task", draw=1, references=1)   # its name, and hand-bumped versions of what decides the payload
    def record_task(spec: TaskCell) -> dict[str, Any]:
        return {"floor": ..., "scores": {...}}  # plain JSON values, finite, determined by the specification alone

    add_run_arguments(parser)                  # --store --workers --cluster --shard --retry-failed --resume
    where = run_options(options)               # raises UsageError, one sentence
    cells = [record_task.cell(spec, cost=spec.cost, label="rbf seed 0") for spec in specs]
    stored = run_cells(cells, where)           # in the order of the cells; computes only what the store lacks
    found = payloads(stored)                   # or look at each one's .failure

* A specification is a frozen dataclass of plain values and further frozen dataclasses; it may contain tuples,
  mappings, None and unions. It is written as JSON and read back by its type annotations, so that every worker
  gets exactly what the store holds.
* `cell.key` is the SHA-256 of the specification, the algorithm's name and its versions, never of source text. If the
  result depends on the source, put its digest into the specification, as `cemverify.power.code` does.
* `cost` is roughly proportional to the time a cell takes; the longest are started first. `label` is what the progress
  line shows. Neither is part of the key.
* What varies between identical runs (seconds, host, date) is kept in a side file, `.made_by` of a stored cell.
* A cell whose algorithm raises is stored as failed, with its cause, and is tried again only with --retry-failed.
* If there is nothing to tabulate, `run_cells` raises: `ShardFinished` (exit code 0), `Interrupted` (130) or
  `UsageError` (2). A shard ends with its first `run_cells`, so ask for all cells of a sharded run in one call.
* `RunOptions(store, workers=0)` computes in the calling process, for tests and debuggers.

Nothing here imports torch; the module of an algorithm may.
"""

from __future__ import annotations

from cemverify.runs.arguments import add_run_arguments, run_options
from cemverify.runs.cells import Algorithm, Cell, algorithm
from cemverify.runs.exchange import bring, hand_on
from cemverify.runs.options import RunOptions
from cemverify.runs.run import Interrupted, ShardFinished, payloads, run_cells
from cemverify.runs.store import CellStore, CorruptCell, Failure, StoredCell
from cemverify.runs.until import Alarm, ctrl_c_after

__all__ = [
    "Alarm", "Algorithm", "Cell", "CellStore", "CorruptCell", "Failure", "Interrupted", "RunOptions", "ShardFinished",
    "StoredCell", "add_run_arguments", "algorithm", "bring", "ctrl_c_after", "hand_on", "payloads", "run_cells",
    "run_options",
]  # fmt: skip

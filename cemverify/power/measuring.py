"""Takes those measurements of a plan that are not stored yet, and summarises all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cemverify.power.cells import DetectionCell, FalseAlarmCell, IntroductionCell, Measurement, cell_of
from cemverify.power.code import Code
from cemverify.power.findings import Payload, Power, summarise
from cemverify.power.plan import Introduced, PowerPlan
from cemverify.runs import Failure, RunOptions, StoredCell, payloads, run_cells


def measure_power(plan: PowerPlan, where: RunOptions) -> Power:
    """Measures and summarises; progress goes to stderr.

    Raises:
        ShardFinished: where.shard is set, and its part is done. Interrupted: Ctrl-C.
    """
    introduced = _introduce(plan, where)
    measurements = list(plan.cells(introduced))
    stored = run_cells([cell_of(a) for a in measurements], where)
    taken = [(a, _payload(a, s, where)) for a, s in zip(measurements, stored, strict=True)]
    offered = {name: introduced[name].properties for name in plan.bank}
    return summarise(plan, introduced[plan.implementation].inapplicable, offered, taken)


def _introduce(plan: PowerPlan, where: RunOptions) -> dict[str | None, Introduced]:
    """Runs all introductions: every shard needs them, because the cells of the plan depend on them."""
    names = list(dict.fromkeys((plan.implementation, *plan.bank)))
    cells = [cell_of(IntroductionCell(name, Code.here(name))) for name in names]
    introductions = payloads(run_cells(cells, replace(where, shard=None)), where.store)
    return {name: Introduced(**payload) for name, payload in zip(names, introductions, strict=True)}


def _payload(measurement: Measurement, stored: StoredCell, where: RunOptions) -> Payload:
    """The payload. If a measurement failed, its runs count neither as kills nor as judgements."""
    failure = stored.failure
    if failure is not None and isinstance(measurement, DetectionCell):
        return {"runs": [{"killed": False, **_failed(seed, failure)} for seed in measurement.seeds]}
    if failure is not None and isinstance(measurement, FalseAlarmCell):
        pairs = [(id_, seed) for id_ in measurement.properties for seed in measurement.seeds]
        return {"runs": [{"property": id_, **_failed(seed, failure)} for id_, seed in pairs]}
    return payloads([stored], where.store)[0]


def _failed(seed: int, failure: Failure) -> dict[str, Any]:
    return {"seed": seed, "verdict": "failed", "reason": failure.cause}

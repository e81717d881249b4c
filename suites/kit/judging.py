"""Judged implementations: one property asked here, a run in worker processes, a mutant by its name."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record
from cemverify.conformance.properties import Property, by_id, select
from cemverify.conformance.workers.isolation import run
from cemverify.power.mutants import Mutant, mutants

ONE_OF_EACH = select(["gradient/attention/plain", "gradient/mlp/silu"])
# a megabyte of imports takes its time on a busy machine: only what is to hang gets a short timeout
QUICKLY = Effort(examples=4, shrink=False, memory=700)


def judged(implementation: Any, id_: str, **effort: Any) -> Record:
    """The record of one property, asked in this process; `effort` has arguments of `Effort`."""
    return judge_property(implementation, by_id(id_), Effort(**effort))


def finished(events: Iterable[object]) -> RunFinished:
    """The last event of a run, which has all its records."""
    *_, last = events
    assert isinstance(last, RunFinished)
    return last


def records(name: str, effort: Effort = QUICKLY, properties: Iterable[Property] = ONE_OF_EACH) -> dict[str, Record]:
    """The records of an implementation that worker processes load by its name, by the id of the property."""
    return {record.id: record for record in finished(run(name, tuple(properties), effort)).records}


@cache
def _by_name() -> dict[str, Mutant]:
    return {mutant.id: mutant for mutant in mutants()}


def mutant(id_: str) -> Mutant:
    """The mutant of that id."""
    return _by_name()[id_]

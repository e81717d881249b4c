"""Asking an implementation as `cemverify check` does, in short: one attention property and one MLP property.

    found = records("suites.conformance.hostile:exits")
    assert found["gradient/attention/plain"].verdict == Verdict.VIOLATED

The implementation is named "module:attribute", so that its process can import it. It may do anything.
"""

from __future__ import annotations

from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record
from cemverify.conformance.properties import Property, select
from cemverify.conformance.workers.isolation import run

ONE_OF_EACH = select(["gradient/attention/plain", "gradient/mlp/silu"])
# a megabyte of imports takes its time on a busy machine: only what is to hang gets a short timeout
QUICKLY = Effort(examples=4, shrink=False, memory=700)
IMPATIENTLY = Effort(examples=4, shrink=False, memory=700, timeout=2.0)


def records(name: str, effort: Effort = QUICKLY, properties: tuple[Property, ...] = ONE_OF_EACH) -> dict[str, Record]:
    """The records of an implementation, by the id of the property."""
    for event in run(name, properties, effort):
        if isinstance(event, RunFinished):
            return {record.id: record for record in event.records}
    raise AssertionError("the run did not finish")

"""A run in few lines, for a program or a coding agent: one for each verdict, and at the end one of JSON."""

from __future__ import annotations

import json

from cemverify.conformance.judging.diagnosis import diagnose
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict, counts
from cemverify.conformance.listeners.diagnosis import as_json


def report(event: RunFinished, exit_code: int) -> str:
    """The lines of what was asked. The last one has the counts and the diagnosis as a result file has them."""
    diagnosis = diagnose(event)
    last = {
        "implementation": event.implementation,
        "exit_code": exit_code,
        "counts": counts(event.records, len(event.unasked)),
        "diagnosis": None if diagnosis is None else as_json(diagnosis),
    }
    asked = (record for record in event.records if record.verdict != Verdict.NOT_OFFERED)
    return "\n".join([*map(_line, asked), json.dumps(last)])


def _line(record: Record) -> str:
    excuse = " (known)" if record.known is not None else " (not enforced)" if record.not_enforced else ""
    why = next(iter((record.reason or "").splitlines()), "")
    part = f" [{record.part}]" if record.part else ""
    return f"{record.verdict}{excuse} {record.id}{part}{f': {why}' if why else ''}"

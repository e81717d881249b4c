"""A run in few lines, for a program or a coding agent: one per verdict, and finally one of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable

from cemverify.conformance.judging.diagnosis import diagnose
from cemverify.conformance.judging.events import Event, PropertyFinished, RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict, counts
from cemverify.conformance.listeners.diagnosis import as_json
from cemverify.results.envelope import show


def lines(marked: Callable[[Record], Record]) -> Callable[[Event], None]:
    """A listener that prints a line for each verdict as it comes.

    Args:
        marked: adds to a record whether it is known or not enforced.
    """

    def listener(event: Event) -> None:
        if isinstance(event, PropertyFinished) and event.record.verdict != Verdict.NOT_OFFERED:
            show(_line(marked(event.record)))

    return listener


def last(event: RunFinished, exit_code: int) -> str:
    """The last line: the counts and the diagnosis as in a result file."""
    diagnosis = diagnose(event)
    told = {
        "implementation": event.implementation,
        "exit_code": exit_code,
        "interrupted": event.interrupted,
        "counts": counts(event.records, len(event.unasked)),
        "diagnosis": None if diagnosis is None else as_json(diagnosis),
    }
    return json.dumps(told)


def _line(record: Record) -> str:
    excuse = " (known)" if record.known is not None else " (not enforced)" if record.not_enforced else ""
    why = next(iter((record.reason or "").splitlines()), "")
    part = f" [{record.part}]" if record.part else ""
    return f"{record.verdict}{excuse} {record.id}{part}{f': {why}' if why else ''}"

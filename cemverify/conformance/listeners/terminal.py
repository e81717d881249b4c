"""Progress while a run goes on, and its table when it is over."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from textwrap import shorten
from typing import Any, TextIO

from tabulate import tabulate

from cemverify.conformance.engine import Event, PropertyFinished, RunFinished, RunStarted
from cemverify.conformance.verdicts import Record, Verdict, counts
from cemverify.results import Table


class Progress:
    """One line per property on a stream: how far, what, how long."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.done = self.total = 0

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.total = event.asked
                absent = event.applicable - event.asked
                words = f"{event.implementation}: {event.asked} properties to ask, {absent} not offered"
                print(words, file=self.stream, flush=True)
            case PropertyFinished(record) if record.verdict != Verdict.NOT_OFFERED:
                self.done += 1
                line = f"[{self.done:>{len(str(self.total))}}/{self.total}] {record.verdict:<12} {record.id}"
                print(f"{line}  ({record.seconds:.1f} s)", file=self.stream, flush=True)


def verdict_table(event: RunFinished) -> Table:
    """One row per property."""
    rows = [
        (r.id, str(r.verdict), _count(r, r.examples), _count(r, r.discarded), _margin(r), _first_line(r.reason))
        for r in event.records
    ]
    return Table(
        f"Properties of {event.implementation}",
        ("property", "verdict", "examples", "discarded", "margin", "reason"),
        rows,
    )


def report(event: RunFinished) -> str:
    """The table, each violation's minimal case, and the denominator."""
    table = verdict_table(event)
    # one line each: the reasons of violations follow below, in full
    narrow = [[*row[:5], "" if row[1] == Verdict.VIOLATED else shorten(str(row[5]), 48)] for row in table.rows]
    parts = [tabulate(narrow, table.columns, disable_numparse=True)]
    parts += [violation(record) for record in event.records if record.verdict == Verdict.VIOLATED]
    parts.append(summary(event))
    return "\n\n".join(parts)


def summary(event: RunFinished) -> str:
    """The denominator in one line."""
    c = counts(event.records)
    examples = sum(r.examples for r in event.records)
    discarded = sum(r.discarded for r in event.records)
    return (
        f"{event.implementation}: {c['applicable']} properties applicable, {c['run']} run: {c['holds']} hold, "
        f"{c['violated']} violated, {c['inconclusive']} inconclusive, {c['suite_error']} suite errors; "
        f"{c['not_offered']} not offered. {examples} examples valid, {discarded} discarded. {event.seconds:.1f} s."
    )


def violation(record: Record) -> str:
    """A violated property: the claim, what happened, and the smallest case as Python that builds it."""
    lines = [f"VIOLATED {record.id}", f"  claim: {record.claim}", f"  source: {record.source}", f"  {record.reason}"]
    if record.counterexample is None:
        return "\n".join(lines)
    case = record.counterexample["case"]
    lines.append(f"  smallest case found: {case['tokens']} token(s), {case['dim']} dimension(s)")
    if "config" in case:
        lines.append(f"    config  {_options(case['config'])}")
    lines += [f"    {name:<7} {_array(value)}" for name, value in _arrays(case)]
    if "comparison" in record.counterexample:
        comparison = record.counterexample["comparison"]
        for side in ("got", "expected"):
            lines.append(f"    {side:<8} {_array(comparison[side])}")
    return "\n".join(lines)


def _arrays(case: dict[str, Any]) -> list[tuple[str, Any]]:
    found = [(name, case[name]) for name in ("x", "h", "memory") if name in case]
    return found + sorted(case.get("weights", {}).items())


def _array(values: Any) -> str:
    text = repr(_rounded(values))
    return text if len(text) <= 240 else f"{text[:160]}… (in full in --json)"


def _rounded(values: Any) -> Any:
    if isinstance(values, list):
        return [_rounded(v) for v in values]
    return float(f"{values:.6g}") if isinstance(values, float) else values


def _options(config: dict[str, Any]) -> str:
    return ", ".join(f"{key}={_rounded(value)}" for key, value in config.items())


def _count(record: Record, count: int) -> str:
    return "" if record.verdict == Verdict.NOT_OFFERED else str(count)


def _margin(record: Record) -> str:
    return "" if record.margin is None else f"{record.margin:.3g}"


def _first_line(reason: str | None) -> str:
    lines: Sequence[str] = (reason or "").splitlines()
    return lines[0] if lines else ""

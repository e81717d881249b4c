"""Progress while a run goes on, and its table when it is over."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from textwrap import fill, shorten
from typing import Any, TextIO

from cemverify import catalogue
from cemverify.conformance.implementations.faults import Crashed, Hung
from cemverify.conformance.judging.events import Event, PropertyFinished, RunFinished, RunStarted
from cemverify.conformance.judging.verdicts import Record, Verdict, asked_up_to, counts, violations
from cemverify.results import Table
from cemverify.tables import grid

_IN_FULL = 3  # violations that are shown with their cases


class ProgressLines:
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
        (
            r.id,
            _verdict(r),
            _count(r, r.examples),
            _telling(r),
            _count(r, r.discarded),
            _margin(r),
            r.part or "",
            _first_line(r.reason),
        )
        for r in event.records
    ]
    return Table(
        f"Properties of {event.implementation}",
        ("property", "verdict", "examples", "telling", "discarded", "margin", "wrong part", "reason"),
        rows,
    )


def report(event: RunFinished) -> str:
    """The table of what was asked, each violation, what could not be judged, what is not offered, the denominator."""
    asked = [r for r in event.records if r.verdict != Verdict.NOT_OFFERED]
    rows = [(r.id, _verdict(r), str(r.examples), _telling(r), str(r.discarded), _margin(r)) for r in asked]
    columns = ("property", "verdict", "examples", "telling", "discarded", "margin")
    return "\n\n".join([grid(Table("", columns, rows), "terminal"), findings(event)])


def findings(event: RunFinished) -> str:
    """The report without the table."""
    asked = [r for r in event.records if r.verdict != Verdict.NOT_OFFERED]
    parts = _violations(asked)
    undecided = (r for r in asked if r.verdict in (Verdict.INCONCLUSIVE, Verdict.SUITE_ERROR))
    parts += [f"{r.verdict.upper()} {r.id}\n  {r.reason}" for r in undecided if not r.not_enforced]
    parts += [f"NOT ENFORCED {r.id}\n  {r.verdict}, but {too_new(r)}\n  {r.reason}" for r in asked if r.not_enforced]
    if absent := _absences(event.records):
        parts.append(absent)
    if reach := how_far(event):
        parts.append(reach)
    parts.append(summary(event))
    return "\n\n".join(parts)


def too_new(record: Record) -> str:
    """Why a record is not enforced."""
    since = catalogue.introduced().get(record.id)
    return f"the property came with catalogue {since}, and this run is pinned to {record.newer_than}"


def how_far(event: RunFinished) -> str:
    """Up to which sizes anything that holds was asked; nothing is known beyond them. Empty if nothing was."""
    sizes = asked_up_to(event.records)
    listed = ", ".join(f"{letter} = {size}" for letter, size in sizes.items())
    return f"asked up to {listed}" if listed else ""


def _violations(records: Sequence[Record]) -> list[str]:
    """Violations, the most fundamental first: a few in full, then one line each."""
    violated = violations(records)
    parts = [violation(record) for record in violated[:_IN_FULL]]
    if rest := violated[_IN_FULL:]:
        lines = [f"  {r.id}: {f'[{r.part}] ' if r.part else ''}{shorten(r.reason or '', 110)}" for r in rest]
        parts.append(
            "\n".join([("ALSO VIOLATED, possibly for the same reason (cases in --json and --markdown)"), *lines])
        )
    return parts


def _absences(records: Sequence[Record]) -> str:
    """How many properties are not offered for want of what; each one's reason stands in the files."""
    absent = [r.reason or "" for r in records if r.verdict == Verdict.NOT_OFFERED]
    first = Counter(reason.partition(": ")[0] for reason in absent)
    listed = ", ".join(f"{name} ({count})" for name, count in first.most_common())
    return fill(f"not offered, by the first missing feature: {listed}", 110, subsequent_indent="  ") if absent else ""


def summary(event: RunFinished) -> str:
    """The denominator in one line."""
    c = counts(event.records)
    examples = sum(r.examples for r in event.records)
    known = f" ({c['known']} known)" if c["known"] else ""
    too_new = f" ({c['not_enforced']} of these not enforced)" if c["not_enforced"] else ""
    discarded = sum(r.discarded for r in event.records)
    return (
        f"{event.implementation}: {_number(c['applicable'], 'property')}, {c['run']} run: {c['holds']} hold, "
        f"{c['violated']} violated{known}, {c['inconclusive']} inconclusive, "
        f"{_number(c['suite_error'], 'suite error')}{too_new}; "
        f"{c['not_offered']} not offered. {_number(examples, 'valid example')}, {discarded} discarded, "
        f"{event.seconds:.1f} s."
    )


def violation(record: Record) -> str:
    """A violated property: the claim, what happened, and the smallest case with all its numbers.

    Where the process was lost there was no looking for a smaller one.
    """
    lines = [f"VIOLATED {record.id}", f"  claim: {record.claim}", f"  source: {record.source}", f"  {record.reason}"]
    if record.part is not None:
        lines.append(f"  wrong part: {record.part} ({record.because})")
    if record.counterexample is None:
        return "\n".join(lines)
    case = record.counterexample["case"]
    found = "case asked at that moment" if record.cause in (Hung.cause, Crashed.cause) else "smallest case found"
    lines.append(f"  {found}: {_size(case)}")
    if "config" in case:
        lines.append(f"    config  {_options(case['config'])}")
    lines += [f"    {name:<7} {_array(value)}" for name, value in _arrays(case)]
    if "comparison" in record.counterexample:
        comparison = record.counterexample["comparison"]
        for side in ("got", "expected"):
            lines.append(f"    {side:<8} {_array(comparison[side])}")
    if record.worst is not None:
        lines.append(f"  worst example seen: {_worst(record.worst)}")
    return "\n".join(lines)


def _worst(worst: Mapping[str, Any]) -> str:
    """The failing example with the largest margin, in one line."""
    got, expected = (f"{worst[side]:.6g}" for side in ("got_there", "expected_there"))
    size = _size(worst) if "tokens" in worst else "of unknown size"
    return f"{size}, got {got}, expected {expected}, margin {worst['margin']:.3g}"


def _size(case: Mapping[str, Any]) -> str:
    return f"{_number(case['tokens'], 'token')}, {_number(case['dim'], 'dimension')}"


def _number(count: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def _arrays(case: dict[str, Any]) -> list[tuple[str, Any]]:
    found = [(name, case[name]) for name in ("x", "h", "memory") if name in case]
    return found + sorted(case.get("weights", {}).items())


def _array(values: Any) -> str:
    text = repr(_rounded(values))
    return text if len(text) <= 240 else f"{text[:160]}… (in full in --json)"


def _rounded(values: Any) -> Any:
    if isinstance(values, list):
        return [_rounded(v) for v in values]
    return float(f"{values:.6g}") + 0.0 if isinstance(values, float) else values


def _options(config: dict[str, Any]) -> str:
    return ", ".join(f"{key}={_rounded(value)}" for key, value in config.items())


def _verdict(record: Record) -> str:
    excuse = ", known" if record.known is not None else ", not enforced" if record.not_enforced else ""
    return f"{record.verdict}{excuse}"


def _telling(record: Record) -> str:
    share = record.share
    return "" if share is None else f"{100 * share:.0f} %"


def _count(record: Record, count: int) -> str:
    return "" if record.verdict == Verdict.NOT_OFFERED else str(count)


def _margin(record: Record) -> str:
    return "" if record.margin is None else f"{record.margin:.3g}"


def _first_line(reason: str | None) -> str:
    lines: Sequence[str] = (reason or "").splitlines()
    return lines[0] if lines else ""

"""The diagnosis of a run in words: what is wrong, where, the smallest case, and the command that repeats it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from cemverify.conformance.judging.diagnosis import Cause, Diagnosis, diagnose
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import (
    Record,
    Verdict,
    case_heading,
    facts_of,
    headline,
    number,
    size,
    violation,
)
from cemverify.console.escaping import visible
from cemverify.console.streams import wrapped

_FACT = 72  # characters for an array of the case; longer ones are only in the files
_FEW = 4  # causes to name; further ones are counted
_IDS = 3


def report(diagnosis: Diagnosis, width: int | None = None) -> str:
    """The conclusion of a run, for the last lines of a terminal with 80 columns and 24 lines."""
    first = diagnosis.causes[0]
    lines = [f"{diagnosis.implementation}: {diagnosis.sentence}"]
    lines += [
        f"  {line}" for line in (*_of(first), *_of_functions(first.first, diagnosis.tested), *_case(first.first))
    ]
    commands = {"again": diagnosis.again, "mend": diagnosis.mend}
    lines += [f"  {name}: {command}" for name, command in commands.items() if command]
    for cause in diagnosis.causes[1:_FEW]:
        where = f", {cause.place}" if cause.place is not None else ""
        lines.append(f"also: {cause.name} ({number(len(cause.records), 'property')}, {cause.first.id}{where})")
    if rest := diagnosis.causes[_FEW:]:
        lines.append(f"also: {number(len(rest), 'other cause')}: {_listed([cause.first for cause in rest])}")
    if diagnosis.unexplained:
        lines.append(f"may follow from it: {_listed(diagnosis.unexplained)}")
    return wrapped("\n".join(lines), width)


def failure(event: RunFinished, record: Record, saved: str) -> str:
    """What the test of a violated property prints: all of it, or which earlier one failed for the same cause.

    Args:
        event: holds the violations so far, this one last. saved: the command that judges its saved case, if any.
    """
    own, every = diagnose(replace(event, records=[record])), diagnose(event)
    assert own is not None
    assert every is not None
    first = next((c.first.id for c in every.causes if any(r.id == record.id for r in c.records)), None)
    where, commands = own.causes[0].where, {"again": own.again, "mend": own.mend, "saved": saved}
    if first in (None, record.id):
        told = [headline(record), violation(record), *([f"  {where}"] if where else [])]
        if first is None:
            told.append(f"  may follow from: {every.causes[0].name} ({every.causes[0].first.id})")
        indent = "  "
    else:
        told, indent = [f"{headline(record)}; same cause as {first}{f', {where}' if where else ''}"], ""
        del commands["mend"]
    return "\n".join([*told, *(f"{indent}{name}: {command}" for name, command in commands.items() if command)])


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis for a result file."""
    return {
        "sentence": diagnosis.sentence,
        "again": diagnosis.again,
        "causes": [_cause_as_json(cause) for cause in diagnosis.causes],
        "unexplained": [record.id for record in diagnosis.unexplained],
    }


def in_a_line(cause: Cause) -> str:
    """A cause, its place and what shows it, on one line."""
    where = f"{cause.place}: " if cause.place is not None else ""
    return f"{where}{cause.name}{f': {cause.because}' if cause.because else ''}"


def github(diagnosis: Diagnosis) -> str:
    """One GitHub annotation for each cause: `::error file=...,line=...`."""
    annotations = []
    for cause in diagnosis.causes:
        at = {} if cause.place is None else {"file": cause.place.file, "line": cause.place.line}
        title = f"{number(len(cause.records), 'property')} violated: {cause.name}"
        more = ",".join(f"{key}={_escaped(str(value), ':,')}" for key, value in {**at, "title": title}.items())
        told = (cause.because, f"{cause.first.id}: {cause.first.reason}", diagnosis.again_of(cause))
        text = "\n".join(filter(None, told))
        annotations.append(f"::error {more}::{_escaped(text)}")
    return "\n".join(annotations)


def _escaped(text: str, also: str = "") -> str:
    for character in f"%\r\n{also}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _cause_as_json(cause: Cause) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": cause.name,
        "because": cause.because,
        "properties": [record.id for record in cause.records],
    }
    for key, at in (("place", cause.place), ("called_from", cause.called_from)):
        if at is not None:
            described[key] = {"file": at.file, "line": at.line, "function": at.name}
    if cause.edit is not None:
        edit, place = cause.edit, cause.edit.place
        described["edit"] = {"file": place.file, "line": place.line, "before": edit.before, "after": edit.after}
    return described


def _of(cause: Cause) -> Iterator[str]:
    if cause.because:
        yield cause.because
    if cause.where:
        yield cause.where
    if cause.edit is not None:
        yield f"suggested edit, {cause.edit.place}:"
        for sign, text in (("-", cause.edit.before), ("+", cause.edit.after)):
            yield from (f"  {sign} {line}" for line in visible(text).splitlines())


def _of_functions(record: Record, tested: Sequence[Record]) -> Iterator[str]:
    """For which functions a violated claim is violated and for which it holds; nothing if only one was tested."""
    name = record.id.rpartition("/")[2]
    functions: dict[Verdict, list[str]] = {record.verdict: []}  # fixes which comes first
    for other in tested:
        if (other.family, other.id.rpartition("/")[2], other.claim) == (record.family, name, record.claim):
            functions.setdefault(other.verdict, []).append(other.id.split("/")[1])
    if sum(map(len, functions.values())) > 1:
        told = "; ".join(f"{verdict} for {', '.join(of)}" for verdict, of in functions.items())
        yield f"{record.family}/*/{name}: {told}"


def _case(record: Record) -> Iterator[str]:
    """The smallest case of a record, with as many of its arrays on a line as fit."""
    if record.counterexample is None:
        return
    yield f"{case_heading(record)}, of {record.id}: {size(record.counterexample['case'])}"
    claim = record.counterexample.get("comparison", {}).get("claim")
    if record.part is not None and claim:  # its got may be the output, an update or an energy
        yield f"  compared: {claim}"
    line = ""
    for name, value in facts_of(record.counterexample, _FACT):
        fact = f"{name} {value if len(value) <= _FACT else f'{value[: _FACT - 2]} …'}"
        if line and len(line) + 2 + len(fact) > _FACT:
            yield f"  {line}"
            line = ""
        line = f"{line}  {fact}" if line else fact
    yield f"  {line}"


def _listed(records: Sequence[Record]) -> str:
    families = Counter(record.id.partition("/")[0] for record in records)
    if len(records) <= _IDS:
        return ", ".join(record.id for record in records)
    return ", ".join(f"{count} of {family}" for family, count in families.items())

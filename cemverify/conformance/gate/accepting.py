"""Writes the violations of a run to the file of known violations, and removes entries that no longer hold.

The file belongs to people: comments, order and spacing are preserved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from itertools import dropwhile
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.items import AoT, Comment, Whitespace

from cemverify.conformance.gate.known_violations import (
    KEYS,
    OPTIONAL,
    EntryStanding,
    document_of,
    parse_known,
    settle,
    text_of,
)
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.results.envelope import write_text

_PREFACE = """\
# Violations that are accepted for now: `cemverify check IMPLEMENTATION --known THIS_FILE` fails on any other one,
# and on an entry that has expired or whose property holds again. `--update-known --reason "..."` writes it.
"""


@dataclass(frozen=True)
class Acceptance:
    """Why violations are accepted, and until when."""

    reason: str
    expires: date


def update_known(
    path: Path, implementation: str, records: Sequence[Record], acceptance: Acceptance, today: date
) -> None:
    """Writes the file as `updated` returns it; creates it if it does not exist.

    Raises:
        ValueError: it is not a file of known violations.
    """
    text = text_of(path, "--update-known") if path.exists() else ""
    changed = updated(text, str(path), implementation, records, acceptance, today)
    if changed != text:
        write_text(path, changed)


def updated(
    text: str, name: str, implementation: str, records: Sequence[Record], acceptance: Acceptance, today: date
) -> str:
    """The text of a file in which no violation of these records is new and no entry is stale.

    New violations are added at the end. Entries that expired or name another cause get the given reason and
    date. Those whose property holds again or is not offered are deleted. Everything else in the file stays as it
    is, including comments and order; the comment lines right above a deleted entry go with it.

    Args:
        name: what errors call the text.

    Raises:
        ValueError: the text is not a file of known violations.
    """
    document: Any = document_of(text.rstrip("\n") + "\n", name)
    entries = parse_known(text, name)
    listed = {e.property for e in entries if e.implementation == implementation}
    _, settled = settle(implementation, records, entries, name, today)
    by_id = {record.id: record for record in records}
    for outcome in reversed(settled.outcomes):  # from the end, so that earlier indices stay valid
        entry, i = outcome.entry, entries.index(outcome.entry)
        record = by_id.get(entry.property)
        if outcome.standing in (EntryStanding.HOLDS, EntryStanding.NOT_OFFERED, EntryStanding.RETIRED):
            document = _without(document, i)
        elif record is not None and record.verdict == Verdict.VIOLATED and outcome.standing != EntryStanding.ACCEPTED:
            causes, table = {} if entry.excuses(record) else _causes(record), document["violation"][i]
            for name in set(OPTIONAL) - causes.keys() if causes else ():
                table.pop(name, None)
            table.update({**causes, **asdict(acceptance)})
    new = [r for r in records if r.verdict == Verdict.VIOLATED and r.id not in listed]
    if not tomlkit.dumps(document).strip():
        document = tomlkit.parse(_PREFACE)
    if new:
        tables = document.setdefault("violation", tomlkit.aot())
        for record in new:
            table = tomlkit.table()
            named = dict(zip(KEYS, (implementation, record.id), strict=False))
            table.update({**named, **_causes(record), **asdict(acceptance)})
            tables.append(table)
            tables[-1].trivia.indent = "\n"  # a blank line above
    return tomlkit.dumps(document)


def _causes(record: Record) -> dict[str, str]:
    optional = zip(OPTIONAL, (record.key, record.part), strict=True)
    return {"cause": record.cause or "*", **{name: str(value) for name, value in optional if value is not None}}


def _without(document: TOMLDocument, i: int) -> TOMLDocument:
    """The document without an entry and the comment lines right above it; comments below its last key are kept.

    For tomlkit, comments belong to the table above them, or to the document if there is none.
    """
    at, tables = next((n, item) for n, (_, item) in enumerate(document.body) if isinstance(item, AoT))
    own = tables[i].value.body
    last = max(n for n, (key, _) in enumerate(own, 1) if key is not None)
    below = list(dropwhile(lambda item: isinstance(item[1], Whitespace), own[last:]))
    del tables[i]
    above = tables[i - 1].value.body if i else document.body
    begin = end = len(above) if i else at
    while begin and isinstance(above[begin - 1][1], Comment):
        begin -= 1
    if not tables:
        end += 1  # the array itself, which would be written as `violation = []`
    above[begin:end] = below
    return tomlkit.parse(tomlkit.dumps(document).rstrip("\n") + "\n")  # parsed again, so that it knows all positions

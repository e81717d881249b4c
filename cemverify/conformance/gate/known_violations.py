"""Known violations: what is accepted for now, why, and until when. Everything else fails.

A TOML file, kept by people and written by `cemverify check --update-known`:

    [[violation]]
    implementation = "mypkg.cem:implementation"   # as it is named on the command line
    property = "gradient/attention/alibi"
    cause = "update = -eta P grad energy*"        # exact, or a shell pattern
    reason = "our slopes follow the older checkpoints"
    expires = 2027-02-19                          # the last day on which it is accepted

An entry excuses one property of one implementation, violated for that cause. One that excuses nothing any more is
itself an error: the list can only shrink towards the truth.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from difflib import get_close_matches
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import tomlkit

from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import catalogue
from cemverify.results import ResultError, write_text

_KEYS = ("implementation", "property", "cause", "reason", "expires")
_HEADER = re.compile(r"""\s*\[\[\s*(violation|"violation"|'violation')\s*\]\]""")
_PREFACE = """\
# Violations that are accepted for now: `cemverify check IMPLEMENTATION --known THIS_FILE` fails on any other one,
# and on an entry that has expired or whose property holds again. `--update-known --reason "..."` writes it.
"""


@dataclass(frozen=True)
class KnownViolation:
    """One entry.

    Attributes:
        implementation: the name it is checked under. property: an id of the catalogue.
        cause: what the record's cause must be, or a shell pattern of it. reason: why it is accepted.
        expires: the last day on which it is. line: where its header stands, from 1.
    """

    implementation: str
    property: str
    cause: str
    reason: str
    expires: date
    line: int

    def excuses(self, cause: str) -> bool:
        """Whether a violation for this cause is the one that is listed."""
        return cause == self.cause or fnmatchcase(cause, self.cause)


class Standing(StrEnum):
    """What a run says of an entry."""

    KNOWN = "known"
    OTHER_CAUSE = "other cause"
    EXPIRED = "expired"
    HOLDS = "holds again"
    NOT_OFFERED = "not offered"
    UNDECIDED = "undecided"
    NOT_ASKED = "not asked"


@dataclass(frozen=True)
class Outcome:
    """An entry, how it stands after a run, and that as a sentence."""

    entry: KnownViolation
    standing: Standing
    sentence: str

    @property
    def stale(self) -> bool:
        """Whether the entry is to be deleted, which fails the run; a violation for another cause fails by itself."""
        return self.standing in (Standing.EXPIRED, Standing.HOLDS, Standing.NOT_OFFERED)

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "line": self.entry.line,
            "property": self.entry.property,
            "cause": self.entry.cause,
            "reason": self.entry.reason,
            "expires": self.entry.expires.isoformat(),
            "standing": str(self.standing),
            "stale": self.stale,
            "sentence": self.sentence,
        }


@dataclass(frozen=True)
class Settled:
    """A file of known violations after a run.

    Attributes:
        name: the file. outcomes: of the entries for the implementation. elsewhere: how many are for other ones.
    """

    name: str
    outcomes: Sequence[Outcome]
    elsewhere: int

    @property
    def failed(self) -> bool:
        """Whether an entry is to be deleted."""
        return any(outcome.stale for outcome in self.outcomes)


# --- reading ------------------------------------------------------------------------------------


def read_known(path: Path) -> tuple[KnownViolation, ...]:
    """The entries of a file, of every implementation.

    Raises:
        ResultError: it cannot be read. ValueError: what is wrong with it, and on which line.
    """
    return parse_known(_text(path), str(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        hint = "; --update-known makes one" if isinstance(error, FileNotFoundError) else ""
        raise ResultError(f"cannot read {path}: {error.strerror or error}{hint}") from error
    except UnicodeDecodeError as error:
        raise ResultError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}), as TOML must be") from error


def parse_known(text: str, name: str) -> tuple[KnownViolation, ...]:
    """The entries in a text; `name` is what errors call it.

    Raises:
        ValueError: what is wrong with it, and on which line.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{name} is not TOML: {error}") from None
    if others := sorted(content.keys() - {"violation"}):
        raise ValueError(f"{name}: no key {others[0]!r}; the file consists of [[violation]] tables")
    tables = content.get("violation", [])
    lines = _header_lines(text)
    if not isinstance(tables, list) or len(lines) != len(tables):
        raise ValueError(f"{name}: start every entry on a line of its own with [[violation]]")
    ids = {property_.id for property_ in catalogue()}
    entries: dict[tuple[str, str], KnownViolation] = {}
    for table, line in zip(tables, lines, strict=True):
        try:
            entry = _entry(table, line, ids)
        except ValueError as error:
            raise ValueError(f"{name}, line {line}: {error}") from None
        if first := entries.get((entry.implementation, entry.property)):
            raise ValueError(
                f"{name}, line {line}: {entry.property} of {entry.implementation} stands on line {first.line} "
                "already; delete one of them"
            )
        entries[entry.implementation, entry.property] = entry
    return tuple(entries.values())


def _header_lines(text: str) -> list[int]:
    """The lines, from 1, on which entries begin. A header inside a multi-line string is none: TOML up to there is
    unfinished."""
    lines = text.split("\n")
    found: list[int] = []
    for i, line in enumerate(lines, 1):
        if _HEADER.match(line):
            try:
                tables = tomllib.loads("\n".join(lines[:i])).get("violation", [])
            except tomllib.TOMLDecodeError:
                continue
            if len(tables) == len(found) + 1:
                found.append(i)
    return found


def _entry(table: Mapping[str, Any], line: int, ids: set[str]) -> KnownViolation:
    if unknown := [key for key in table if key not in _KEYS]:
        raise ValueError(f"no key {unknown[0]!r}; an entry has {', '.join(_KEYS)}")
    for key in _KEYS[:-1]:
        if key not in table:
            raise ValueError(f"the entry lacks {key!r}; it needs {', '.join(_KEYS)}")
        if not isinstance(table[key], str) or not table[key].strip():
            raise ValueError(f"{key} must be a text that is not empty, not {table[key]!r}")
    if table["property"] not in ids:
        near = get_close_matches(table["property"], ids, 1)
        did_you_mean = f"did you mean {near[0]}?" if near else "see `cemverify list`"
        raise ValueError(f"there is no property {table['property']!r}; {did_you_mean}")
    expires = table.get("expires")
    if not isinstance(expires, date) or isinstance(expires, datetime):
        given = "nothing" if expires is None else repr(expires if isinstance(expires, str) else str(expires))
        raise ValueError(f"expires must be a date without quotes, like 2027-02-19, not {given}")
    return KnownViolation(table["implementation"], table["property"], table["cause"], table["reason"], expires, line)


def today() -> date:
    """The day by which entries expire, the same everywhere: UTC's."""
    return datetime.now(UTC).date()


# --- judging ------------------------------------------------------------------------------------


def settle(
    implementation: str, records: Sequence[Record], entries: Sequence[KnownViolation], name: str, today: date
) -> tuple[list[Record], Settled]:
    """The records, with the reason on those whose violation is known, and how each entry stands.

    Args:
        implementation: entries of other ones are only counted. name: of the file.
        today: an entry is accepted up to and on the day it expires.
    """
    by_id = {record.id: record for record in records}
    outcomes = [_outcome(e, by_id.get(e.property), today) for e in entries if e.implementation == implementation]
    reasons = {o.entry.property: o.entry.reason for o in outcomes if o.standing == Standing.KNOWN}
    settled = Settled(name, outcomes, len(entries) - len(outcomes))
    return [replace(record, known=reasons.get(record.id)) for record in records], settled


def _outcome(entry: KnownViolation, record: Record | None, today: date) -> Outcome:
    delete = f"delete the entry on line {entry.line}"
    if record is not None and record.verdict == Verdict.HOLDS:
        return Outcome(entry, Standing.HOLDS, f"{entry.property} holds again; {delete}")
    if record is not None and record.verdict == Verdict.NOT_OFFERED:
        return Outcome(entry, Standing.NOT_OFFERED, f"{entry.property} is not offered any more; {delete}")
    if today > entry.expires:
        return Outcome(entry, Standing.EXPIRED, f"{entry.property} was accepted until {entry.expires}; {delete}")
    if record is None:
        return Outcome(entry, Standing.NOT_ASKED, f"{entry.property} was not asked in this run")
    if record.verdict != Verdict.VIOLATED:
        return Outcome(entry, Standing.UNDECIDED, f"{entry.property} could not be judged: {record.reason}")
    if not entry.excuses(record.cause or ""):
        other = f"for another cause than line {entry.line} accepts: {record.cause}"
        return Outcome(entry, Standing.OTHER_CAUSE, f"{entry.property} is violated, but {other}")
    return Outcome(entry, Standing.KNOWN, f"{entry.property} is violated, accepted until {entry.expires}")


# --- writing ------------------------------------------------------------------------------------


def update_known(
    path: Path, implementation: str, records: Sequence[Record], *, reason: str, expires: date, today: date
) -> None:
    """Writes the file, see `updated`; makes it where there is none.

    Raises:
        ResultError: it cannot be read or written. ValueError: it is no file of known violations.
    """
    text = _text(path) if path.exists() else ""
    changed = updated(text, str(path), implementation, records, reason=reason, expires=expires, today=today)
    if changed != text:
        write_text(path, changed)


def updated(
    text: str, name: str, implementation: str, records: Sequence[Record], *, reason: str, expires: date, today: date
) -> str:
    """The text of a file after which no violation of these records is new and no entry is stale.

    New violations are added at the end, entries that expired or name another cause take the reason and date
    given, those whose property holds again or is not offered are deleted. Whatever else stands in the file stays
    as it is, comments and order too; the comment lines right above an entry go with it.

    Args:
        name: what errors call the file.

    Raises:
        ValueError: the text is not a file of known violations.
    """
    entries = parse_known(text, name)
    listed = {e.property for e in entries if e.implementation == implementation}
    _, settled = settle(implementation, records, entries, name, today)
    by_id = {record.id: record for record in records}
    lines = text.split("\n")
    limits = [e.line - 1 for e in entries[1:]] + [len(lines)]
    ends = {e.line: _end_of_entry(lines, e.line - 1, limit) for e, limit in zip(entries, limits, strict=False)}
    for outcome in reversed(settled.outcomes):  # from the end, so that the lines before stay where they are
        entry = outcome.entry
        record = by_id.get(entry.property)
        begin, end = entry.line - 1, ends[entry.line]
        if outcome.standing in (Standing.HOLDS, Standing.NOT_OFFERED):
            _delete(lines, begin, end)
        elif record is not None and record.verdict == Verdict.VIOLATED and outcome.standing != Standing.KNOWN:
            cause = entry.cause if entry.excuses(record.cause or "") else record.cause
            values = {"cause": cause, "reason": reason, "expires": expires}
            lines[begin:end] = _with_values("\n".join(lines[begin:end]), values).rstrip("\n").split("\n")
    kept = "\n".join(lines).rstrip("\n") or _PREFACE.rstrip("\n")
    new = [
        _written(KnownViolation(implementation, record.id, record.cause or "*", reason, expires, line=0))
        for record in records
        if record.verdict == Verdict.VIOLATED and record.id not in listed
    ]
    return "\n\n".join([kept, *new]) + "\n"


def _end_of_entry(lines: Sequence[str], begin: int, limit: int) -> int:
    """The line after its last key: blank lines and comments before the next header are not its own."""
    end = limit
    while end > begin + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return end


def _delete(lines: list[str], begin: int, end: int) -> None:
    while begin > 0 and lines[begin - 1].lstrip().startswith("#"):
        begin -= 1
    while end < len(lines) and not lines[end].strip():
        end += 1
    del lines[begin:end]


def _with_values(block: str, values: Mapping[str, Any]) -> str:
    document: Any = tomlkit.parse(block)
    document["violation"][0].update(values)
    return tomlkit.dumps(document)


def _written(entry: KnownViolation) -> str:
    return tomlkit.dumps({"violation": [{key: getattr(entry, key) for key in _KEYS}]}).rstrip("\n")

"""Known violations: what is accepted for now, why, and until when. Everything else fails.

A TOML file, kept by people and written by `cemverify check --update-known`:

    [[violation]]
    implementation = "mypkg.cem:implementation"   # its name on the command line
    property = "gradient/attention/alibi"
    cause = "update = -eta P grad energy"         # exact, or a shell pattern; ignored if there is a key
    key = "answer"                                # the cause for programs, as --update-known writes it; optional
    part = "bias"                                 # the part of the layer found to be wrong; optional
    reason = "our slopes follow the older checkpoints"
    expires = 2027-02-19                          # the last day on which it is accepted

An entry excuses one property of one implementation, violated for that cause, unless it and the run name
different parts. One that no longer excuses anything is itself an error: the list can only shrink towards the truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from difflib import get_close_matches
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT

from cemverify.catalogue.index import new_id, recorded, retired
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties.own import OWN
from cemverify.processes.inputs import read_text
from cemverify.results.envelope import ResultError

KEYS = ("implementation", "property", "cause", "reason", "expires")
OPTIONAL = ("key", "part")  # files from before 1.1 lack them
_FORMER = (("cached = right output", "cached = golden"), ("= right ", "= golden "))  # causes now, and in 1.0


@dataclass(frozen=True)
class KnownViolation:
    """One entry."""

    implementation: str  # the name under which it is checked
    property: str  # the property's id
    cause: str  # the record's cause, or a shell pattern for it; decides if there is no key
    reason: str  # why it is accepted
    expires: date  # the last day on which it is accepted
    line: int  # the line of its header, from 1
    key: str = ""  # the record's key; empty if the cause decides
    part: str = ""  # the record's wrong part, if it names one; empty if any will do

    def blames_another_part(self, record: Record) -> bool:
        """Whether both name a wrong part, but not the same."""
        return bool(self.part and record.part) and self.part != record.part

    def excuses(self, record: Record) -> bool:
        """Whether the entry covers a violation with the record's cause."""
        if self.blames_another_part(record):
            return False
        if self.key:
            return str(record.key) == self.key
        cause = former = record.cause or ""
        for now, before in _FORMER:
            former = former.replace(now, before)
        return any(each == self.cause or fnmatchcase(each, self.cause) for each in (cause, former))


class EntryStanding(StrEnum):
    """The state of an entry of the file of known violations after a run."""

    ACCEPTED = "known"
    OTHER_CAUSE = "other cause"
    EXPIRED = "expired"
    HOLDS = "holds again"
    NOT_OFFERED = "not offered"
    RETIRED = "retired"
    UNDECIDED = "undecided"
    NOT_ASKED = "not asked"


@dataclass(frozen=True)
class EntryOutcome:
    """An entry, its standing after a run, and a sentence about that."""

    entry: KnownViolation
    standing: EntryStanding
    sentence: str

    @property
    def stale(self) -> bool:
        """Whether to delete the entry, which fails the run; a violation for another cause fails by itself."""
        return self.standing in (EntryStanding.EXPIRED, EntryStanding.HOLDS, EntryStanding.NOT_OFFERED)

    def describe(self) -> dict[str, Any]:
        """The entry and its standing, as JSON."""
        return {
            **{name: getattr(self.entry, name) for name in ("line", "property", "cause", "part", "reason")},
            "expires": self.entry.expires.isoformat(),
            "standing": str(self.standing),
            "stale": self.stale,
            "sentence": self.sentence,
        }


@dataclass(frozen=True)
class Settled:
    """A file of known violations after a run."""

    name: str  # the file's name
    outcomes: Sequence[EntryOutcome]  # of the entries for the implementation
    elsewhere: int  # how many entries are for others

    @property
    def failed(self) -> bool:
        """Whether an entry has to be deleted."""
        return any(outcome.stale for outcome in self.outcomes)


# --- reading ------------------------------------------------------------------------------------


def read_known(path: Path, made_by: str = "--update-known") -> tuple[KnownViolation, ...]:
    """The entries of a file, for all implementations.

    Args:
        made_by: the option or the command that makes the file.

    Raises:
        ValueError: what is wrong with it, and on which line.
    """
    return parse_known(text_of(path, made_by), str(path))


def text_of(path: Path, made_by: str) -> str:
    """The contents of the file."""
    try:
        return read_text(path)
    except OSError as error:
        hint = f"; {made_by} creates it" if isinstance(error, FileNotFoundError) else ""
        raise ResultError(f"cannot read {path}: {error.strerror or error}{hint}") from error
    except UnicodeDecodeError as error:
        raise ResultError(f"{path} is not UTF-8, as TOML requires ({error.reason} at byte {error.start})") from error


def parse_known(text: str, name: str) -> tuple[KnownViolation, ...]:
    """The entries in a text; errors call it `name`.

    Raises:
        ValueError: what is wrong with it, and on which line.
    """
    document = document_of(text, name)
    tables, lines = document.unwrap().get("violation", []), _lines(document)
    ids = {*(property_.id for property_ in recorded()), *retired()}
    entries: dict[tuple[str, str], KnownViolation] = {}
    for table, line in zip(tables, lines, strict=True):
        try:
            entry = _entry(table, line, ids)
        except ValueError as error:
            raise ValueError(f"{name}, line {line}: {error}") from None
        if first := entries.get((entry.implementation, entry.property)):
            raise ValueError(
                f"{name}, line {line}: {entry.property} of {entry.implementation} is already listed on line "
                f"{first.line}; delete one of the two"
            )
        entries[entry.implementation, entry.property] = entry
    return tuple(entries.values())


def document_of(text: str, name: str) -> TOMLDocument:
    """The text as a document that can be edited, with nothing but [[violation]] tables.

    Raises:
        ValueError: it is not such a document.
    """
    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        raise ValueError(f"{name} is not TOML: {error}") from None
    if unknown := sorted(document.keys() - {"violation"}):
        raise ValueError(f"{name}: unknown key {unknown[0]!r}; the file may contain [[violation]] tables only")
    if not isinstance(document.get("violation", tomlkit.aot()), AoT):
        raise ValueError(f"{name}: start every entry on a line of its own with [[violation]]")
    return document


def _lines(document: TOMLDocument) -> list[int]:
    """The line, from 1, on which each entry begins: one below everything before it."""
    remaining: Any = deepcopy(document)
    lines: list[int] = []
    while "violation" in remaining:
        del remaining["violation"][-1]
        if not remaining["violation"]:
            del remaining["violation"]
        lines.append(tomlkit.dumps(remaining).count("\n") + 1)
    return lines[::-1]


def _entry(table: Mapping[str, Any], line: int, ids: set[str]) -> KnownViolation:
    if unknown := [key for key in table if key not in (*KEYS, *OPTIONAL)]:
        raise ValueError(f"unknown key {unknown[0]!r}; an entry has {', '.join(KEYS)}")
    for key in (*KEYS[:-1], *(key for key in OPTIONAL if key in table)):
        if key not in table:
            raise ValueError(f"the entry lacks {key!r}; it needs {', '.join(KEYS)}")
        if not isinstance(table[key], str) or not table[key].strip():
            raise ValueError(f"{key} must be a non-empty string, not {table[key]!r}")
    if set("*?[") & set(table["property"]) or any(id_.startswith(f"{table['property']}/") for id_ in ids):
        raise ValueError(f"no patterns here: name one property, not {table['property']!r}")
    if table["property"] not in ids and not table["property"].startswith(f"{OWN}/"):
        moved, near = new_id(table["property"], ids), get_close_matches(table["property"], ids, 1)
        hint = f"it is {moved} now" if moved else f"did you mean {near[0]}?" if near else "see `cemverify list`"
        raise ValueError(f"there is no property {table['property']!r}; {hint}")
    expires = table.get("expires")
    if not isinstance(expires, date) or isinstance(expires, datetime):
        text = "nothing" if expires is None else repr(expires if isinstance(expires, str) else str(expires))
        raise ValueError(f"expires must be a date without quotes, like 2027-02-19, not {text}")
    return KnownViolation(**{**table, "expires": expires}, line=line)


def today() -> date:
    """Today's date in UTC, which decides when entries expire."""
    return datetime.now(UTC).date()


# --- judging ------------------------------------------------------------------------------------


def settle(
    implementation: str, records: Sequence[Record], entries: Sequence[KnownViolation], name: str, today: date
) -> tuple[list[Record], Settled]:
    """The records, with the reason added to known violations, and each entry's standing.

    Args:
        implementation: entries for others are only counted. name: the file's.
        today: an entry is accepted up to and on the day it expires.
    """
    by_id = {record.id: record for record in records}
    outcomes = [_outcome(e, by_id.get(e.property), today) for e in entries if e.implementation == implementation]
    reasons = {o.entry.property: o.entry.reason for o in outcomes if o.standing == EntryStanding.ACCEPTED}
    settled = Settled(name, outcomes, len(entries) - len(outcomes))
    return [replace(record, known=reasons.get(record.id)) for record in records], settled


def _outcome(entry: KnownViolation, record: Record | None, today: date) -> EntryOutcome:
    name, delete = entry.property, f"delete the entry on line {entry.line}"
    violated, other = f"{name} is violated", f"not for the cause that line {entry.line} accepts"
    if record is not None and record.verdict == Verdict.HOLDS:
        standing, sentence = EntryStanding.HOLDS, f"{name} holds again; {delete}"
    elif record is not None and record.verdict == Verdict.NOT_OFFERED:
        standing, sentence = EntryStanding.NOT_OFFERED, f"{name} is no longer offered; {delete}"
    elif name in retired():
        standing, sentence = EntryStanding.RETIRED, f"{retired()[name]}; {delete}"
    elif today > entry.expires:
        standing, sentence = EntryStanding.EXPIRED, f"{name} was accepted until {entry.expires}; {delete}"
    elif record is None:
        standing, sentence = EntryStanding.NOT_ASKED, f"{name} was not tested in this run"
    elif record.verdict != Verdict.VIOLATED:
        standing, sentence = EntryStanding.UNDECIDED, f"{name} could not be judged: {record.reason}"
    elif not entry.excuses(record):
        found = f"{record.part}, not {entry.part}" if entry.blames_another_part(record) else record.cause
        standing, sentence = EntryStanding.OTHER_CAUSE, f"{violated}, but {other}: {found}"
    else:
        standing, sentence = EntryStanding.ACCEPTED, f"{violated}, accepted until {entry.expires}"
    return EntryOutcome(entry, standing, sentence)

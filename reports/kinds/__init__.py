"""Each kind of result in one sentence, and in tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cemverify.results.envelope import tables_of
from reports.kinds import benchmarks, check, claims, power, readings
from synthetic.figures.sheets import Sheet
from synthetic.studies.recursion import tables as recursion
from synthetic.studies.side_by_side import tables as language

Content = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """How results of one kind are read."""

    headline: Callable[[Content], str]  # the result in one sentence
    # its tables; if folded, neighbouring rows that say the same are merged
    sheets: Callable[[Content, bool], Sequence[Sheet]]
    # how many of the tables stored in the file, from the first on, the sheets replace. A stored table with the title
    # of a sheet is also replaced by it
    replaced: int
    # narrow tables for a paper, printed instead of all others or on request
    summaries: Callable[[Content], Sequence[Sheet]] | None = None


KINDS: Mapping[str, Kind] = {
    "check": Kind(check.headline, check.sheets, 1),
    "power": Kind(power.headline, power.sheets, 1),
    "claims": Kind(claims.headline, claims.sheets, 1),
    "recursion": Kind(recursion.headline, recursion.sheets, 0, recursion.summaries),
    "language": Kind(language.headline, language.sheets, 1),
    "readings": Kind(readings.headline, readings.sheets, 1, readings.summaries),
    "benchmarks": Kind(benchmarks.headline, benchmarks.sheets, 0),
}


def places(columns: Sequence[str], asked: Sequence[str]) -> list[int]:
    """The indices of the requested columns: those with this name, or else those whose names begin with it."""
    found: list[int] = []
    for name in asked:
        exact = [i for i, column in enumerate(columns) if column.lower() == name.lower()]
        found += exact or [i for i, column in enumerate(columns) if column.lower().startswith(name.lower())]
    return list(dict.fromkeys(found))


def headline(content: Content) -> str:
    """A result in one sentence; for an unknown kind, the title of its first table."""
    if content["kind"] in KINDS:
        return KINDS[content["kind"]].headline(content)
    return str(content["tables"][0]["title"]) if content["tables"] else f"a result of kind {content['kind']}"


def sheets_of(content: Content, fold: bool, narrow: bool = False) -> list[Sheet]:
    """The tables of a result: first those made from its numbers, then those that exist only as stored in the file.

    Args:
        narrow: whether to include narrow tables, which repeat others in fewer columns.
        fold: whether to merge rows that say the same.

    Raises:
        KeyError, TypeError, IndexError: the result lacks something that its kind has.
    """
    stored, kind = tables_of(content), KINDS.get(content["kind"])
    sheets: list[Sheet] = []
    if kind is not None:
        sheets = [*(kind.summaries(content) if narrow and kind.summaries else ()), *kind.sheets(content, fold)]
        sheets = [replace(sheet, name=sheet.name or content["kind"]) for sheet in sheets]
        titles = {sheet.caption for sheet in sheets}
        stored = [table for table in stored[kind.replaced if sheets else 0 :] if table.title not in titles]
    return sheets + [Sheet.of(table, "stored") for table in stored]

"""What each kind of result says: in one sentence, and in tables."""

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
    # its tables; folded, they leave out rows that say the same as their neighbours
    sheets: Callable[[Content, bool], Sequence[Sheet]]
    # how many of the tables stored in the file, the first ones, the sheets say again. Beside these, a stored table
    # that has the title of a sheet is that sheet
    replaced: int
    # narrow ones for a paper, which are printed instead of all others or where they are asked for
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
    """Where the columns asked for stand: those of that name, or else those whose names begin so."""
    found: list[int] = []
    for name in asked:
        exact = [i for i, column in enumerate(columns) if column.lower() == name.lower()]
        found += exact or [i for i, column in enumerate(columns) if column.lower().startswith(name.lower())]
    return list(dict.fromkeys(found))


def headline(content: Content) -> str:
    """A result in one sentence; of a kind that has none, its first table's title."""
    if content["kind"] in KINDS:
        return KINDS[content["kind"]].headline(content)
    return str(content["tables"][0]["title"]) if content["tables"] else f"a result of kind {content['kind']}"


def sheets_of(content: Content, fold: bool, narrow: bool = False) -> list[Sheet]:
    """The tables of a result, those that its kind makes of its numbers first, then those stored in the file alone.

    Args:
        narrow: whether those are among them that say again what others say, in fewer columns.
        fold: whether rows that say the same are one row.

    Raises:
        KeyError, TypeError, IndexError: the result lacks what its kind has.
    """
    stored, kind = tables_of(content), KINDS.get(content["kind"])
    sheets: list[Sheet] = []
    if kind is not None:
        sheets = [*(kind.summaries(content) if narrow and kind.summaries else ()), *kind.sheets(content, fold)]
        sheets = [replace(sheet, name=sheet.name or content["kind"]) for sheet in sheets]
        titles = {sheet.caption for sheet in sheets}
        stored = [table for table in stored[kind.replaced if sheets else 0 :] if table.title not in titles]
    return sheets + [Sheet.of(table, "stored") for table in stored]

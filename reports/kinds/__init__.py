"""What each kind of result says: in one sentence, and in tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cemverify.results.envelope import Table, tables_of
from cemverify.results.tables import csv_rows
from reports.kinds import benchmarks, check, claims, language, power, readings, recursion
from reports.sheets import Sheet, numbers, printed

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


KINDS: Mapping[str, Kind] = {
    "check": Kind(check.headline, check.sheets, 1),
    "power": Kind(power.headline, power.sheets, 1),
    "claims": Kind(claims.headline, claims.sheets, 1),
    "recursion": Kind(recursion.headline, recursion.sheets, 0),
    "language": Kind(language.headline, language.sheets, 1),
    "readings": Kind(readings.headline, readings.sheets, 1),
    "benchmarks": Kind(benchmarks.headline, benchmarks.sheets, 0),
}


@dataclass(frozen=True)
class PrintedTable:
    """One table of a result: for people, and as CSV for programs."""

    table: Table
    csv: str


def headline(content: Content) -> str:
    """A result in one sentence; of a kind that has none, its first table's title."""
    if content["kind"] in KINDS:
        return KINDS[content["kind"]].headline(content)
    return str(content["tables"][0]["title"]) if content["tables"] else f"a result of kind {content['kind']}"


def printed_tables(content: Content, fold: bool, mark: str = "Bold") -> list[PrintedTable]:
    """All tables of a result, those that its kind makes of its numbers first, then those stored in the file alone.

    Args:
        fold: whether rows that say the same are one row. mark: as in `printed`.

    Raises:
        KeyError, TypeError, IndexError: the result lacks what its kind has.
    """
    stored = tables_of(content)
    kind = KINDS.get(content["kind"])
    tables = []
    if kind is not None:
        tables = [PrintedTable(printed(sheet, mark), numbers(sheet)) for sheet in kind.sheets(content, fold)]
        titles = {one.table.title for one in tables}
        stored = [table for table in stored[kind.replaced if tables else 0 :] if table.title not in titles]
    return tables + [PrintedTable(table, csv_rows(table)) for table in stored]

"""A table whose cells are numbers with units and uncertainties, before anything is rounded.

For people, numbers are rounded by their uncertainty, with the best in bold; programs get every digit as CSV.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from cemverify.results.envelope import Cell, Table
from cemverify.results.numbers import NOTHING
from cemverify.results.tables import Strong, cell_text, csv_rows


@dataclass(frozen=True)
class Quantity:
    """A number, with its uncertainty and remarks."""

    value: float | None  # in the unit of its column; None if there is none
    spread: float | None = None  # its standard deviation or standard error, in the same unit
    interval: tuple[float, float] | None = None  # its ends, in the same unit
    best: bool = False  # whether it is the best of its column by a paired test
    note: str = ""  # why there is no value, printed in its place


Entry = str | int | float | Quantity | None


@dataclass(frozen=True)
class Column:
    """The heading of a column, and how its numbers are printed."""

    name: str
    # "" for a name or a plain number; "%" multiplies by 100 in print, but not in CSV
    unit: str = ""
    digits: int = 3  # significant digits of numbers without an uncertainty
    # formats a number, if the page has its own format; None rounds by the uncertainty
    text: Callable[[Quantity], str] | None = None
    about: str = ""  # explains it in the title of the table
    spare: bool = False  # whether it is printed only on request

    @property
    def heading(self) -> str:
        """The name of the column, with its unit unless that is per cent."""
        return f"{self.name} [{self.unit}]" if self.unit not in ("", "%") else self.name


@dataclass(frozen=True)
class Group:
    """Rows that belong together, set apart from others: models, baselines, floors."""

    name: str
    rows: Sequence[Sequence[Entry]]


@dataclass(frozen=True)
class Sheet:
    """A table of numbers, with their units and uncertainties, in groups of rows."""

    title: str  # one line
    columns: Sequence[Column]  # its headings
    groups: Sequence[Group]  # its rows
    legend: str = ""  # one sentence below it
    best: str = ""  # what is true of the best numbers, as the end of a sentence
    name: str = ""  # for requesting it, if a result has several kinds of tables

    @property
    def rows(self) -> Iterator[Sequence[Entry]]:
        """The rows of all groups, in their order."""
        for group in self.groups:
            yield from group.rows

    @property
    def caption(self) -> str:
        """The title, and the explanations of the columns."""
        told = "; ".join(column.about for column in self.columns if column.about)
        return f"{self.title}: {told}" if told else self.title

    @staticmethod
    def of(table: Table, name: str) -> Sheet:
        """A table that is stored as text."""
        rows = [[cell_text(cell) for cell in row] for row in table.rows]
        return Sheet(table.title, [Column(column) for column in table.columns], [Group("", rows)], name=name)

    def only(self, at: Sequence[int]) -> Sheet:
        """The table with only the columns at these indices."""
        groups = [replace(group, rows=[[row[i] for i in at] for row in group.rows]) for group in self.groups]
        return replace(self, columns=[self.columns[i] for i in at], groups=groups)


def printed(sheet: Sheet, mark: str = "Bold") -> Table:
    """The table for people: rounded by the uncertainty, groups set apart, the legend below.

    Args:
        mark: how the best is printed, the beginning of the sentence about it.
    """

    def cell(entry: Entry, column: Column) -> Cell:
        if isinstance(entry, int | float) and not isinstance(entry, bool):
            entry = Quantity(entry)
        if not isinstance(entry, Quantity):
            return NOTHING if entry is None else entry
        if entry.value is None:
            return entry.note or NOTHING
        text = rounded(entry, column) if column.text is None else column.text(entry)
        return Strong(text) if entry.best else text

    rows: list[list[Cell]] = []
    rules: list[int] = []
    for group in sheet.groups:
        if rows and group.rows:
            rules.append(len(rows))
        rows += [
            [cell(entry, column) for entry, column in zip(row, sheet.columns, strict=True)] for row in group.rows
        ]
    is_marked = any(isinstance(cell, Strong) for row in rows for cell in row)
    below = [*([f"{mark} marks {sheet.best}."] if is_marked else []), *([sheet.legend] if sheet.legend else [])]
    return Table(sheet.caption, [column.heading for column in sheet.columns], rows, rules, below)


def plain(sheet: Sheet) -> Table:
    """The table as a result file keeps it: rounded, with nothing in bold, no lines between groups and no notes."""
    table = printed(sheet)
    rows = [[str(cell) if isinstance(cell, str) else cell for cell in row] for row in table.rows]
    return Table(table.title, table.columns, rows)


def numbers(sheet: Sheet) -> str:
    """The table for programs: CSV with every digit, the unit in the heading, one column for each uncertainty."""
    groups = len(sheet.groups) > 1
    heading = ["group"] if groups else []
    lines: list[list[Cell]] = [[group.name] if groups else [] for group in sheet.groups for _ in group.rows]
    for i, column in enumerate(sheet.columns):
        share = " [share]" if column.unit == "%" else f" [{column.unit}]" if column.unit else ""
        parts = [_parts(row[i]) for row in sheet.rows]
        for k, name in enumerate(_PARTS):
            cells = [part[k] for part in parts]
            if name and cells == [None] * len(cells):
                continue
            heading.append(f"{column.name}{name}{'' if name == ' note' else share}")
            for line, cell in zip(lines, cells, strict=True):
                line.append(cell)
    return csv_rows(Table(sheet.title, heading, lines))


def rounded(quantity: Quantity, column: Column) -> str:
    """A quantity with two digits of its uncertainty; without one, with the column's number of digits."""
    value, spread = quantity.value, quantity.spread
    if value is None:
        return NOTHING
    scale, sign = (100.0, " %") if column.unit == "%" else (1.0, "")
    value *= scale
    if not math.isfinite(value):
        return str(value)
    if quantity.interval is not None:
        low, high = (end * scale for end in quantity.interval)
        places = _places((high - low) / 2, column, value)
        return f"{value:,.{places}f}{sign} [{low:,.{places}f}, {high:,.{places}f}]"
    if spread is not None:
        spread *= scale
        if abs(value) >= 1e6 or 0 < spread < 1e-6:
            return f"{value:.3g} ± {spread:.2g}{sign}"
        places = _places(spread, column, value)
        return f"{value:,.{places}f} ± {spread:,.{places}f}{sign}"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}{sign}"
    if not 1e-4 <= abs(value) < 1e7:
        return f"{value:.{column.digits - 1}e}{sign}"
    return f"{value:,.{_places(None, column, value)}f}{sign}"


def _places(uncertainty: float | None, column: Column, value: float) -> int:
    """The decimal places of a value: two digits of its uncertainty, or the column's number of digits."""
    if uncertainty is not None and uncertainty > 0 and math.isfinite(uncertainty):
        return min(8, max(0, 1 - math.floor(math.log10(uncertainty))))
    return min(8, max(0, column.digits - 1 - math.floor(math.log10(abs(value))))) if value else 0


# The CSV columns of a quantity, by the end of their names; a column that would be empty is left out.
_PARTS = ("", " ±", " low", " high", " note")


def _parts(entry: Entry) -> tuple[Cell, ...]:
    if not isinstance(entry, Quantity):
        return (entry, None, None, None, None)
    return (entry.value, entry.spread, *(entry.interval or (None, None)), entry.note or None)

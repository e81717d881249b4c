"""Tables as text: for a terminal, as Markdown, CSV or LaTeX.

Every renderer takes the same two arguments: the tables, and one line for each that says what made it (or no
lines at all, as when a study prints its own table). Whoever makes a table rounds, so that a figure reads the same in
every format. Text is escaped here and nowhere else, once for each format, so that nothing in a title, an origin or a
cell can open another cell, heading, command or link.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from tabulate import tabulate

from cemverify.lines import one_line, visible
from cemverify.results import Cell, Table

Renderer = Callable[[Sequence[Table], Sequence[str]], str]
Style = Literal["terminal", "boxed", "markdown", "latex"]

_FIGURE = re.compile(r"[+\-−<>]*\d(?!\w*-[a-z])")
# What a spreadsheet computes; +1.5, -0.3 and "- 2" are no formulas.
_FORMULA = re.compile(r"[=@]|[+-](?![\d.\s]|$|inf|nan)", re.IGNORECASE)
_TABULATE: Mapping[Style, str] = MappingProxyType(
    {"terminal": "simple", "boxed": "simple_grid", "markdown": "github", "latex": "latex_booktabs"}
)


def terminal(tables: Sequence[Table], origins: Sequence[str] = ()) -> str:
    """Tables for a fixed-width terminal.

    Args:
        tables: what to print.
        origins: one line for each table, printed below its title; or none.

    Raises:
        ValueError: there are some origins, but not one for each table; or a row is not as long as its heading.
    """
    return "\n\n".join(
        "\n".join([*(one_line(line) for line in lines), "", grid(table, "terminal")])
        for table, lines in _pairs(tables, origins)
    )


def markdown(tables: Sequence[Table], origins: Sequence[str] = ()) -> str:
    """Tables in GitHub's Markdown; arguments and errors as in `terminal`."""
    return "\n\n".join(
        "\n\n".join([f"## {title}", *origin, grid(table, "markdown")])
        for table, lines in _pairs(tables, origins)
        for title, *origin in [[markdown_cell(line) for line in lines]]
    )


def comma_separated(tables: Sequence[Table], origins: Sequence[str] = ()) -> str:
    """Tables as CSV (RFC 4180 but for plain newlines); title and origin are lines that begin with #.

    Arguments and errors as in `terminal`.
    """
    return "\n".join(
        "".join(f"# {one_line(line)}\n" for line in lines) + csv_rows(table)
        for table, lines in _pairs(tables, origins)
    ).rstrip("\n")


def latex(tables: Sequence[Table], origins: Sequence[str] = ()) -> str:
    """Tables for LaTeX with the booktabs package; title and origin are comments.

    Arguments and errors as in `terminal`.
    """
    return "\n\n".join(
        "\n".join([*(f"% {one_line(line)}" for line in lines), grid(table, "latex")])
        for table, lines in _pairs(tables, origins)
    )


def grid(table: Table, style: Style) -> str:
    """Heading and rows of one table, without its title; columns of figures are flush right.

    Args:
        style: "terminal", "boxed" for cells of several lines, "markdown" (GitHub's, escaped) or "latex" (booktabs).
    """
    text = _CELL[style]
    columns = [text(column) for column in table.columns]
    rows = [[text(cell) for cell in row] for row in table.rows]
    # tabulate would print the text 0.10 as 0.1, hence disable_numparse; then it no longer aligns numbers itself
    numeric = [_is_numeric([row[i] for row in rows]) for i in range(len(columns))]
    return tabulate(
        rows,
        headers=columns,
        tablefmt=_TABULATE[style],
        colalign=["right" if right else "left" for right in numeric] if any(numeric) else None,
        disable_numparse=True,
        preserve_whitespace=True,
    )


def markdown_cell(cell: Cell) -> str:
    """A cell as GitHub's Markdown: no new cell, no HTML, no link and no image."""
    text = one_line(_text(cell)).replace("\\", "\\\\").replace("|", "\\|")
    text = re.sub(r"<(?=[A-Za-z/!?])", "\\<", text)
    return re.sub(r"\](?=[(\[])", "\\]", text)


def csv_cell(cell: Cell) -> str:
    """A cell as a spreadsheet shows it: what would be a formula there is text."""
    text = visible(_text(cell))
    return f"'{text}" if isinstance(cell, str) and _FORMULA.match(text) else text


def csv_rows(table: Table) -> str:
    """Heading and rows of one table as CSV, nothing else: a file that a spreadsheet opens."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([csv_cell(column) for column in table.columns])
    writer.writerows([csv_cell(cell) for cell in row] for row in table.rows)
    return buffer.getvalue()


RENDERERS: Mapping[str, Renderer] = MappingProxyType(
    {"terminal": terminal, "markdown": markdown, "csv": comma_separated, "latex": latex}
)


def _pairs(tables: Sequence[Table], origins: Sequence[str]) -> list[tuple[Table, list[str]]]:
    """Each table with what stands above it: its title, and its origin if there are some."""
    for table in tables:
        for row in table.rows:
            if len(row) != len(table.columns):
                raise ValueError(f"table {table.title!r} has {len(table.columns)} columns, but a row of {len(row)}")
    if not origins:
        return [(table, [table.title]) for table in tables]
    return [(table, [table.title, origin]) for table, origin in zip(tables, origins, strict=True)]


def _is_numeric(cells: Sequence[str]) -> bool:
    """Whether a column holds figures, and so reads better flush right; names such as 4-concave are none."""
    filled = [cell for cell in cells if cell not in ("", "–")]
    return bool(filled) and all(_FIGURE.match(cell) for cell in filled)


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return str(cell)


def _visible(cell: Cell) -> str:
    return visible(_text(cell))


def _flat(cell: Cell) -> str:
    return one_line(_text(cell))


_CELL: Mapping[Style, Callable[[Cell], str]] = MappingProxyType(
    {"terminal": _visible, "boxed": _visible, "markdown": markdown_cell, "latex": _flat}
)

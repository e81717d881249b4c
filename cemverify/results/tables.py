"""Tables as text: for a terminal, as Markdown, CSV or LaTeX.

Every renderer takes the same two arguments: the tables, and one line for each that says what made it (or no
lines at all, as when a study prints its own table). A table's maker rounds its figures, so that they read the same in
every format. Text is escaped only here, once for each format, so that nothing in a title, an origin or a cell can
open another cell, heading, command or link.
"""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from tabulate import SEPARATING_LINE, tabulate

from cemverify.console.escaping import one_line, visible
from cemverify.results.envelope import Cell, Table

Renderer = Callable[[Sequence[Table], Sequence[str]], str]
Style = Literal["terminal", "markdown", "latex"]

# A column of text is never made narrower than this, and a narrower one is left as it is.
_NARROW = 14
# A column with longer text is broken into lines in LaTeX.
_LONG = 30
# Put around what stands out while tabulate works: control characters, which no escaped text contains.
_OPEN, _CLOSE = "\x02", "\x03"

_FIGURE = re.compile(r"[+\-−<>]*\d(?!\w*-[a-z])")
# What a spreadsheet would compute; +1.5, -0.3 and "- 2" are not formulas.
_FORMULA = re.compile(r"[=@]|[+-](?![\d.\s]|$|inf|nan)", re.IGNORECASE)
# What LaTeX's fonts have only in math mode, and tabulate leaves as it is.
_MATH: Mapping[str, str] = {"|": "$|$", "→": r"$\rightarrow$"}
_TABULATE: Mapping[Style, str] = {"terminal": "simple", "markdown": "github", "latex": "latex_booktabs"}


class Strong(str):
    """A cell that stands out: bold in Markdown and LaTeX, marked with a star in a terminal."""


def terminal(tables: Sequence[Table], origins: Sequence[str] = (), width: int | None = None) -> str:
    """Tables for a fixed-width terminal.

    Args:
        tables: what to print.
        origins: one line for each table, printed below its title; or none.
        width: columns of the terminal. In a wider table, text is wrapped; if it is still too wide, it is split into
            blocks below each other, each with the first column. None prints every row on one line.

    Raises:
        ValueError: there are origins, but not one for each table; or a row is not as long as its heading.
    """
    return "\n\n".join(
        "\n".join([*_wrapped(lines, width), "", *_blocks(table, width), *_wrapped(table.notes, width)])
        for table, lines in _pairs(tables, origins)
    )


def markdown(tables: Sequence[Table], origins: Sequence[str] = ()) -> str:
    """Tables in GitHub's Markdown; arguments and errors as in `terminal`."""
    return "\n\n".join(
        "\n\n".join([f"## {title}", *origin, grid(table, "markdown"), *map(markdown_cell, table.notes)])
        for table, lines in _pairs(tables, origins)
        for title, *origin in [[markdown_cell(line) for line in lines]]
    )


def comma_separated(tables: Sequence[Table], origins: Sequence[str] = (), rows: Sequence[str] | None = None) -> str:
    """Tables as CSV (RFC 4180 except for plain newlines); title and origin are lines that begin with #.

    Args:
        rows: for each table its heading and rows, if there are better ones than those printed.

    Other arguments and errors as in `terminal`.
    """
    csvs = [csv_rows(table) for table in tables] if rows is None else rows
    return "\n".join(
        "".join(f"# {one_line(line)}\n" for line in lines) + csv
        for (_, lines), csv in zip(_pairs(tables, origins), csvs, strict=True)
    ).rstrip("\n")


def latex(tables: Sequence[Table], origins: Sequence[str] = ()) -> str:
    """Tables for LaTeX with the booktabs package, each a float with a caption; title and origin are comments too.

    Arguments and errors as in `terminal`.
    """
    return "\n\n".join(
        "\n".join(
            [
                *(f"% {one_line(line)}" for line in lines),
                r"\begin{table}[htbp]",
                r"\centering\footnotesize\setlength{\tabcolsep}{4pt}",
                rf"\caption{{{_latex_text(table.title)}}}",
                *([rf"\label{{tab:{table.label}}}"] if table.label else []),
                grid(table, "latex"),
                *(rf"\par {_latex_text(note)}" for note in table.notes),
                r"\end{table}",
            ]
        )
        for table, lines in _pairs(tables, origins)
    )


def grid(table: Table, style: Style) -> str:
    """Heading and rows of one table, without its title; columns of figures are flush right.

    Args:
        style: "terminal", "markdown" (GitHub's, escaped) or "latex" (booktabs).
    """
    text = _CELL[style]
    columns = [text(column) for column in table.columns]
    before, after = {"markdown": ("**", "**"), "latex": (_OPEN, _CLOSE)}.get(style, ("", " *"))  # what stands out
    rows = [
        [f"{before}{words}{after}" if isinstance(cell, Strong) and words else words
         for cell, words in zip(row, map(text, row), strict=True)]
        for row in table.rows
    ]  # fmt: skip
    # tabulate would print the text 0.10 as 0.1, hence disable_numparse; then it no longer aligns numbers itself
    numeric = [is_numeric([row[i].strip("*" + _OPEN) for row in rows]) for i in range(len(columns))]
    for at in sorted(table.rules, reverse=True):
        # Markdown has no line inside a table, but it has empty rows
        rows.insert(at, [""] * len(columns) if style == "markdown" else [SEPARATING_LINE])
    text_ = tabulate(
        rows,
        headers=columns,
        tablefmt=_TABULATE[style],
        colalign=["right" if right else "left" for right in numeric] if any(numeric) else None,
        disable_numparse=True,
        preserve_whitespace=True,
    )
    if style != "latex":
        return text_
    lengths = [max((len(row[i]) for row in rows if len(row) > i), default=0) for i in range(len(columns))]
    kinds = ["r" if right else "l" if n <= _LONG else "p{14em}" for right, n in zip(numeric, lengths, strict=True)]
    rest = "".join(_MATH.get(c, c) for c in text_.split("}", 2)[2])  # after \begin{tabular}{...}
    text_ = rf"\begin{{tabular}}{{{''.join(kinds)}}}{rest}"
    return text_.replace(_OPEN, r"\textbf{").replace(_CLOSE, "}")


def folded(summary: str, *parts: str) -> str:
    """A part of a page in Markdown that is closed at first, on GitHub and on the site."""
    return "\n\n".join([f"<details>\n<summary>{summary}</summary>", *parts, "</details>"])


def fitted(table: Table, width: int) -> str:
    """A table for a terminal of so many columns: wrapped, and in blocks below each other if necessary."""
    return "\n".join(_blocks(table, width))


def _wrapped(lines: Sequence[str], width: int | None) -> list[str]:
    flat = [one_line(line) for line in lines]
    return flat if width is None else [part for line in flat for part in textwrap.wrap(line, max(width, 20)) or [""]]


def _blocks(table: Table, width: int | None) -> Iterator[str]:
    """The table, or the parts of one that is wider than the terminal."""
    if width is None:
        yield grid(table, "terminal")
        return
    narrow = narrowed(table, width)
    widths = _widths(narrow)
    start = 1
    blocks: list[Table] = []
    while start < len(widths) or not blocks:
        stop, left = start, width - (widths[0] if widths else 0)
        while stop < len(widths) and (stop == start or left >= widths[stop] + 2):
            left -= widths[stop] + 2
            stop += 1
        chosen = [0, *range(start, stop)] if widths else []
        rows = [[row[i] for i in chosen] for row in narrow.rows]
        blocks.append(Table(table.title, [narrow.columns[i] for i in chosen], rows, table.rules))
        start = max(stop, start + 1)
    for i, block in enumerate(blocks):
        yield ("\n" if i else "") + grid(block, "terminal")


def narrowed(table: Table, width: int) -> Table:
    """The table with its columns of text wrapped, the widest first, as far as needed and sensible.

    Text that starts with spaces, as below a heading, stays indented.
    """
    widths = _widths(table)
    texts = [i for i, column in enumerate(_columns(table)) if not is_numeric([_visible(cell) for cell in column])]
    allowed = list(widths)
    while sum(allowed) + 2 * (len(allowed) - 1) > width:
        widest = max((i for i in texts if allowed[i] > _NARROW), key=lambda i: allowed[i], default=None)
        if widest is None:
            break
        allowed[widest] -= 1

    def fitted(cell: Cell, i: int) -> Cell:
        if allowed[i] == widths[i] or not isinstance(cell, str):
            return cell
        lines = [part for line in visible(cell).split("\n") for part in _indented(line, allowed[i])]
        return type(cell)("\n".join(lines))

    rows = [[fitted(cell, i) for i, cell in enumerate(row)] for row in table.rows]
    return Table(table.title, [str(fitted(c, i)) for i, c in enumerate(table.columns)], rows, table.rules)


def _indented(line: str, width: int) -> list[str]:
    text = line.lstrip(" ")
    indent = line[: len(line) - len(text)]
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent) or [""]


def _columns(table: Table) -> list[list[Cell]]:
    return [[row[i] for row in table.rows] for i in range(len(table.columns))]


def _widths(table: Table) -> list[int]:
    """How wide each column is printed."""
    return [
        max(len(line) for cell in [heading, *column] for line in _visible(cell).split("\n"))
        + 2 * any(isinstance(cell, Strong) for cell in column)
        for heading, column in zip(table.columns, _columns(table), strict=True)
    ]


def _latex_text(text: str) -> str:
    """A caption or a footnote: nothing in it is a command."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {c: f"\\{c}" for c in "&%$#_{}"} | {c: f"${c}$" for c in "<>"} | dict(_MATH)
    words = "".join(special.get(c, c) for c in one_line(text))
    return re.sub(r"(T\\textasciicircum\{\})?\bphi\b", lambda m: r"$T^\phi$" if m[1] else r"$\phi$", words)


def markdown_cell(cell: Cell) -> str:
    """A cell as GitHub's Markdown: no new cell, no HTML, no link and no image."""
    text = one_line(cell_text(cell)).replace("\\", "\\\\").replace("|", "\\|")
    text = re.sub(r"<(?=[A-Za-z/!?])", "\\<", text)
    return re.sub(r"\](?=[(\[])", "\\]", text)


def csv_cell(cell: Cell) -> str:
    """A cell as a spreadsheet shows it: what would be a formula there is text."""
    text = visible(cell_text(cell))
    return f"'{text}" if isinstance(cell, str) and _FORMULA.match(text) else text


def csv_rows(table: Table) -> str:
    """Heading and rows of one table as CSV, nothing else: a file that a spreadsheet opens."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([csv_cell(column) for column in table.columns])
    writer.writerows([csv_cell(cell) for cell in row] for row in table.rows)
    return buffer.getvalue()


RENDERERS: Mapping[str, Renderer] = {
    "terminal": terminal,
    "markdown": markdown,
    "csv": comma_separated,
    "latex": latex,
}


def _pairs(tables: Sequence[Table], origins: Sequence[str]) -> list[tuple[Table, list[str]]]:
    """Each table with the lines above it: its title, and its origin if given."""
    for table in tables:
        for row in table.rows:
            if len(row) != len(table.columns):
                raise ValueError(f"table {table.title!r} has {len(table.columns)} columns, but a row of {len(row)}")
    if not origins:
        return [(table, [table.title]) for table in tables]
    return [(table, [table.title, origin]) for table, origin in zip(tables, origins, strict=True)]


def is_numeric(cells: Sequence[str]) -> bool:
    """Whether a column holds figures, which read better flush right; names such as 4-any-step are none."""
    filled = [cell for cell in cells if cell not in ("", "–")]
    return bool(filled) and all(_FIGURE.match(cell) for cell in filled)


def cell_text(cell: Cell) -> str:
    """A cell as words: nothing for None, yes or no for a truth value."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return str(cell)


def _visible(cell: Cell) -> str:
    return visible(cell_text(cell))


_CELL: Mapping[Style, Callable[[Cell], str]] = {
    "terminal": _visible,
    "markdown": markdown_cell,
    "latex": lambda cell: one_line(cell_text(cell)),
}

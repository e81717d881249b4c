"""`python -m reports tables`: result files as tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cemverify.console.streams import note
from cemverify.results.tables import RENDERERS
from reports.commands import add_paths

if TYPE_CHECKING:
    from reports.collect import ResultFile
    from synthetic.figures.sheets import Sheet

DESCRIPTION = """\
Prints the tables of result files. Rows that say the same are folded ("gradient: 52 hold"); numbers have as many
digits as their uncertainty leaves, or as their study prints; the best trained model is bold (in a terminal: has a
star) if a paired test says that it is. CSV has every digit, with the unit in the heading.
"""

EPILOG = """\
examples:
  python -m reports tables out/check.json                    fits the terminal
  python -m reports tables out --format markdown             every result below out/, for a pull request
  python -m reports tables out/recursion.json --format latex a narrow table for each prior: booktabs, caption, label
  python -m reports tables out/recursion.json --format latex --tables errors --columns model rate RMSE
  python -m reports tables out --output out/report           report.md, one CSV for each table

exit code: 0, or 2 with one sentence on stderr if a path does not exist or is not a result file.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `python -m reports tables` to its parser."""
    from cemverify.console.parsing import path

    add_paths(parser)
    parser.add_argument(
        "--format", choices=tuple(RENDERERS), default="terminal", help="format of the tables (default: %(default)s)"
    )
    parser.add_argument(
        "--tables",
        metavar="NAME",
        nargs="+",
        help="only these; of a recursion study summary, errors, points, same-T, rates, steps, test-time or stops "
        "(default: all but the summary; in LaTeX the summary alone, which fits a page)",
    )
    parser.add_argument(
        "--columns",
        metavar="NAME",
        nargs="+",
        help='only these, in this order; "ratio" means "ratio to T = 1" too, and a summary has "rate"',
    )
    parser.add_argument("--all", action="store_true", help="fold nothing")
    parser.add_argument(
        "--output", metavar="DIR", type=path, help="also write DIR/report.md and one DIR/NN-KIND.csv for each table"
    )


def run(options: argparse.Namespace) -> int:
    """Prints the tables of the result files in the chosen format; returns the exit code."""
    import sys
    from dataclasses import replace

    from cemverify.console.streams import columns
    from cemverify.results.envelope import check_outputs, show
    from cemverify.results.tables import comma_separated, terminal
    from reports.collect import collect
    from synthetic.figures.sheets import numbers, printed

    check_outputs(folders=[options.output])
    sources = collect(options.paths)
    kept = chosen_of(options, sources)
    mark = "A star" if options.format == "terminal" else "Bold"
    tables = [replace(printed(sheet, mark), label=label) for _, sheet, label in kept]
    origins = [source.origin for source, _, _ in kept]
    if options.format == "terminal":
        text = terminal(tables, origins, columns(sys.stdout))
    elif options.format == "csv":
        text = comma_separated(tables, origins, [numbers(sheet) for _, sheet, _ in kept])
    else:
        text = RENDERERS[options.format](tables, origins)
    if options.output is not None:
        write_all(options.output, sources)
    show(text)
    return 0


def chosen_of(options: argparse.Namespace, sources: Sequence[ResultFile]) -> list[tuple[ResultFile, Sheet, str]]:
    """The requested tables and columns, each table with its file and a label."""
    from cemverify.console.errors import UsageError, one_of
    from cemverify.processes.atomic_files import slug
    from reports.collect import tables_of
    from reports.kinds import places

    every = [(source, tables_of(source, not options.all, narrow=True)) for source in sources]
    for name in options.tables or ():
        one_of("table", name, {sheet.name: sheet for _, sheets in every for sheet in sheets})
    kept: list[tuple[ResultFile, Sheet, str]] = []
    for source, sheets in every:
        narrow = options.format == "latex" and any(sheet.name == "summary" for sheet in sheets)
        taken = [
            s for s in sheets if (s.name in options.tables if options.tables else (s.name == "summary") == narrow)
        ]
        for i, sheet in enumerate(taken):
            again = sum(before.name == sheet.name for before in taken[:i])
            label = f"{slug(source.path.stem)}-{slug(sheet.name)}{f'-{again + 1}' if again else ''}"
            kept.append((source, sheet, label))
    names = list(dict.fromkeys(column.heading for _, sheet, _ in kept for column in sheet.columns))
    asked = options.columns or ()
    for name in asked:
        if not places(names, [name]):
            raise UsageError(f"no table has a column {name!r}; choose from {', '.join(names)}")
    chosen = []
    for source, sheet, label in kept:
        at = places([column.heading for column in sheet.columns], asked)
        if not asked:
            at = [i for i, column in enumerate(sheet.columns) if not column.spare]
        if at:
            chosen.append((source, sheet.only(at), label))
    return chosen


def write_all(folder: Path, sources: Sequence[ResultFile]) -> None:
    """Writes the tables as Markdown and CSV."""
    from cemverify.processes.atomic_files import slug
    from cemverify.results.envelope import check_outputs, write_text
    from cemverify.results.tables import markdown
    from reports.collect import tables_of
    from synthetic.figures.sheets import numbers, printed

    folded = [(source, sheet) for source in sources for sheet in tables_of(source, fold=True)]
    whole = [(source, sheet) for source in sources for sheet in tables_of(source, fold=False)]
    text = markdown([printed(sheet) for _, sheet in folded], [source.origin for source, _ in folded])
    files = {folder / "report.md": f"# Report\n\n{text}\n"}
    for number, (source, sheet) in enumerate(whole, 1):
        files[folder / f"{number:02d}-{slug(source.content['kind'])}.csv"] = numbers(sheet)
    check_outputs(*files, read=[source.path for source in sources])
    for path, content in files.items():
        write_text(path, content)
    note(f"wrote {folder}: report.md and {len(whole)} CSV")

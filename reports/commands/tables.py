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
    from reports.kinds import PrintedTable

DESCRIPTION = """\
Prints the tables of result files. Rows that say the same are folded ("gradient: 51 hold"); numbers have as many
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

what is printed:
  property            verdict      examples    telling    discarded    margin
  ------------------  ---------  ----------  ---------  -----------  --------
  gradient: 51 hold   holds           3,132       40 %            7     0.573

exit code: 0, or 2 with one sentence on stderr if a path does not exist or is not a result file.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `python -m reports tables` to its parser."""
    from cemverify.console.parsing import path, whole

    add_paths(parser)
    parser.add_argument(
        "--format", choices=tuple(RENDERERS), default="terminal", help="format of the tables (default: %(default)s)"
    )
    parser.add_argument(
        "--tables",
        metavar="NAME",
        nargs="+",
        help="only these; of a recursion study summary, errors, same-T, steps, test-time or stops (default: all but "
        "the summary; in LaTeX the summary alone, which fits a page)",
    )
    parser.add_argument(
        "--columns",
        metavar="NAME",
        nargs="+",
        help='only these, in this order; "ratio" means "ratio to T = 1" too, and a summary has "rate"',
    )
    parser.add_argument("--all", action="store_true", help="fold nothing")
    parser.add_argument(
        "--width",
        metavar="N",
        type=whole(20, 100_000),
        help="columns of the terminal (default: those of the one at hand; without one, lines are not cut)",
    )
    parser.add_argument(
        "--output", metavar="DIR", type=path, help="also write DIR/report.md and one DIR/NN-KIND.csv for each table"
    )


def run(options: argparse.Namespace) -> int:
    """Prints the tables of the result files in the format that is asked for; returns the exit code."""
    import sys

    from cemverify.console.streams import columns
    from cemverify.results.envelope import check_outputs, show
    from cemverify.results.tables import comma_separated, terminal
    from reports.collect import collect

    check_outputs(folders=[options.output])
    sources = collect(options.paths)
    pairs = chosen(options, sources)
    tables, origins = [table.table for _, table in pairs], [source.origin for source, _ in pairs]
    if options.format == "terminal":
        text = terminal(tables, origins, options.width or columns(sys.stdout))
    elif options.format == "csv":
        text = comma_separated(tables, origins, [table.csv for _, table in pairs])
    else:
        text = RENDERERS[options.format](tables, origins)
    if options.output is not None:
        write_all(options.output, sources)
    show(text)
    return 0


def chosen(options: argparse.Namespace, sources: Sequence[ResultFile]) -> list[tuple[ResultFile, PrintedTable]]:
    """The tables and columns that are asked for, each with the file it is of and a label."""
    from dataclasses import replace

    from cemverify.console.errors import UsageError, one_of
    from cemverify.processes.atomic_files import slug
    from reports.collect import tables_of
    from reports.kinds import places

    mark = "A star" if options.format == "terminal" else "Bold"
    every = [(source, tables_of(source, not options.all, mark, narrow=True)) for source in sources]
    for name in options.tables or ():
        one_of("table", name, {table.name: table for _, tables in every for table in tables})
    kept: list[tuple[ResultFile, PrintedTable]] = []
    for source, tables in every:
        narrow = options.format == "latex" and any(table.name == "summary" for table in tables)
        taken = [
            t for t in tables if (t.name in options.tables if options.tables else (t.name == "summary") == narrow)
        ]
        for i, table in enumerate(taken):
            again = sum(before.name == table.name for before in taken[:i])
            label = f"{slug(source.path.stem)}-{slug(table.name)}{f'-{again + 1}' if again else ''}"
            kept.append((source, replace(table, table=replace(table.table, label=label))))
    columns = list(dict.fromkeys(column for _, table in kept for column in table.table.columns))
    asked = options.columns or ()
    for name in asked:
        if not places(columns, [name]):
            raise UsageError(f"no table has a column {name!r}; choose from {', '.join(columns)}")
    return [(s, t.only(asked, mark)) for s, t in kept if not asked or places(t.table.columns, asked)]


def write_all(folder: Path, sources: Sequence[ResultFile]) -> None:
    """Writes the tables as Markdown and CSV."""

    from cemverify.processes.atomic_files import slug
    from cemverify.results.envelope import check_outputs, write_text
    from cemverify.results.tables import markdown
    from reports.collect import tables_of

    folded = [(source, table) for source in sources for table in tables_of(source, fold=True)]
    whole = [(source, table) for source in sources for table in tables_of(source, fold=False)]
    text = markdown([table.table for _, table in folded], [source.origin for source, _ in folded])
    files = {folder / "report.md": f"# Report\n\n{text}\n"}
    for number, (source, table) in enumerate(whole, 1):
        files[folder / f"{number:02d}-{slug(source.content['kind'])}.csv"] = table.csv
    check_outputs(*files, read=[source.path for source in sources])
    for path, content in files.items():
        write_text(path, content)
    note(f"wrote {folder}: report.md and {len(whole)} CSV")

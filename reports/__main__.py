"""The command line of the reports: `python -m reports PATH...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cemverify.entry import Run, enter

if TYPE_CHECKING:
    from pathlib import Path

    from cemverify.parsing import Parser
    from reports.collect import ResultFile

DESCRIPTION = """\
Renders result files as tables. Result files are written by `cemverify check --json`, `python -m synthetic recursion`,
`python -m synthetic language` and the other commands. A folder stands for all result files in it and its subfolders.
"""

EPILOG = """\
examples:
  python -m reports out/recursion.json                     read one result
  python -m reports out --format markdown                  every result below out/, for a pull request
  python -m reports out --output out/report                report.md, one CSV for each table, report.json

Exit code 0, or 2 with one sentence on stderr if a path does not exist or is not a result file.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    return enter(_chosen, arguments)


def _chosen(given: list[str]) -> Run:
    from cemverify.tables import RENDERERS

    options = _parser(tuple(RENDERERS)).parse_args(given)
    return lambda: _report(options.paths, options.format, options.output)


def _report(paths: Sequence[Path], style: str, output: Path | None) -> int:
    from cemverify.results import show
    from cemverify.tables import RENDERERS
    from reports.collect import collect

    sources = collect(paths)
    tables = [table for source in sources for table in source.tables]
    origins = [source.origin for source in sources for _ in source.tables]
    text = RENDERERS[style](tables, origins)
    if output is not None:
        _write_all(output, sources)
    show(text)
    return 0


def _parser(formats: Sequence[str]) -> Parser:
    import argparse
    from pathlib import Path

    from cemverify.parsing import Parser

    parser = Parser(
        prog="python -m reports",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", type=Path, help="a result file, or a folder of result files"
    )
    parser.add_argument(
        "--format", choices=formats, default="terminal", help="format of the tables (default: %(default)s)"
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        help="also write DIR/report.md, DIR/report.json (the original results, merged) and one "
        "DIR/NN-KIND.csv per table",
    )
    return parser


def _write_all(folder: Path, sources: Sequence[ResultFile]) -> None:
    from cemverify.files import slug
    from cemverify.results import write, write_text
    from cemverify.tables import csv_rows, markdown
    from reports.collect import merge

    shown = [(source, table) for source in sources for table in source.tables]
    text = markdown([table for _, table in shown], [source.origin for source, _ in shown])
    files = {folder / "report.md": f"# Report\n\n{text}\n"}
    for number, (source, table) in enumerate(shown, 1):
        files[folder / f"{number:02d}-{slug(source.content['kind'])}.csv"] = csv_rows(table)
    for path, content in files.items():
        write_text(path, content)
    write(folder / "report.json", merge(sources))
    print(f"wrote {folder}: report.md, report.json and {len(shown)} CSV", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

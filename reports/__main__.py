"""The command line of the reports: `python -m reports PATH...`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cemverify.errors import UsageError
from cemverify.parsing import Parser
from cemverify.results import ResultError, show, write, write_text
from cemverify.tables import RENDERERS, csv_rows, markdown
from reports.collect import ResultFile, collect, merge

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
    try:
        options = _parser().parse_args(arguments)
        sources = collect(options.paths)
        tables = [table for source in sources for table in source.tables]
        origins = [source.origin for source in sources for _ in source.tables]
        text = RENDERERS[options.format](tables, origins)
        if options.output is not None:
            _write_all(options.output, sources)
    except (ResultError, UsageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show(text)
    return 0


def _parser() -> Parser:
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
        "--format", choices=tuple(RENDERERS), default="terminal", help="format of the tables (default: %(default)s)"
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
    shown = [(source, table) for source in sources for table in source.tables]
    text = markdown([table for _, table in shown], [source.origin for source, _ in shown])
    files = {folder / "report.md": f"# Report\n\n{text}\n"}
    for number, (source, table) in enumerate(shown, 1):
        files[folder / f"{number:02d}-{source.content['kind']}.csv"] = csv_rows(table)
    for path, content in files.items():
        write_text(path, content)
    write(folder / "report.json", merge(sources))
    print(f"wrote {folder}: report.md, report.json and {len(shown)} CSV", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

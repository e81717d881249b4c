"""`python -m reports matrix`: many implementations beside each other."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cemverify.console.parsing import path
from cemverify.console.streams import note
from reports.commands import add_paths

if TYPE_CHECKING:
    from reports.collect import ResultFile
    from reports.matrix.standings import Line

DESCRIPTION = """\
Puts verdicts on many implementations beside each other: implementations down, families of properties across. Each
cell says how many properties hold of those that were run, with how many examples, and, where a power result is among
the files, how many of the faults that these properties must catch are caught. Runs with fewer examples, or with lower
detection power, are drawn paler. Of several results of one implementation the latest counts.
"""

EPILOG = """\
examples:
  python -m reports matrix ci-results/                      print the table
  python -m reports matrix mine.json theirs.json power.json --format markdown
  python -m reports matrix ci-results/ --output site/       the files below

what is written:
  site/matrix.md, matrix.svg        the table and the picture
  site/matrix.csv                   every cell with its date, suite version, examples and detection power

exit code: 0, or 2 with one sentence on stderr if a path holds no verdict or a file cannot be written.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `python -m reports matrix` to its parser."""
    add_paths(parser)
    parser.add_argument(
        "--format",
        choices=("terminal", "markdown", "latex", "csv"),
        default="terminal",
        help="format of the table that is printed (default: %(default)s)",
    )
    parser.add_argument("--output", metavar="DIR", type=path, help="also write the table and the picture")


def run(options: argparse.Namespace) -> int:
    """Prints the table, and writes the files."""
    import sys

    from cemverify.console.streams import columns
    from cemverify.results.envelope import check_outputs, show
    from cemverify.results.tables import RENDERERS, terminal
    from reports.collect import collect
    from reports.matrix.standings import lines_of, sheet, table
    from synthetic.figures.sheets import numbers

    check_outputs(folders=[options.output])
    sources = collect(options.paths)
    lines = lines_of(sources)
    standings = table(lines)
    if options.format == "csv":
        text = numbers(sheet(lines)).rstrip("\n")
    elif options.format == "terminal":
        text = terminal([standings], (), columns(sys.stdout))
    else:
        text = RENDERERS[options.format]([standings], ())
    if options.output is not None:
        _write(options.output, lines, sources)
    show(text)
    return 0


def _write(folder: Path, lines: Sequence[Line], sources: Sequence[ResultFile]) -> None:
    from cemverify.results.envelope import check_outputs, write_text
    from cemverify.results.tables import markdown
    from reports.matrix.standings import sheet, table
    from reports.pictures.standings import matrix
    from synthetic.figures.sheets import numbers

    picture = matrix(lines)
    files = {
        "matrix.md": f"![{picture.title}](matrix.svg)\n\n{markdown([table(lines)])}\n",
        "matrix.csv": numbers(sheet(lines)),
        "matrix.svg": picture.svg,
    }
    check_outputs(*(folder / name for name in files), read=[source.path for source in sources])
    for name, content in files.items():
        write_text(folder / name, content)
    note(f"wrote {folder}: matrix.md, matrix.csv and matrix.svg")

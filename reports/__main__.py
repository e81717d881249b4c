"""The command line of the reports: `python -m reports COMMAND ...`; the commands are in `reports.commands`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cemverify.console.guard import Run, enter, importing

if TYPE_CHECKING:
    from cemverify.console.parsing import Parser

# Each command with a summary. Only the chosen one is imported, because some imports take a second.
COMMANDS: Mapping[str, str] = {
    "page": "one HTML page that begins with the answer",
    "tables": "tables for a terminal, Markdown, LaTeX or CSV",
    "pictures": "pictures as SVG, PDF or PNG, each with its data as CSV",
    "compare": "old results against new ones",
}

DESCRIPTION = """\
Turns result files into tables, and compares them. Result files are written by
`cemverify check --json`, `cemverify power --json`, `cemverify claims --json`, `python -m synthetic`, and
`python -m benchmarks`. A folder stands for all result files in it and its subfolders.
"""

EPILOG = """\
examples:
  python -m reports page out/                          out/report.html, a page to open or to send
  python -m reports tables out/check.json              in the terminal
  python -m reports compare old.json new.json          exit code 1 if something got worse

`python -m reports COMMAND --help` says more.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code; bad input is one sentence on stderr and exit code 2."""
    return enter(_chosen, arguments)


def _chosen(arguments: list[str]) -> Run:
    with importing():
        parser = _parser(arguments)
    options = parser.parse_args(arguments)
    return lambda: int(options.run(options))


def _parser(arguments: Sequence[str]) -> Parser:
    from cemverify.console.parsing import Help, Parser, add_commands

    parser = Parser(prog="python -m reports", description=DESCRIPTION, epilog=EPILOG, formatter_class=Help)
    add_commands(parser, COMMANDS, arguments, "reports.commands")
    return parser


if __name__ == "__main__":
    sys.exit(main())

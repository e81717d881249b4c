"""`python -m synthetic language scale`: what `second-step` found at several lengths and sizes, side by side."""

from __future__ import annotations

import argparse

from cemverify.console.parsing import path
from cemverify.console.streams import note
from cemverify.results import envelope
from cemverify.results.tables import terminal
from synthetic.language.arguments import Command
from synthetic.studies.engine.pages import write_page

SUMMARY = "what second-step found at several lengths and sizes, side by side; trains nothing"
USAGE = "FILE ... [--page FILE]"

DESCRIPTION = """\
Reads what `second-step` has found, one file for each study, and puts the ratios of T steps to one
beside each other, over tokens and over parameters, with the paper's sizes on the same axes.
"""

EPILOG = """\
example: python -m synthetic language scale docs/results/second-step-*.json --page docs/results/scale.md
"""


def add_arguments(parser: Command) -> None:
    """The options of the command."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.add_argument(
        "files", nargs="+", type=path, metavar="FILE", help="the JSON beside a page of `second-step --page`"
    )
    parser.add_argument("--page", type=path, metavar="FILE", help="a page in Markdown, with its picture beside it")


def run(options: argparse.Namespace) -> int:
    """Prints the table, and writes the page; returns the exit code."""
    from synthetic.studies.second_step import scale  # matplotlib is heavy to import

    envelope.check_outputs(pictured=options.page, read=options.files)
    unsorted = [scale.read_point(path) for path in options.files]
    points = sorted(unsorted, key=lambda p: (p.parameters, p.tokens, p.replaced))
    envelope.show(terminal([scale.table(points)]))
    if options.page is not None:
        written = write_page(options.page, {"made_by": {"command": options.again}}, scale.page_of(points))
        note(f"wrote {', '.join(map(str, written))}")
    return 0

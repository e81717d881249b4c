"""`python -m reports mutants`: which property sees which fault, as a page of Markdown."""

from __future__ import annotations

import argparse

from cemverify.console.parsing import path
from cemverify.console.streams import note

DESCRIPTION = """\
Writes a page from results of `cemverify power --matrix N --json FILE`: for every mutant how often the property named
for it kills it, and which other properties call it wrong; for every property how many faults it sees; and how often
correct implementations are called wrong. The page says when and from which commit it was measured.
"""

EPILOG = """\
examples:
  cemverify power --families subtle --matrix 1 --seeds 10 --examples 60 --no-sweep --json power.json
  python -m reports mutants power.json                      print the page
  python -m reports mutants power.json --output page.md     write it

exit code: 0, or 2 with one sentence on stderr if the file is no such result or the page cannot be written.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `python -m reports mutants` to its parser."""
    parser.add_argument(
        "results",
        metavar="FILE",
        nargs="+",
        type=path,
        help="results of `cemverify power --json` from one commit, at least one with --matrix",
    )
    parser.add_argument("--title", default="Which property sees which fault", help="the heading of the page")
    parser.add_argument("--output", metavar="PAGE", type=path, help="write the page here instead of printing it")


def run(options: argparse.Namespace) -> int:
    """Prints the page that says which property sees which fault, or writes it; returns the exit code."""

    from cemverify.results.envelope import check_outputs, show, write_text
    from reports.collect import collect, complete
    from reports.matrix.faults import page

    check_outputs(options.output, read=options.results)
    sources = collect(options.results)
    check_outputs(options.output, read=[source.path for source in sources])
    with complete(sources[0]):
        text = page([source.content for source in sources], options.title)
    if options.output is None:
        show(text.rstrip("\n"))
        return 0
    write_text(options.output, text)
    note(f"wrote {options.output}")
    return 0

"""`python -m reports page`: result files as one HTML page."""

from __future__ import annotations

import argparse

from cemverify.console.parsing import path
from reports.commands import add_paths, beside

DESCRIPTION = """\
Writes one HTML page that begins with the answer: how many properties hold, what is violated with the script that
shows it, how strong the verdict is, what recursion bought, what the language models did; then every table. The file
needs nothing else: it opens from disk, asks no server for anything, works without JavaScript, and prints.
"""

EPILOG = """\
examples:
  python -m reports page out/report                             out/report/report.html
  python -m reports page mine.json power.json -o mine.html      a verdict, and what it is worth
  python -m reports page docs/results -o published.html         the published studies

exit code: 0, or 2 with one sentence on stderr if a path is no result file or the page cannot be written.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `python -m reports page` to its parser."""
    add_paths(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=path, help="the page (default: report.html in the first PATH's folder)"
    )


def run(options: argparse.Namespace) -> int:
    """Writes the page and says where it is."""
    from cemverify.results.envelope import check_outputs, show, write_text
    from reports.collect import collect
    from reports.page.content import page_of, render

    output = options.output or beside(options.paths) / "report.html"
    check_outputs(output, read=options.paths)
    sources = collect(options.paths)
    check_outputs(output, read=[source.path for source in sources])
    page = page_of(sources)
    text = render(page)
    write_text(output, text)
    show(f"{page['answer']}\nwrote {output} ({len(text.encode()) / 1e6:.1f} MB)")
    return 0

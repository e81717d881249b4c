"""How often `cemverify repair` mends mistakes of one token, and how quickly.

`python -m suites.repair try --each 12` makes mistakes and has them mended; `python -m suites.repair page` writes what
came of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from suites.apart import rows
from suites.repair.mistakes import BASES, ROOT, mistakes
from suites.repair.page import page
from suites.repair.trying import tried

MEASURED = Path(__file__).with_name("measured.jsonl")
PAGE = ROOT / "docs" / "results" / "repair.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m suites.repair", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    attempt = commands.add_parser("try", help="make mistakes, and have them mended; goes on where it was stopped")
    attempt.add_argument("--each", type=int, default=12, metavar="N", help="mistakes in each implementation")
    attempt.add_argument("--seed", type=int, default=1, help="of the mistakes; 0 showed which edits were missing")
    attempt.add_argument("--bases", nargs="+", default=list(BASES), choices=list(BASES), metavar="FILE")
    attempt.add_argument("--workers", type=int, default=2, metavar="N", help="processes that try edits (default 2)")
    attempt.set_defaults(run=_try)
    commands.add_parser("page", help="write docs/results/repair.md").set_defaults(run=_page)
    options = parser.parse_args(arguments)
    return int(options.run(options))


def _page(_options: argparse.Namespace) -> int:
    PAGE.write_text(page(rows(MEASURED)))
    return 0


def _try(options: argparse.Namespace) -> int:
    done = {(row["base"], row["line"], row["before"], row["after"]) for row in rows(MEASURED)}
    # in turn, so that what a stopped run has tried is a fair sample
    drawn = [mistakes(base, options.each, options.seed) for base in options.bases]
    wanted = [mistake for row in zip_longest(*drawn) for mistake in row if mistake is not None]
    for i, mistake in enumerate(wanted, 1):
        if (mistake.base, mistake.line, mistake.before, mistake.after) in done:
            continue
        row = tried(mistake, options.workers)
        with MEASURED.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{i} of {len(wanted)}: {json.dumps(row)}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The options of `cemverify claims`."""

from __future__ import annotations

import argparse
from pathlib import Path

from cemverify.cores import cores
from cemverify.parsing import MOST_WORKERS, whole

DESCRIPTION = """\
Judges every statement of the paper: it holds, holds under a condition, or is refuted. Each statement is put to
examples, searches and symbolic cases anew, and the verdict is computed from what comes out. Verdicts on training are
computed from what the studies measured (--results). Exit code 1 if some statement is left undecided.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cemverify claims`."""
    parser.add_argument(
        "claim", nargs="?", metavar="ID", help="print this claim in full, with its counterexample worked out"
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FOLDER",
        help="what the studies measured, as they write it beside their pages; by default docs/results of a clone",
    )
    parser.add_argument(
        "--workers",
        type=whole(1, MOST_WORKERS),
        default=cores(),
        metavar="N",
        help="worker processes, on Linux (default: one per core)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page")
    parser.add_argument("--latex", type=Path, metavar="FILE", help="write a LaTeX table")

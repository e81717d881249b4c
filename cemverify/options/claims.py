"""The options of `cemverify claims`."""

from __future__ import annotations

import argparse
from pathlib import Path

from cemverify.console.parsing import MOST_WORKERS, whole
from cemverify.processes.cores import cores

DESCRIPTION = """\
Judges every statement of the paper. A mathematical one holds, holds under a condition, or is refuted: it is tested
anew with examples, searches and symbolic cases, and the verdict is computed from what they find. A statement on
training agrees or disagrees with what the studies measured (--results), or is inconclusive if they cannot decide it.

exit code: 0 if every statement is decided; 1 if a mathematical one is left undecided; 2 if the arguments are invalid.
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

"""`cemverify claims`: what the paper states, and what is true."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from cemverify.claims import PUBLISHED, ClaimVerdict, JudgedClaim, find_claim, judge_claim, ledger, pages
from cemverify.commands.arguments import check_outputs
from cemverify.errors import UsageError
from cemverify.results import Maker, show, write, write_text

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
        default=PUBLISHED,
        help="what the studies measured, as they write it beside their pages; by default docs/results of a clone",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page")
    parser.add_argument("--latex", type=Path, metavar="FILE", help="write a LaTeX table")


def run(options: argparse.Namespace) -> int:
    """`cemverify claims`: 0 if every verdict is decided, 1 if some statement is left undecided.

    Raises:
        UsageError: there is no such folder of results. ValueError: there is no such claim. ResultError: a file of
            results is damaged, or one cannot be written.
    """
    check_outputs(options.json, options.markdown, options.latex)
    if options.results != PUBLISHED and not options.results.is_dir():
        raise UsageError(
            f"--results {options.results} is no folder; name the one in which studies wrote their readings"
        )
    torch.set_num_threads(1)
    chosen = ledger(options.results) if options.claim is None else (find_claim(options.claim, options.results),)
    maker = Maker.now(options.command, {"claim": options.claim}, 0, "cpu")
    judged: list[JudgedClaim] = []
    for i, claim in enumerate(chosen, 1):
        judged.append(judge_claim(claim))
        print(f"[{i:>{len(str(len(chosen)))}}/{len(chosen)}] {judged[-1].verdict:<21} {claim.id}", file=sys.stderr)
    if options.json:
        write(options.json, pages.as_json(judged, maker))
    if options.markdown:
        write_text(options.markdown, pages.as_markdown(judged))
    if options.latex:
        write_text(options.latex, pages.as_latex(judged))
    show(pages.in_full(judged[0]) if options.claim else pages.as_terminal(judged))
    return 1 if any(j.verdict == ClaimVerdict.UNDECIDED for j in judged) else 0

"""`cemverify claims`: what the paper states, and what is true."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from cemverify.claims import Judged, find_claim, judge, ledger, pages
from cemverify.commands.arguments import check_outputs
from cemverify.results import Maker, show, write, write_text

DESCRIPTION = """\
Judges every statement of the paper: it holds, holds under a condition, or is refuted. Each verdict is computed from
evidence that is gathered anew: properties of the reference, symbolic derivations, exact counterexamples, and searches
that find a counterexample of the same size by themselves. Exit code 1 if some evidence does not hold up.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cemverify claims`."""
    parser.add_argument(
        "claim", nargs="?", metavar="ID", help="print this claim in full, with its counterexample worked out"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page")
    parser.add_argument("--latex", type=Path, metavar="FILE", help="write a LaTeX table")


def run(options: argparse.Namespace) -> int:
    """`cemverify claims`: 0 if every verdict is decided, 1 if some evidence does not stand."""
    check_outputs(options.json, options.markdown, options.latex)
    torch.set_num_threads(1)
    chosen = ledger() if options.claim is None else (find_claim(options.claim),)
    maker = Maker.now(options.command, {"claim": options.claim}, 0, "cpu")
    judged: list[Judged] = []
    for i, claim in enumerate(chosen, 1):
        judged.append(judge(claim))
        print(f"[{i:>{len(str(len(chosen)))}}/{len(chosen)}] {judged[-1].verdict:<26} {claim.id}", file=sys.stderr)
    if options.json:
        write(options.json, pages.as_json(judged, maker))
    if options.markdown:
        write_text(options.markdown, pages.as_markdown(judged))
    if options.latex:
        write_text(options.latex, pages.as_latex(judged))
    show(pages.in_full(judged[0]) if options.claim else pages.as_terminal(judged))
    return 1 if any(j.verdict == "undecided" for j in judged) else 0

"""`cemverify claims`: what the paper states, and what is true."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool

import torch

from cemverify.claims import PUBLISHED, Claim, ClaimVerdict, JudgedClaim, find_claim, judge_claim, ledger, pages
from cemverify.claims.arguments import Finding
from cemverify.console.errors import UsageError
from cemverify.console.streams import columns
from cemverify.results.envelope import check_outputs, show, write, write_text
from cemverify.results.provenance import Maker
from cemverify.runs.executors import here, processes


def run(options: argparse.Namespace) -> int:
    """`cemverify claims`: 0 if every verdict is decided, 1 if some statement is left undecided.

    Raises:
        UsageError: there is no such folder of results. ValueError: there is no such claim. ResultError: a file of
            results is damaged, or one cannot be written.
    """
    check_outputs(options.json, options.markdown, options.latex)
    results = PUBLISHED if options.results is None else options.results
    if options.results is not None and not results.is_dir():
        raise UsageError(f"--results {results} is no folder; name the one in which studies wrote their readings")
    torch.set_num_threads(1)
    chosen = ledger(results) if options.claim is None else (find_claim(options.claim, results),)
    maker = Maker.now(options.command, {"claim": options.claim}, 0, "cpu")
    judged: list[JudgedClaim] = []
    for i, each in enumerate(_judged(chosen, options.workers), 1):
        judged.append(each)
        print(f"[{i:>{len(str(len(chosen)))}}/{len(chosen)}] {each.verdict:<21} {each.claim.id}", file=sys.stderr)
    if options.json:
        write(options.json, pages.as_json(judged, maker))
    if options.markdown:
        write_text(options.markdown, pages.as_markdown(judged))
    if options.latex:
        write_text(options.latex, pages.as_latex(judged))
    show(pages.in_full(judged[0]) if options.claim else pages.as_terminal(judged, columns(sys.stdout)))
    return 1 if any(j.verdict == ClaimVerdict.UNDECIDED for j in judged) else 0


def _judged(chosen: Sequence[Claim], workers: int) -> Iterator[JudgedClaim]:
    """The claims judged, in their order, by copies of this process, which have everything imported.

    Only Linux copies a process, and only one without other threads can be copied.
    """
    alone = sys.platform == "linux" and threading.active_count() == 1
    crew = processes(min(workers, len(chosen)), copies=True) if alone and min(workers, len(chosen)) > 1 else here()
    _CHOSEN[:] = chosen
    with crew.open() as executor:
        try:
            yield from map(JudgedClaim, chosen, executor.map(_findings, range(len(chosen))))
        except BrokenProcessPool:
            raise UsageError("a worker process died, probably because memory ran out; try --workers 1") from None


# What copies of this process find in it: claims hold functions that no other process could be sent.
_CHOSEN: list[Claim] = []


def _findings(number: int) -> Sequence[Finding]:
    return judge_claim(_CHOSEN[number]).findings

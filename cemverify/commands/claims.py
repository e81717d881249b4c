"""`cemverify claims`: the paper's statements, and whether they are true."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cemverify.commands.slow_imports import slow_imports
from cemverify.console.errors import UsageError
from cemverify.console.parsing import MOST_WORKERS, path, whole
from cemverify.console.streams import columns, note
from cemverify.processes.cores import cores
from cemverify.processes.system import LINUX

if TYPE_CHECKING:
    from cemverify.claims import Claim, JudgedClaim
    from cemverify.claims.arguments import Finding

DESCRIPTION = """\
Judges the paper's statements. A mathematical statement holds, holds under a condition, or is refuted: it is tested
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
        type=path,
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
    parser.add_argument("--json", type=path, metavar="FILE", help="write the result file")
    parser.add_argument("--markdown", type=path, metavar="FILE", help="write the page")


def run(options: argparse.Namespace) -> int:
    """`cemverify claims`: 0 if every verdict is decided, 1 if some statement is undecided.

    Raises:
        ValueError: there is no such claim.
    """
    with slow_imports():
        import torch

        from cemverify.claims import PUBLISHED, ClaimVerdict, find_claim, ledger, pages, readings
        from cemverify.results.envelope import check_outputs, show, write, write_text
        from cemverify.results.provenance import Maker

    results = PUBLISHED if options.results is None else options.results
    check_outputs(options.json, options.markdown, read=readings.files(results))
    if options.results is not None and not results.is_dir():
        raise UsageError(f"--results {results} is not a folder; name the one in which studies wrote their readings")
    torch.set_num_threads(1)
    chosen = ledger(results) if options.claim is None else (find_claim(options.claim, results),)
    maker = Maker.now(options.command, {"claim": options.claim}, 0, "cpu")
    judged: list[JudgedClaim] = []
    for i, each in enumerate(_judged(chosen, options.workers), 1):
        judged.append(each)
        note(f"[{i:>{len(str(len(chosen)))}}/{len(chosen)}] {each.verdict:<21} {each.claim.id}")
    if options.json:
        write(options.json, pages.as_json(judged, maker))
    if options.markdown:
        write_text(options.markdown, pages.as_markdown(judged))
    show(pages.in_full(judged[0]) if options.claim else pages.as_terminal(judged, columns(sys.stdout)))
    return 1 if any(j.verdict == ClaimVerdict.UNDECIDED for j in judged) else 0


def _judged(chosen: Sequence[Claim], workers: int) -> Iterator[JudgedClaim]:
    """The claims judged, in order, by copies of this process, which have everything imported.

    Only Linux copies a process, and only one without other threads can be copied.
    """
    from concurrent.futures.process import BrokenProcessPool

    from cemverify.claims import JudgedClaim
    from cemverify.runs.executors import here, processes

    alone = LINUX and threading.active_count() == 1
    crew = processes(min(workers, len(chosen)), copies=True) if alone and min(workers, len(chosen)) > 1 else here()
    _CHOSEN[:] = chosen
    with crew.open() as executor:
        try:
            yield from map(JudgedClaim, chosen, executor.map(_findings, range(len(chosen))))
        except BrokenProcessPool:
            raise UsageError("a worker process died, probably because memory ran out; try --workers 1") from None


# Copies of this process find this in it: claims hold functions that cannot be sent to other processes.
_CHOSEN: list[Claim] = []


def _findings(number: int) -> Sequence[Finding]:
    from cemverify.claims import judge_claim

    return judge_claim(_CHOSEN[number]).findings

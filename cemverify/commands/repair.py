"""`cemverify repair`: finds the edit of the source that makes the violated properties hold."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cemverify.commands import effort
from cemverify.commands.slow_imports import slow_imports
from cemverify.conformance.implementations import naming
from cemverify.console.errors import UsageError
from cemverify.console.parsing import count, path, seconds
from cemverify.console.streams import columns, note, wrapped

if TYPE_CHECKING:
    from cemverify.conformance.judging.effort import Effort
    from cemverify.conformance.judging.verdicts import Record
    from cemverify.conformance.properties import Property
    from cemverify.repair.search import Repair, RepairOutcome, RepairProgress

DESCRIPTION = """\
Tests an implementation until four properties of its formula are violated (those of sizes, bad input and the process
do not count), then looks for the edit that mends it. Tries all single edits of its source (another name, operator,
sign, constant, factor, argument, letter of an einsum, parentheses, a line moved into or out of the loop ...) on the
smallest counterexamples. An edit that passes is judged by every property and shown as a diff. If no single edit
suffices, pairs are tried. When interrupted or out of time, shows the best so far. Nothing is written without --write.

exit code: 0 if nothing is violated, or an edit makes all properties hold; 1 if no edit does; 2 if the implementation
or its source cannot be read, or the arguments are invalid.
"""

EPILOG = """\
examples:
  cemverify repair mylayer:mine
  cemverify repair mylayer:mine --properties gradient --examples 20
  cemverify repair mylayer:mine --properties-from mypkg/properties.py
  cemverify repair mylayer:mine --write
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cemverify repair`."""
    effort.add_arguments(parser)
    parser.add_argument(
        "--search",
        type=seconds,
        default=60.0,
        metavar="S",
        help="seconds that each process may try edits for, without waits for a core (default 60)",
    )
    parser.add_argument(
        "--write",
        type=count,
        nargs="?",
        const=0,
        metavar="N",
        help="write the edit that makes all properties hold into the file; if several do, the N-th one shown",
    )
    parser.add_argument("--json", type=path, metavar="FILE", help="write the result file")


def run(options: argparse.Namespace) -> int:
    """Runs `cemverify repair` with parsed arguments; returns the exit code."""
    options.implementation = naming.settled(options.implementation)
    with slow_imports():
        import torch

        from cemverify.conformance.judging.events import RunFinished
        from cemverify.conformance.judging.verdicts import Verdict
        from cemverify.conformance.listeners.progress import progress
        from cemverify.conformance.workers import isolation, nursery
        from cemverify.repair.search import RepairOutcome, enough
        from cemverify.repair.wording import as_json, in_words
        from cemverify.results.envelope import check_outputs, result, show, write
        from cemverify.results.provenance import Maker

    effort.refuse_unknown_properties(options)
    sys.path.insert(0, os.getcwd())  # as `python -m` does; workers inherit it
    nursery.get_ready(options.implementation)
    properties = effort.properties(options)
    search_effort = effort.of(options, reads_code=True)
    check_outputs(options.json, read=naming.files(options.implementation))
    torch.set_num_threads(1)  # as in the workers, and as the result states
    configuration = {**effort.configuration(options, search_effort), "search": options.search}
    maker = Maker.now(options.command, configuration, search_effort.seed, search_effort.device)
    finished: RunFinished | None = None
    with progress() as listener:
        for event in isolation.run(
            options.implementation, properties, search_effort, options.workers, ending=enough(properties)
        ):
            listener(event)
            if isinstance(event, RunFinished):
                finished = event
    assert finished is not None
    violated = any(record.verdict == Verdict.VIOLATED for record in finished.records)
    outcome = RepairOutcome()
    if violated:
        outcome = searched(options, properties, finished.records, search_effort, options.search)
    show(wrapped(in_words(outcome, finished, options.implementation), columns(sys.stdout)))
    if options.json:
        write(options.json, result("repair", maker, [], as_json(outcome, options.implementation)))
    if outcome.interrupted:
        raise KeyboardInterrupt
    if violated and options.write is not None:
        _write(_chosen(outcome, options.write))
    if outcome.refusal is not None:
        return 2
    return 0 if not violated or any(repair.mends for repair in outcome.repairs) else 1


def searched(
    options: argparse.Namespace,
    properties: Sequence[Property],
    records: Sequence[Record],
    effort: Effort,
    seconds: float,
) -> RepairOutcome:
    """The edits that mend the violations of a run; the search shows progress on stderr.

    No edit is tried where the code may be right and its declaration wrong.

    Args:
        effort: the run's. seconds: for which each process may try edits.
    """
    from cemverify.conformance.judging.verdicts import DECLARED_STEPS
    from cemverify.repair.search import RepairOutcome, search

    if declare := [record.because for record in records if record.part == DECLARED_STEPS]:
        return RepairOutcome(declare=declare[0])
    name = options.implementation
    return search(name, properties, records, effort, seconds=seconds, workers=options.workers, listener=_tell)


def _tell(progress: RepairProgress) -> None:
    """One line for each tenth of the edits."""
    if progress.doing == "judging":
        note(f"judging edit {progress.done + 1} of {progress.of} by every property ...")
    elif progress.done % max(1, progress.of // 10 // 20 * 20 or 20) == 0:
        note(f"{_DOING[progress.doing]}: {progress.done} of {progress.of}")


_DOING = {
    "trying": "single edits tried",
    "scoring": "no single edit suffices; edits scored",
    "second": "second edits tried",
}


def _chosen(outcome: RepairOutcome, number: int) -> Repair:
    """The edit to write to the files."""
    whole = [repair for repair in outcome.repairs if repair.mends]
    if not whole:
        raise UsageError("nothing was written: no edit makes all properties hold")
    if number == 0 and len(whole) > 1:
        raise UsageError(f"nothing was written: {len(whole)} edits make all properties hold; choose one, --write 1")
    if number > len(whole):
        raise UsageError(f"nothing was written: there is no edit {number}, but {len(whole)}")
    return whole[max(number, 1) - 1]


def _write(repair: Repair) -> None:
    """Writes an edit into its files."""
    from cemverify.results.envelope import write_bytes

    for file in repair.texts:
        if Path(file).read_bytes().decode() != repair.originals[file]:
            raise UsageError(f"nothing was written: {os.path.relpath(file)} has changed since it was read")
    for file, text in repair.texts.items():
        write_bytes(Path(file), text.encode())
        note(f"wrote {os.path.relpath(file)}")

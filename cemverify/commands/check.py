"""`cemverify check`: judges an implementation."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cemverify.commands import effort, gate, repair, trained, watching
from cemverify.commands.slow_imports import slow_imports
from cemverify.conformance.implementations import naming
from cemverify.console import interrupts
from cemverify.console.errors import UsageError
from cemverify.console.parsing import path, percentage, seconds
from cemverify.console.streams import columns, note, wrapped

if TYPE_CHECKING:
    from cemverify.conformance.gate.gate import Gate
    from cemverify.conformance.judging.effort import Effort
    from cemverify.conformance.judging.events import RunFinished
    from cemverify.conformance.judging.verdicts import Record
    from cemverify.conformance.properties import Property
    from cemverify.results.envelope import ResultError, Table
    from cemverify.results.provenance import Maker

QUICK = 1.5  # seconds of testing; with its start, the run takes three
_SUGGESTING = 60.0  # seconds for which each process may try edits
# seconds of a core for making violations small: keys of known violations are those of small cases, on any machine
_EXPLAINING_KNOWN = 300.0

DESCRIPTION = """\
Tests an implementation against every property whose features it offers, with examples drawn by Hypothesis. Prints one
row per family of properties or, if any are violated, the cause: the wrong part, its file and line, the smallest case
that shows it, and the command that tests it again. With --checkpoint, judges a layer of a trained model instead, on
what the model feeds it.

IMPLEMENTATION is module:attribute (also found in the current folder), file.py:attribute, or the name of an installed
entry point of the group "cemverify.implementations". The README shows how to write one in twenty lines.

exit code: 0 if all properties that were asked hold, apart from known violations (--quick and --within ask only some);
1 if some are violated, an entry of --known is stale, or --absent or --on-regression fails the run; 2 if there is no
verdict (bad arguments, a failed import, nothing was run, or a property was inconclusive).
"""


EPILOG = """\
examples:
  cemverify check reference                            the reference implementation
  cemverify check mypkg.cem:implementation --watch --quick     while you edit
  cemverify check mypkg.cem:implementation --json r.json --junit r.xml
  cemverify check mypkg.cem:implementation --properties gradient descent --examples 500 --seed 7
  cemverify check mypkg.cem:implementation --known known.toml --update-known --reason "slopes: ticket 12"
  cemverify check mypkg.cem:implementation --known known.toml --baseline main.json --on-regression fail
  cemverify check mypkg.cem:implementation --properties-from mypkg/properties.py
  cemverify check mypkg.model:build --checkpoint weights.safetensors --layer blocks.0.attention --tokens text.npy
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cemverify check`."""
    effort.add_arguments(parser)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show every property, even if its whole family holds"
    )
    parser.add_argument(
        "--terse",
        action="store_true",
        help="print a line for each verdict as it comes, then a line of JSON: for programs and agents",
    )
    parser.add_argument("--json", type=path, metavar="FILE", help="write the result file")
    parser.add_argument("--junit", type=path, metavar="FILE", help="write JUnit XML, for CI")
    parser.add_argument("--markdown", type=path, metavar="FILE", help="write a Markdown page")
    parser.add_argument(
        "--github", action="store_true", help="print an annotation for each cause, which GitHub shows at its line"
    )
    parser.add_argument(
        "--save-counterexamples",
        type=path,
        metavar="FOLDER",
        help="save the smallest case of each violation: arrays, JSON for `cemverify replay`, and a script",
    )
    parser.add_argument(
        "--least-reach",
        type=percentage,
        metavar="P",
        help="inconclusive (exit code 2) if less than P %% of the lines of your code were reached",
    )
    parser.add_argument(
        "--black-box",
        action="store_true",
        help="judge by answers alone: do not record which lines are reached, or test around the numbers in them",
    )
    parser.add_argument(
        "--within",
        type=seconds,
        metavar="S",
        help="start nothing after S seconds of testing, and drop what is unfinished after twice that (at least S + "
        "20 s); what finds most faults for its time comes first, and the report says how many known ones it catches",
    )
    parser.add_argument(
        "--quick", dest="within", action="store_const", const=QUICK, help=f"the same as --within {QUICK:g}"
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="check again at every save, starting with what reaches the changed lines; Ctrl-C ends (exit code 130)",
    )
    parser.add_argument("--first", action="store_true", help="stop at the first violation that fails the run")
    parser.add_argument(
        "--suggest", action="store_true", help="if a violation fails the run, look for the edit that mends it (60 s)"
    )
    parser.add_argument(
        "--absent", choices=("strict",), help="fail if a feature declared absent is present or ignored"
    )
    trained.add_arguments(parser)
    gate.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Runs `cemverify check` with parsed arguments; returns the exit code."""
    options.implementation = naming.settled(options.implementation)  # refused at once, before torch is imported
    return _run_trained(options) if trained.asked_for(options) else _run(options)


def _run(options: argparse.Namespace) -> int:
    with slow_imports():
        import torch

        from cemverify.conformance.judging.ending import interrupted
        from cemverify.conformance.judging.verdicts import Record
        from cemverify.conformance.workers import nursery
        from cemverify.results.provenance import Maker

    if options.update_known and (options.first or options.within or options.watch):
        raise UsageError("--update-known lists every violation: leave out --first, --within, --quick and --watch")
    effort.refuse_unknown_properties(options)
    sys.path.insert(0, os.getcwd())  # as `python -m` does; workers inherit it
    if options.watch:
        # a compiled file would be used for a save within the same second that has the same length
        sys.dont_write_bytecode, os.environ["PYTHONDONTWRITEBYTECODE"] = True, "1"
    nursery.get_ready(options.implementation)
    effort.properties(options)  # refuses bad ones before anything is started
    search_effort = effort.of(options, reads_code=not options.black_box)
    if options.known is not None:
        search_effort = replace(search_effort, explaining=_EXPLAINING_KNOWN)
    _check_files(options)
    measured_against = gate.read_gate(options)
    torch.set_num_threads(1)  # as in the workers, and as the result states
    configuration = {
        **effort.configuration(options, search_effort),
        "catalogue": options.catalogue,
        "black_box": options.black_box,
    }

    def check(before: Sequence[str], ended: Callable[[], bool]) -> tuple[int, RunFinished] | None:
        """The exit code and the run; None if the run had to end."""
        properties = effort.properties(options)  # a file of properties may have been saved since the last check
        maker = Maker.now(options.command, configuration, search_effort.seed, search_effort.device)
        records, started = list[Record](), time.monotonic()
        try:
            finished = _finished(options, properties, search_effort, measured_against, before, ended, records)
        except KeyboardInterrupt:  # while this is handled, only another one can be raised
            if records and not (options.watch or options.update_known):
                cut = interrupted(options.implementation, properties, records, time.monotonic() - started)
                _tell(options, cut, measured_against, maker)
            raise
        if finished is None:
            return None
        effort.note_own_dtypes(options, properties, finished.records)
        if options.suggest and any(map(measured_against.fails, finished.records)):
            outcome = repair.searched(options, properties, finished.records, search_effort, _SUGGESTING)
            finished = replace(finished, edit=next((each.edit for each in outcome.repairs if each.mends), None))
            if finished.edit is None and outcome.declare is None:
                note(f"no suggested edit: none of the {outcome.tried} that were tried makes all properties hold")
        return _tell(options, finished, measured_against, maker), finished

    if options.watch:
        return watching.run(options.implementation, options.properties_from, check)
    outcome = check((), lambda: False)
    assert outcome is not None
    return outcome[0]


def _finished(
    options: argparse.Namespace,
    properties: Sequence[Property],
    effort: Effort,
    measured_against: Gate,
    before: Sequence[str],
    ended: Callable[[], bool],
    records: list[Record],
) -> RunFinished | None:
    """The run; None if it had to end.

    Args:
        before: ids of properties to test before the others. ended: called after each event.
        records: collects those that are finished.
    """
    from cemverify.conformance.judging.ending import Ending, never
    from cemverify.conformance.judging.events import PropertyFinished, RunFinished
    from cemverify.conformance.listeners import terse
    from cemverify.conformance.listeners.progress import progress
    from cemverify.conformance.workers import isolation

    at = measured_against.fails if options.first else never
    ending = Ending(at, math.inf if options.within is None else options.within, before)
    absent = options.absent is not None or not (options.properties or options.first or options.within)
    events = isolation.run(
        options.implementation, properties, effort, options.workers, first_call=True, ending=ending, absent=absent
    )
    streamed = nullcontext(terse.lines(measured_against.marked))
    listening = streamed if options.terse else progress(verbose=options.verbose)
    with listening as listener, closing(events):
        for event in events:
            with interrupts.put_off():  # what was printed is also in the result
                listener(event)
                if isinstance(event, PropertyFinished):
                    records.append(event.record)
            if isinstance(event, RunFinished):
                return event
            if ended():
                return None
    raise AssertionError("a run ends with RunFinished")


def _run_trained(options: argparse.Namespace) -> int:
    if options.first or options.within or options.watch:
        raise UsageError("--checkpoint asks everything at once: leave out --first, --within, --quick and --watch")
    if options.least_reach is not None or options.absent is not None:
        raise UsageError("--least-reach and --absent are about an implementation; leave them out with --checkpoint")
    with slow_imports():
        import torch

        from cemverify.conformance.judging.events import PropertyFinished
        from cemverify.conformance.listeners import terse
        from cemverify.conformance.listeners import trained as trained_layer
        from cemverify.results.envelope import show
        from cemverify.results.provenance import Maker
        from cemverify.results.tables import fitted, grid

    _check_files(options)
    measured_against = gate.read_gate(
        argparse.Namespace(**{**vars(options), "implementation": trained.named(options)})
    )
    torch.set_num_threads(1)
    sys.path.insert(0, os.getcwd())
    configuration = {
        "properties": [],  # none can be chosen
        "checkpoint": str(options.checkpoint),
        "layer": options.layer,
        "tokens": None if options.tokens is None else str(options.tokens),
        "dtype": options.dtype,
        "examples": options.examples,
        "catalogue": options.catalogue,
    }
    maker = Maker.now(options.command, configuration, options.seed, options.device)
    findings, weights = trained.judge(options)
    table, words = trained_layer.table(findings), trained_layer.summary(findings, weights)
    width = columns(sys.stdout)
    text = grid(table, "terminal") if width is None else fitted(table, width)
    for record in findings.finished.records if options.terse else ():
        terse.lines(measured_against.marked)(PropertyFinished(record))
    if not options.terse:
        show(f"{table.title}\n\n{text}\n\n{wrapped(words, width)}\n")
    more = {"trained": trained_layer.as_json(findings, weights)}
    return _tell(options, findings.finished, measured_against, maker, [table], words, more)


def _check_files(options: argparse.Namespace) -> None:
    """Checks, before the work, that no output file overwrites an input or another output."""
    from cemverify.conformance.counterexamples.files import check_apart
    from cemverify.conformance.properties import own_properties, select
    from cemverify.results.envelope import check_outputs

    outputs, known_file = [options.json, options.junit, options.markdown], options.known
    own = [path for name in options.properties_from for path in naming.module_files(name)]
    read = [*naming.files(options.implementation), *own, options.baseline, options.checkpoint, options.tokens]
    folder = options.save_counterexamples
    updated = known_file if options.update_known else None
    check_outputs(*outputs, updated=updated, folders=[folder], read=[*read, None if updated else known_file])
    if folder is not None:
        paths = [path for path in (*outputs, *read, known_file) if path is not None]
        check_apart(
            folder, [property_.id for property_ in select([], own_properties(options.properties_from))], paths
        )


def _tell(
    options: argparse.Namespace,
    finished: RunFinished,
    measured_against: Gate,
    maker: Maker,
    tables: Sequence[Table] = (),
    words: str = "",
    more: Mapping[str, Any] | None = None,
) -> int:
    """Writes the files, prints the report, and returns the exit code."""
    from cemverify.conformance.counterexamples.files import save_all
    from cemverify.conformance.judging.absences import IGNORED, RIGHT
    from cemverify.conformance.judging.diagnosis import diagnose
    from cemverify.conformance.judging.verdicts import exit_code
    from cemverify.conformance.listeners import ci, files, reach, terminal, terse
    from cemverify.conformance.listeners.colours import show_coloured
    from cemverify.conformance.listeners.diagnosis import github
    from cemverify.results.envelope import ResultError, show, write, write_text

    unwritten = list[ResultError]()
    for record in finished.records if options.save_counterexamples else ():
        with _kept(unwritten):
            for saved in save_all(replace(finished, records=[record]), options.save_counterexamples, maker):
                note(f"counterexample saved: cemverify replay {shlex.quote(str(saved))}")
    with _kept(unwritten):
        measured_against = measured_against.accepting(finished)
    finished, settled, compared = measured_against.measure(finished, options.properties)
    if options.json:
        content = files.as_json(finished, maker, tables, more, pinned=options.catalogue)
        with _kept(unwritten):
            write(options.json, ci.with_gate(content, settled, compared))
    if options.junit:
        with _kept(unwritten):
            write_text(options.junit, ci.with_suites(files.as_junit(finished, options.catalogue), settled, compared))
    if options.markdown:
        page = files.as_markdown(finished, maker, tables, words)
        with _kept(unwritten):
            write_text(options.markdown, page + ci.as_markdown(settled, compared))
    short = None if options.least_reach is None else reach.shortfall(finished.reach, options.least_reach)
    strict = options.absent is not None and bool(finished.absences.keys() & {RIGHT, IGNORED})
    failed = strict or any(outcome is not None and outcome.failed for outcome in (settled, compared))
    code = 1 if failed else exit_code(finished.records) or (0 if short is None else 2)
    code = interrupts.exit_code() if finished.interrupted else code
    width, diagnosis = columns(sys.stdout), diagnose(finished)
    if options.github and diagnosis is not None:
        show(github(diagnosis))
    if settled is not None or compared is not None:
        show_coloured(f"{wrapped(ci.report(settled, compared), width)}\n")
    if options.terse:
        show(terse.last(finished, code))
    else:
        show_coloured(terminal.report(finished, verbose=options.verbose, width=width))
    if unwritten:
        raise unwritten[0]
    if short is not None and not options.terse:
        show_coloured(f"\n{wrapped(short, width)}")
    return code


@contextmanager
def _kept(errors: list[ResultError]) -> Iterator[None]:
    """Keeps the error about a file that cannot be written for the end: the verdict is printed first."""
    from cemverify.results.envelope import ResultError

    try:
        yield
    except ResultError as error:
        errors.append(error)

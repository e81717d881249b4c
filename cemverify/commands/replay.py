"""`cemverify replay`: tests a saved counterexample again."""

from __future__ import annotations

import argparse
import os
import sys

from cemverify.catalogue.index import retired
from cemverify.commands.slow_imports import slow_imports
from cemverify.conformance.implementations import naming
from cemverify.console.parsing import path
from cemverify.console.streams import columns, wrapped

DESCRIPTION = """\
Repeats the test of a counterexample that was saved by `cemverify check --save-counterexamples FOLDER`: the same
numbers, the same property. FILE is the .json file; the .npz file with the arrays must be next to it. The .py file
next to them does the same without cemverify.

exit code: 1 if the property is still violated; 0 if it holds now; 2 if it cannot be judged.
"""


EPILOG = """\
examples:
  cemverify replay out/gradient-attention-plain.json
  cemverify replay out/gradient-attention-plain.json --implementation mypkg.cem:repaired
  cemverify replay out/own-first-token.json --properties-from mypkg/properties.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cemverify replay`."""
    parser.add_argument("file", type=path, metavar="FILE", help="the .json of a saved counterexample")
    parser.add_argument(
        "--implementation", metavar="NAME", help="implementation to test (default: the one it was found with)"
    )
    parser.add_argument(
        "--properties-from",
        metavar="FILE",
        help="the file that states your own property (default: the one it was found with)",
    )
    parser.add_argument("--json", type=path, metavar="FILE", help="write the result file")


def run(options: argparse.Namespace) -> int:
    """Runs `cemverify replay` with parsed arguments; returns the exit code."""
    if options.implementation is not None:
        options.implementation = naming.settled(options.implementation)
    with slow_imports():
        from cemverify.conformance.counterexamples.files import files_of, load_counterexample
        from cemverify.conformance.judging.effort import Effort
        from cemverify.conformance.judging.events import RunFinished
        from cemverify.conformance.judging.verdicts import Verdict, counts, violation
        from cemverify.conformance.listeners import files
        from cemverify.conformance.listeners.colours import show_coloured
        from cemverify.conformance.properties import own_properties, select
        from cemverify.conformance.workers import nursery
        from cemverify.conformance.workers.isolation import ask_again
        from cemverify.results.envelope import check_outputs, show, write
        from cemverify.results.provenance import Maker

    saved = load_counterexample(options.file)
    name = options.implementation or saved.implementation
    own = options.properties_from or saved.stated_in
    read = [*files_of(options.file), *naming.files(name), *(naming.module_files(own) if own else [])]
    check_outputs(options.json, read=read)
    sys.path.insert(0, os.getcwd())  # as `cemverify check` does
    nursery.get_ready(name)
    chosen = [p for p in select([], own_properties([own] if own else [])) if p.id == saved.property]
    if (row := retired().get(saved.property)) is not None:
        raise ValueError(f"{row}; {options.file.with_suffix('.py')} still tests the case")
    if not chosen:
        where = f"{own} has" if own else "this version has"
        raise ValueError(f"{where} no property {saved.property!r}; see `cemverify list`")
    maker = Maker.now(options.command, {"counterexample": str(options.file)}, 0, saved.device)
    effort = Effort() if saved.within is None else Effort(timeout=saved.within)
    record = ask_again(name, chosen[0], saved.question, saved.dtype, saved.device, effort, saved.parameters)
    finished = RunFinished(name, [record], record.seconds, options=None, command=options.command)
    if record.verdict == Verdict.VIOLATED:
        show_coloured(wrapped(violation(record), columns(sys.stdout)))
    else:
        show(f"{record.verdict.upper()} {record.id}\n  {record.reason or f'when it was saved: {saved.reason}'}")
    if options.json:
        write(options.json, files.as_json(finished, maker))
    tally = counts([record])
    return 1 if tally["violated"] else 0 if tally["holds"] else 2

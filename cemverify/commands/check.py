"""`cemverify check`: judges an implementation."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch

from cemverify.commands.arguments import DTYPES, check_outputs, positive
from cemverify.conformance import isolation
from cemverify.conformance.engine import Effort, RunFinished
from cemverify.conformance.isolation import cores
from cemverify.conformance.listeners import files, terminal
from cemverify.conformance.properties import select
from cemverify.conformance.verdicts import counts, exit_code
from cemverify.results import Maker, write, write_text

DESCRIPTION = """\
Asks an implementation about every property of the catalogue that it offers, with examples that Hypothesis
draws and, on a violation, shrinks. Prints one row per property and the smallest counterexample of each
violation.

IMPLEMENTATION is module:attribute (found from the current folder too), or the name of an installed entry point
of the group "cemverify.implementations". Ten lines make one: see the README.

exit code: 0 all hold; 1 some are violated; 2 it could not be judged (bad arguments, an import that fails,
nothing ran, or not conclusively).
"""

EPILOG = """\
examples:
  cemverify check reference                            the reference implementation
  cemverify check mypkg.cem:implementation --json r.json --junit r.xml
  cemverify check mypkg.cem:implementation --properties gradient descent --examples 500 --seed 7
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cemverify check`."""
    parser.add_argument("implementation", metavar="IMPLEMENTATION", help="module:attribute, or an entry point's name")
    parser.add_argument(
        "--properties",
        nargs="+",
        default=[],
        metavar="ID",
        help="only these: ids, prefixes (gradient/mlp) or patterns",
    )
    parser.add_argument(
        "--examples", type=positive, default=60, metavar="N", help="examples per property (default 60)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="everything drawn follows from it (default 0)"
    )
    parser.add_argument(
        "--device", default="cpu", metavar="D", help="where torch implementations run: cpu, cuda, cuda:1"
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float64", help="what properties without a dtype are asked in"
    )
    parser.add_argument(
        "--workers", type=positive, default=cores(), metavar="N", help="worker processes (default: one per core)"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="time budget of a property (default 60)"
    )
    parser.add_argument(
        "--timeout", type=float, default=20.0, metavar="S", help="a call longer than this hung (default 20)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result file")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML, for CI")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a page")


def run(options: argparse.Namespace) -> int:
    """`cemverify check`."""
    properties = select(options.properties)
    effort = Effort(
        options.examples, options.seed, options.seconds, options.timeout, DTYPES[options.dtype], options.device
    )
    check_outputs(options.json, options.junit, options.markdown)
    torch.set_num_threads(1)  # as in the workers, and as the result says
    sys.path.insert(0, os.getcwd())  # as `python -m` would; workers inherit it
    configuration = {
        "properties": options.properties,
        "examples": effort.examples,
        "seconds": effort.seconds,
        "timeout": effort.timeout,
        "dtype": options.dtype,
        "workers": options.workers,
    }
    maker = Maker.now(options.command, configuration, effort.seed, effort.device)
    progress = terminal.Progress()
    finished: RunFinished | None = None
    for event in isolation.run(options.implementation, properties, effort, options.workers):
        progress(event)
        if isinstance(event, RunFinished):
            finished = event
    assert finished is not None
    print(terminal.report(finished))
    if options.json:
        write(options.json, files.as_json(finished, maker))
    if options.junit:
        write_text(options.junit, files.as_junit(finished))
    if options.markdown:
        write_text(options.markdown, files.as_markdown(finished, maker))
    return exit_code(counts(finished.records))

"""`python -m synthetic language COMMAND`: small language models, Llama and CEM, on the same tokens in the same order.

A command reads its options into a frozen configuration, hands that down, prints and writes what comes up; nothing
below knows of a command line. On the CPU a run repeats bit for bit; on a GPU, where sums are taken in any order, it
does not.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from cemverify.console.errors import UsageError
from cemverify.results.envelope import ResultError
from synthetic.language import scale, studies, train
from synthetic.language.arguments import Command
from synthetic.studies.engine.study import Study
from synthetic.training.machine import one_of_several

DESCRIPTION = """\
Trains small language models, Llama and CEM at several recursion depths T, on the same tokens in
the same order, and measures what they need: bits per byte, FLOPs, memory, energies that fall.
"""

EPILOG = """\
examples:
  python -m synthetic language train                      the smoke run: minutes on two CPU cores
  python -m synthetic language train --preset tiny --corpus hidden
  python -m synthetic language study diagonal --seeds 3   one of the paper's experiments, made small
  python -m synthetic language second-step --estimate     what it takes to know whether T = 2 helps
  python -m synthetic language fixed-memory --estimate    what a fixed memory costs: by a plan made before
  python -m synthetic language scale FILE ...             what second-step found at several lengths
  python -m synthetic language dial --corpus hidden       one model for every number of steps

Each command has a --help of its own; docs/language.md explains the tables.
"""


class Entry(NamedTuple):
    """A command: a summary of one line, what follows its name, what adds its options, and what does as they ask."""

    summary: str
    usage: str
    add_arguments: Callable[[Command], None]
    run: Callable[[argparse.Namespace], int]


def _file(module: Any) -> Entry:
    """A command that has a file of its own."""
    return Entry(module.SUMMARY, module.USAGE, module.add_arguments, module.run)


def _study(found: Study | None) -> Entry:
    """A study whose rows find their own rates; one that the command line names, if it is None."""
    words = (studies.OWN_SUMMARY, studies.OWN_USAGE) if found is None else (found.summary, studies.USAGE)
    return Entry(*words, partial(studies.add_arguments, study=found), partial(studies.run, study=found))


COMMANDS = {
    "train": _file(train),
    "study": Entry(studies.PAPERS_SUMMARY, studies.PAPERS_USAGE, studies.add_papers_arguments, studies.run_papers),
    **{found.name: _study(found) for found in studies.STUDIES},
    "scale": _file(scale),
    "own": _study(None),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The commands of `python -m synthetic language`."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Command)
    made = {}
    for name, entry in COMMANDS.items():
        made[name] = commands.add_parser(name, help=entry.summary, usage=f"%(prog)s {entry.usage}")
        entry.add_arguments(made[name])
    for command in made.values():
        command.beside = made


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns the exit code.

    Raises:
        UsageError: an option is invalid, or the corpus is not available.
        cemverify.results.envelope.ResultError: a file cannot be written.
    """
    try:
        if options.command != "train" and one_of_several():
            raise UsageError(
                f"torchrun trains one model together, and {options.command} several by themselves: start it without"
                " torchrun (a study spreads by --workers, --shard and --cluster)"
            )
        return COMMANDS[options.command].run(options)
    except (UsageError, ResultError):
        if int(os.environ.get("RANK", "0")) > 0:  # the first process tells it
            return 2
        raise

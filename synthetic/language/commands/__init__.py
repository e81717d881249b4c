"""`python -m synthetic language COMMAND`: one file for each command, and what they share.

A command reads its options into a frozen configuration, hands that down, prints and writes what comes up.
"""

from __future__ import annotations

import argparse
import os

from cemverify.console.errors import UsageError
from cemverify.results.envelope import ResultError
from synthetic.language.commands import compare, dial, scale, second_step, study, train
from synthetic.language.commands.arguments import Command
from synthetic.language.training.machine import one_of_several

DESCRIPTION = """\
Trains small language models, Llama and CEM at several recursion depths T, on the same tokens in
the same order, and measures what they need: bits per byte, FLOPs, memory, energies that fall.
"""

EPILOG = """\
examples:
  python -m synthetic language train                      the smoke run: minutes on two CPU cores
  python -m synthetic language train --preset tiny --corpus hidden
  python -m synthetic language study diagonal --seeds 3   one of the paper's experiments, made small
  python -m synthetic language second-step --estimate     what it takes to know whether T = 2 pays
  python -m synthetic language scale FILE ...             its results at several lengths and sizes
  python -m synthetic language dial --corpus hidden       one model for every number of steps
  python -m synthetic language compare mymodule:layers    your layers in the same harness

Each command has a --help of its own; docs/language.md explains the tables.
"""

COMMANDS = {
    "train": train,
    "study": study,
    "second-step": second_step,
    "scale": scale,
    "dial": dial,
    "compare": compare,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The commands of `python -m synthetic language`."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Command)
    made = {}
    for name, module in COMMANDS.items():
        made[name] = commands.add_parser(name, help=module.SUMMARY, usage=f"%(prog)s {module.USAGE}")
        module.add_arguments(made[name])
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
        return int(COMMANDS[options.command].run(options))
    except (UsageError, ResultError):
        if int(os.environ.get("RANK", "0")) > 0:  # the first process tells it
            return 2
        raise

"""`python -m synthetic language COMMAND`: small language models, Llama and CEM, on the same tokens in the same order.

A command reads its options into a frozen configuration, passes that down, and prints and writes what is returned; the
code below knows no command line. On the CPU a run repeats bit for bit; on a GPU it does not, because sums are taken
in any order.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from synthetic.language import studies, train
from synthetic.language.arguments import Command

DESCRIPTION = """\
Trains small language models, Llama and CEM at several recursion depths T, on the same tokens in
the same order, and measures what they need: bits per byte, FLOPs, memory, energies that fall.
"""

EPILOG = """\
examples:
  python -m synthetic language train                           the smoke run: minutes on two CPU cores
  python -m synthetic language train --preset tiny --corpus hidden
  python -m synthetic language study diagonal --seeds 3        one of the paper's experiments, made small
  python -m synthetic language study second-step --estimate    what it takes to know whether T = 2 helps
  python -m synthetic language study fixed-memory --estimate   what a fixed memory costs: by a plan made before
  python -m synthetic language study dial --corpus hidden      one model for every number of steps

Each command has a --help of its own; docs/language.md explains the tables.
"""


COMMANDS: Mapping[str, Any] = {"train": train, "study": studies}
# `second-step` is short for `study second-step`
SHORT = {name: study.summary for name, study in studies.STUDIES.items() if not study.papers}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The commands of `python -m synthetic language`."""
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Command)
    for name, module in COMMANDS.items():
        command = commands.add_parser(name, help=module.SUMMARY, usage=f"%(prog)s {module.USAGE}")
        module.add_arguments(command)
    for name, summary in SHORT.items():
        command = commands.add_parser(name, help=summary, usage=f"%(prog)s {studies.USAGE.removeprefix('NAME ')}")
        studies.add_arguments(command, name)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    return int(COMMANDS.get(options.command, studies).run(options))

"""`python -m synthetic language study`: one of the paper's experiments: estimate, cells, tables, statements, page."""

from __future__ import annotations

import argparse

from cemverify.cem import presets as paper
from cemverify.console.parsing import seed, whole
from synthetic.language import studies
from synthetic.language.arguments import NUMBERS_HELP, Command, add_recipe_arguments
from synthetic.language.places import add_when
from synthetic.studies.paper import study
from synthetic.studies.paper.rows import EXPERIMENTS
from synthetic.training.frames import TINY

SUMMARY = "repeat one of the paper's experiments, with several seeds, and read its statements"
USAGE = "NAME [--size SIZE] [--seeds N] [option ...]"

DESCRIPTION = """\
Trains every model of an experiment, compares them at equal tokens, FLOPs and parameters, and reads the
paper's statements against that. Every training is kept, and the same command goes on from there.
"""

LISTED = "\n".join(f"{name:<22}{found.title} ({found.figure})" for name, found in EXPERIMENTS.items())

HOW = f"""\
{LISTED}
--size SIZE           {", ".join((TINY, *paper.SIZES))}; tiny (the default) trains on a laptop
--seeds N --seed S    N trainings of each model, from seed S on (default: 6 from 0; 1 beyond tiny)
{NUMBERS_HELP} (tiny)"""

EPILOG = """\
example: python -m synthetic language study recursion --size 86M --estimate
"""


def add_arguments(parser: Command) -> None:
    """The options of the command."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add = add_recipe_arguments(parser, "the study", HOW)
    add("experiment", metavar="NAME")
    add("--size", default=TINY)
    add("--seeds", type=whole(1))
    add("--seed", type=seed, default=0)
    add_when(parser, "")
    # what the other studies have options for
    parser.set_defaults(replaced=None, depth=None, per_parameter=None, rows=(), beyond=False, compile=False)
    parser.set_defaults(tuning=2, tuning_seeds=1, preconditioner=None)


def run(options: argparse.Namespace) -> int:
    """Conducts the study, prints its tables, writes its result file and its page; returns the exit code.

    Raises:
        UsageError: an option is invalid, or the corpus is not available.
        cemverify.results.envelope.ResultError: something cannot be written.
    """
    return studies.run(options, study(options.experiment))

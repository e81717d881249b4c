"""The options of `cemverify power`."""

from __future__ import annotations

import argparse
from pathlib import Path

from cemverify.conformance.implementations import naming
from cemverify.console.parsing import count
from cemverify.options import completers
from cemverify.runs.arguments import add_run_arguments

DESCRIPTION = """\
Measures how much a passing run is worth. Implementations with one known fault (mutants) are tested against the
property that must catch the fault, and correct implementations against every property, with many seeds. The report
gives the probability that each fault is detected, with its exact confidence interval; the smallest fault that each
family of properties detects; and how often a correct implementation is called wrong.

Without an argument the mutants are measured as they are. With IMPLEMENTATION the same faults are put into that one,
around its own outputs, so you learn how much a passing run of yours is worth. Faults of features that it does not
offer are reported as not applicable.
"""


EPILOG = """\
The whole measurement takes about two hours on two cores. Every finished part of it is kept (--store), so you can stop
it at any time and give the same command again. Editing cemverify or the implementation starts afresh.

examples:
  cemverify power --families subtle --seeds 5 --examples 60 --no-sweep --no-bank   a first look, about a minute
  cemverify power mypkg.cem:implementation                                         what a pass means for mine
  cemverify power --json power.json --markdown docs/power.md                       the published page
  cemverify power --matrix 1                                                       every mutant, every property: hours

exit code: 0 if every mutant was killed with every seed and no correct implementation was called wrong; 1 if not;
2 if the arguments are invalid or a measurement failed.
"""


HOW = "Every finished measurement is kept, so a run that was stopped continues from there."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cemverify power`."""
    faulty = parser.add_argument(
        "implementation",
        nargs="?",
        metavar="IMPLEMENTATION",
        help="module:attribute, or the name of an entry point (default: the mutants as they are)",
    )
    completers.complete_with(faulty, completers.implementations)
    parser.add_argument("--seeds", type=count, default=20, metavar="N", help="use seeds 0 to N-1 (default: 20)")
    parser.add_argument(
        "--examples",
        type=count,
        nargs="+",
        default=[15, 60],
        metavar="N",
        help="examples for each property; of several, the largest decides what is killed (default: 15 60)",
    )
    parser.add_argument("--families", nargs="+", default=[], metavar="F", help="only mutants of these families")
    parser.add_argument(
        "--matrix", type=count, default=0, metavar="N", help="also test every mutant against every property, N seeds"
    )
    parser.add_argument("--no-sweep", action="store_true", help="do not look for the smallest fault")
    parser.add_argument(
        "--no-bank",
        action="store_true",
        help="do not look for false alarms: leave out the bank of correct implementations",
    )
    parser.add_argument(
        "--bank",
        nargs="+",
        default=["*"],
        metavar="NAME",
        help="of the bank of correct implementations, use only these to look for false alarms; "
        "* matches any text (default: all)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page")
    add_run_arguments(parser, HOW)


def prepare(options: argparse.Namespace) -> None:
    """Refuses a name under which there is nothing."""
    if options.implementation is not None:
        options.implementation = naming.settled(options.implementation)

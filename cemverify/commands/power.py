"""`cemverify power`: what it is worth that properties hold."""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
from collections.abc import Sequence

from cemverify.commands import completers
from cemverify.commands.slow_imports import slow_imports
from cemverify.conformance.implementations import naming
from cemverify.console.errors import UsageError
from cemverify.console.parsing import count, path
from cemverify.console.streams import columns, note
from cemverify.runs import ShardFinished, run_options
from cemverify.runs.arguments import add_run_arguments

DESCRIPTION = """\
Measures how much a passing run is worth. Implementations with one known fault (mutants) are tested against the
property that must catch the fault, and correct implementations against every property, with many seeds. The report
gives the probability that each fault is detected, with its exact confidence interval; the smallest fault that each
family of properties detects; and how often a correct implementation is called wrong.

Without an argument, the mutants are measured as they are. With IMPLEMENTATION, the same faults are put into yours,
around its own outputs, so you learn how much a passing run of yours is worth. Faults of features that it does not
offer are reported as not applicable.
"""


EPILOG = """\
The whole measurement takes about two hours on two cores. Every finished part of it is kept (--store), so you can stop
it at any time and give the same command again. Editing what judges, or the implementation, starts afresh.

examples:
  cemverify power --families subtle --seeds 5 --examples 60 --no-sweep --no-bank   a first look, about a minute
  cemverify power mypkg.cem:implementation                                         what a pass means for mine
  cemverify power --json power.json --markdown docs/power.md                       the published page

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
        help="examples for each property; with several, the largest decides what is killed (default: 15 60)",
    )
    parser.add_argument("--families", nargs="+", default=[], metavar="F", help="only mutants of these families")
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
        help="use only these of the bank of correct implementations to look for false alarms; "
        "* matches any text (default: all)",
    )
    parser.add_argument("--json", type=path, metavar="FILE", help="write the result file")
    parser.add_argument("--markdown", type=path, metavar="FILE", help="write the page")
    add_run_arguments(parser, HOW)


def run(options: argparse.Namespace) -> int:
    """`cemverify power`.

    Raises:
        Interrupted: Ctrl-C; the message says how to resume.
    """
    if options.implementation is not None:
        options.implementation = naming.settled(options.implementation)
    with slow_imports():
        import torch

        from cemverify.power import pages
        from cemverify.power.bank import BANK
        from cemverify.power.measuring import measure_power
        from cemverify.power.plan import PowerPlan
        from cemverify.results.envelope import check_outputs, show, write, write_text
        from cemverify.results.provenance import Maker

    sources = [] if options.implementation is None else naming.files(options.implementation)
    check_outputs(options.json, options.markdown, stores=[options.store], read=sources)
    where = run_options(options)
    torch.set_num_threads(1)  # as in the workers, and as the result states
    sys.path.insert(0, os.getcwd())  # as `python -m` does; workers inherit it
    correct = _correct(options.implementation, options.bank)
    plan = PowerPlan(
        options.seeds,
        tuple(sorted(set(options.examples))),
        options.implementation,
        () if options.no_bank else correct,
        frozenset(correct.name for correct in BANK if correct.costly),
        tuple(options.families),
        not options.no_sweep,
    )
    names = ("implementation", "seeds", "budgets", "bank", "families", "sweep")
    configuration = {**{name: getattr(plan, name) for name in names}, "workers": where.workers}
    maker = Maker.now(options.command, configuration, 0, "cpu")
    try:
        power = measure_power(plan, where)
    except ShardFinished as told:
        print(told, file=sys.stderr)
        return 0
    if options.json:
        write(options.json, pages.as_json(power, maker))
    if options.markdown:
        write_text(options.markdown, pages.as_markdown(power, options.command))
    show(pages.as_terminal(power, columns(sys.stdout)))
    return 0 if power.sound else 1


def _correct(implementation: str | None, patterns: Sequence[str]) -> tuple[str, ...]:
    """Implementations that nothing may call wrong: the given one, or those of the bank chosen and installed here."""
    from cemverify.power.bank import BANK, unavailable

    if implementation is not None:
        return (implementation,)
    correct_names = [correct.name for correct in BANK]
    if strange := [pattern for pattern in patterns if not fnmatch.filter(correct_names, pattern)]:
        raise UsageError(f"no correct implementation is called {strange[0]!r}; there are {', '.join(correct_names)}")
    names = []
    for correct in BANK:
        if not any(fnmatch.fnmatchcase(correct.name, pattern) for pattern in patterns):
            continue
        reason = unavailable(correct)
        if reason is None:
            names.append(correct.name)
        else:
            note(f"left out of the bank: {correct.name} ({reason})")
    return tuple(names)

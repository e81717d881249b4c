"""`cemverify power`: what a green verdict would have caught."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch

from cemverify.commands.arguments import check_outputs, positive
from cemverify.conformance.workers.isolation import cores
from cemverify.power import pages
from cemverify.power.bank import BANK, unavailable
from cemverify.power.plan import Plan, measure_power
from cemverify.power.store import Store
from cemverify.results import Maker, show, write, write_text

DESCRIPTION = """\
Puts implementations with one known fault before the property that must catch it, at several budgets and many
seeds, and correct implementations before every property. Prints the probability of detection with its exact
interval, the smallest fault that is seen, and how often a correct implementation is called wrong.

With IMPLEMENTATION the same faults are put into that one, around its own answers, so that you learn what a green
verdict on *it* is worth. Faults of features that it does not offer are counted as not applicable.

What was measured is kept in a folder: a run that was interrupted goes on where it ended.

exit code: 0 every mutant was killed with every seed, and no correct implementation was called wrong; 1 otherwise;
2 bad arguments.
"""

EPILOG = """\
examples:
  cemverify power --json power.json --markdown docs/power.md     as published
  cemverify power mypkg.cem:implementation                        what a green on mine is worth
  cemverify power --families subtle --seeds 5 --budgets 60 --no-sweep --no-bank       a quick look
  cemverify power --matrix 1                                      every property x every mutant; takes hours
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cemverify power`."""
    parser.add_argument(
        "implementation",
        nargs="?",
        metavar="IMPLEMENTATION",
        help="module:attribute, or an entry point's name; without it, the mutants as they are",
    )
    parser.add_argument("--seeds", type=positive, default=20, metavar="N", help="seeds 0 to N-1 (default 20)")
    parser.add_argument(
        "--budgets",
        type=positive,
        nargs="+",
        default=[15, 60],
        metavar="N",
        help="examples per property; the largest decides what counts as killed (default 15 60)",
    )
    parser.add_argument("--families", nargs="+", default=[], metavar="F", help="only these families of mutants")
    parser.add_argument(
        "--matrix", type=positive, default=0, metavar="N", help="also every property x every mutant, with N seeds"
    )
    parser.add_argument("--no-sweep", action="store_true", help="do not look for the smallest fault")
    parser.add_argument("--no-bank", action="store_true", help="do not look for false alarms")
    parser.add_argument(
        "--store",
        type=Path,
        default=Path("out/power"),
        metavar="DIR",
        help="where measurements are kept (default out/power)",
    )
    parser.add_argument(
        "--workers", type=positive, default=cores(), metavar="N", help="worker processes (default: one per core)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page")


def run(options: argparse.Namespace) -> int:
    """`cemverify power`."""
    check_outputs(options.json, options.markdown)
    if options.store.exists() and not options.store.is_dir():
        raise ValueError(f"--store {options.store} is a file: name a folder, it is made where it is missing")
    torch.set_num_threads(1)  # as in the workers, and as the result says
    sys.path.insert(0, os.getcwd())  # as `python -m` would; workers inherit it
    plan = Plan(
        options.seeds,
        tuple(sorted(set(options.budgets))),
        options.implementation,
        () if options.no_bank else _correct(options.implementation),
        frozenset(entry.name for entry in BANK if entry.costly),
        tuple(options.families),
        options.matrix,
        not options.no_sweep,
    )
    configuration = {
        "implementation": plan.implementation,
        "seeds": plan.seeds,
        "budgets": list(plan.budgets),
        "bank": list(plan.bank),
        "families": list(plan.families),
        "matrix": plan.matrix,
        "sweep": plan.sweep,
        "workers": options.workers,
    }
    maker = Maker.now(options.command, configuration, 0, "cpu")
    try:
        power = measure_power(plan, Store(options.store), options.workers, pages.Meter())
    except KeyboardInterrupt:
        print(
            f"\ncemverify: interrupted; what was measured is in {options.store}, and the same command goes on there",
            file=sys.stderr,
        )
        return 130
    show(pages.as_terminal(power))
    if options.json:
        write(options.json, pages.as_json(power, maker))
    if options.markdown:
        write_text(options.markdown, pages.as_markdown(power, options.command))
    return 0 if power.sound else 1


def _correct(implementation: str | None) -> tuple[str, ...]:
    """Whom nothing may call wrong: the given one, or the bank as far as it is installed here."""
    if implementation is not None:
        return (implementation,)
    names = []
    for entry in BANK:
        reason = unavailable(entry)
        if reason is None:
            names.append(entry.name)
        else:
            print(f"left out of the bank: {entry.name} ({reason})", file=sys.stderr)
    return tuple(names)

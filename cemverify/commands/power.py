"""`cemverify power`: what a verdict that holds is worth."""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
from collections.abc import Sequence

from cemverify.console.errors import UsageError
from cemverify.console.streams import columns
from cemverify.power.bank import BANK, unavailable
from cemverify.results.envelope import check_outputs, show, write, write_text
from cemverify.results.provenance import Maker
from cemverify.runs import ShardFinished, run_options


def run(options: argparse.Namespace) -> int:
    """`cemverify power`.

    Raises:
        UsageError: an option is invalid, or a measurement failed. ResultError: a file cannot be written.
        Interrupted: Ctrl-C; the message says how to go on.
    """
    import torch

    from cemverify.power import pages
    from cemverify.power.measuring import measure_power
    from cemverify.power.plan import PowerPlan

    check_outputs(options.json, options.markdown)
    where = run_options(options)
    torch.set_num_threads(1)  # as in the workers, and as the result says
    sys.path.insert(0, os.getcwd())  # as `python -m` would; workers inherit it
    plan = PowerPlan(
        options.seeds,
        tuple(sorted(set(options.examples))),
        options.implementation,
        () if options.no_bank else _correct(options.implementation, options.bank),
        frozenset(correct.name for correct in BANK if correct.costly),
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
        "workers": where.workers,
    }
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
    """Whom nothing may call wrong: the given one, or those of the bank that are asked for and installed here.

    Raises:
        UsageError: a pattern fits none of the bank.
    """
    if implementation is not None:
        return (implementation,)
    known = [correct.name for correct in BANK]
    if strange := [pattern for pattern in patterns if not fnmatch.filter(known, pattern)]:
        raise UsageError(f"no correct implementation is called {strange[0]!r}; there are {', '.join(known)}")
    names = []
    for correct in BANK:
        if not any(fnmatch.fnmatchcase(correct.name, pattern) for pattern in patterns):
            continue
        reason = unavailable(correct)
        if reason is None:
            names.append(correct.name)
        else:
            print(f"left out of the bank: {correct.name} ({reason})", file=sys.stderr)
    return tuple(names)

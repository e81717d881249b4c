"""Detection power for readers: tables, a page that explains how to read them, a result file."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from cemverify.power.findings import Measured, Power, Smallest
from cemverify.power.plan import BANK_EXAMPLES, SWEPT_SEEDS
from cemverify.power.statistics import clopper_pearson
from cemverify.results.envelope import Table, result
from cemverify.results.provenance import Maker
from cemverify.results.tables import folded, grid, terminal


def as_terminal(power: Power, width: int | None = None) -> str:
    """The tables and a summary; only mutants that survived with some seed are listed.

    Args:
        width: columns of the terminal; None if there is none.
    """
    tables = [table for table in (families_table(power), alarms_table(power), smallest_table(power)) if table.rows]
    weak = [m for m in power.applicable if not m.killed]
    if weak:
        tables.append(mutants_table(power, weak, "Survivors"))
    return "\n\n".join((terminal(tables, width=width), summary(power)))


def summary(power: Power) -> str:
    """What `cemverify power` found, in a few lines."""
    plan, total = power.plan, len(power.applicable)
    killed = f"{power.killed} of {total} mutants were killed by their property, for their cause"
    lines = [f"{killed}, with each of {plan.seeds} seeds at {plan.budget} examples."]
    if missing := len(power.mutants) - total:
        lines.append(f"Faults that could not be tested here: {missing}, listed at the end with the reason.")
    if power.false_alarm_bound is not None:
        lines.append(
            f"False alarms in {power.runs_without_fault} runs of a property on correct implementations: "
            f"{power.false_alarms}. At 95 % confidence, their rate is at most {power.false_alarm_bound:.2g}."
        )
    return "\n".join(lines)


def families_table(power: Power) -> Table:
    """The mutation score per family."""
    rows = [(family, total, killed, f"{killed / total:.0%}") for family, killed, total in power.families()]
    if rows:
        total = len(power.applicable)
        rows.append(("all", total, power.killed, f"{power.killed / total:.0%}"))
    title = f"Mutation score at {power.plan.budget} examples, {power.plan.seeds} seeds"
    return Table(title, ("faults of", "mutants", "killed", "score"), rows)


def alarms_table(power: Power) -> Table:
    """False alarms per correct implementation."""
    columns = ("implementation", "properties", "runs", "false alarms", "undecided", "first")
    title = f"Correct implementations, {BANK_EXAMPLES} examples per property and seed"
    counts = [map(str, (a.properties, a.runs, a.alarms, a.undecided)) for a in power.alarms]
    rows = [(a.implementation, *numbers, a.first or "") for a, numbers in zip(power.alarms, counts, strict=True)]
    return Table(title, columns, rows)


def smallest_table(power: Power) -> Table:
    """The smallest fault per family, one column per dtype."""
    families = dict.fromkeys(s.family for s in power.smallest)
    dtypes = tuple(dict.fromkeys(s.dtype for s in power.smallest))
    by = {(s.family, s.dtype): s for s in power.smallest}
    rows = [(family, *(_size(by.get((family, dtype))) for dtype in dtypes)) for family in families]
    return Table(
        "Smallest relative fault in one feature, position or row that every seed detects", ("family", *dtypes), rows
    )


def mutants_table(power: Power, chosen: Sequence[Measured], title: str) -> Table:
    """One row per mutant, one column per budget."""
    shares = [f"at {budget}" for budget in sorted(power.plan.budgets)]
    columns = ("mutant", "killed by", *shares, "95 % interval", "median examples")
    rows = [_mutant_row(measured) for measured in chosen]
    return Table(title, columns, rows)


def as_json(power: Power, maker: Maker) -> dict[str, Any]:
    """The measurements for a result file."""
    tables = [families_table(power), alarms_table(power), smallest_table(power)]
    tables.append(mutants_table(power, power.applicable, "Mutants"))
    return result("power", maker, tables, power.describe())


def as_markdown(power: Power, command: str) -> str:
    """The page. Nothing in it depends on the machine or the day."""
    parts = ["# Detection power", _preface(power, command), summary(power), _reading(power), *_mutants(power)]
    if power.alarms:
        table = alarms_table(power)
        if not power.false_alarms:  # the columns that describe them are left out
            rows = [(*row[:3], row[4]) for row in table.rows]
            table = Table(table.title, (*table.columns[:3], "undecided"), rows)
        parts += [f"## {table.title}", folded(f"{len(table.rows)} implementations", grid(table, "markdown"))]
    if power.smallest:
        table = smallest_table(power)
        parts += [f"## {table.title}", grid(table, "markdown"), _SIZES]
    absent = [f"* {m.mutant.id}: {m.inapplicable}" for m in power.mutants if m.inapplicable is not None]
    if absent:
        parts += ["## Faults that could not be tested here", "\n".join(absent)]
    return "\n\n".join(parts) + "\n"


_SIZES = f"""\
The fault is an update that is too small by a relative epsilon in its last feature or at its last position, in the
dtype of the column. (The structure family is also asked about the last row of the batch; in float32 and bfloat16 only
the last feature is tried.) The figure is the smallest epsilon, on a grid of 1, 2 and 5 times powers of ten, that some
property of the family detects with each of {SWEPT_SEEDS} seeds. A dash means that the family detects no fault of this
kind, whatever its size, because it tests something else."""


def _preface(power: Power, command: str) -> str:
    whose = "The faults are those of the mutants in `cemverify.power.mutants`."
    if power.plan.implementation is not None:
        whose = f"The faults are those of the mutants, put into `{power.plan.implementation}`."
    return (
        "Which faults a run of the verifier catches, and how reliably, for whoever relies on a pass. "
        f"{whose} They were written beside the properties that kill them; [blind rounds](blind-rounds.md) test "
        f"faults that were not. This page is generated by `{command}`."
    )


def _reading(power: Power) -> str:
    budget, seeds = power.plan.budget, power.plan.seeds
    least = clopper_pearson(seeds, seeds)[0]
    return f"""\
## How to read it

A *mutant* is an implementation with one deliberate fault. It counts as *killed* only if the property named for it is
violated, for the cause named for it, with every seed; a crash or a violation of some other property does not count.
{seeds} of {seeds} seeds mean that {budget} examples find the fault with a probability of at least {least:.0%},
at 95 % confidence (the exact binomial interval of Clopper and Pearson).

A *false alarm* is a correct implementation that is called wrong. None in n runs does not prove that there are none;
the bound says how rare they must be. A run is *undecided* if it called the implementation neither right nor wrong,
which happens when so few examples do not suffice. Each seed tests an implementation that runs through a compiler on a
fifth of the properties, in turn."""


def _mutant_row(measured: Measured) -> tuple[str, ...]:
    last = measured.detections[-1]
    interval, median = f"{last.low:.2f} … {last.high:.2f}", "–" if last.median is None else f"{last.median:g}"
    shares = (f"{detection.probability:.0%}" for detection in measured.detections)
    return (measured.mutant.id, measured.mutant.property, *shares, interval, median)


def _size(smallest: Smallest | None) -> str:
    return "–" if smallest is None or smallest.epsilon is None else f"{smallest.epsilon:.0e}"


def _mutants(power: Power) -> list[str]:
    """The score of each family, with the faults that each property must find; survivors of any seed come first."""
    few, budget = min(power.plan.budgets), power.plan.budget
    words = (
        "By family, the faults that each property must find. In brackets, unless it is all: the share of seeds with "
        f"which {few} examples found one."
    )
    if medians := [m.detections[-1].median or budget for m in power.applicable]:
        half = f"{statistics.median(medians):g}"
        words += f" By the median of the seeds, half of the faults take at most {half} examples."
    parts = [f"## Mutation score at {budget} examples, {power.plan.seeds} seeds", words]
    if weak := [m for m in power.applicable if not m.killed]:
        parts.append(grid(mutants_table(power, weak, "Survivors"), "markdown"))
    by_property = attrgetter("mutant.property")
    for family, killed, total in power.families():
        chosen = sorted((m for m in power.applicable if m.mutant.family == family), key=by_property)
        lists = ["\n".join((f"`{id_}` kills:\n", *map(_fault, of))) for id_, of in groupby(chosen, by_property)]
        parts.append(folded(f"{family}: {killed} of {total}", *lists))
    return parts


def _fault(measured: Measured) -> str:
    few = measured.detections[0]
    share = "" if few.probability == 1 else f" ({few.probability:.0%})"
    survived = f" **Survived**: {measured.otherwise}." if measured.otherwise else ""
    return f"* **{measured.mutant.id}**{share}: {measured.mutant.fault}{survived}"

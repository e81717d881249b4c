"""The tables that every study of rows with rates of their own can show."""

from __future__ import annotations

import math

from cemverify.results.envelope import Cell, Table
from cemverify.results.numbers import NOTHING
from synthetic.studies.engine import power
from synthetic.studies.engine.designs import cost, parameters
from synthetic.studies.engine.estimates import Speed
from synthetic.studies.engine.plan import Plan
from synthetic.studies.engine.rates import rate
from synthetic.studies.engine.tuning import State, trainings


def tuning(found: State, unit: str) -> Table:
    """Every training of the tuning: bits per byte on the tuning half."""
    tried = sorted({k for tuned in found.rows for curve in tuned.curves for k in curve.bits})
    rows: list[list[Cell]] = []
    for tuned in found.rows:
        for curve in tuned.curves:
            shown: list[Cell] = [_bits(curve.bits.get(k), k == curve.best) for k in tried]
            taken = NOTHING if tuned.rate is None or curve is not tuned.curves[-1] else f"{tuned.rate:.3g}"
            rows.append([tuned.row.name, f"{curve.share:.3g}", *shown, taken])
    columns = ("row", "share of the length", *(f"{rate(k):.3g}" for k in tried), "rate taken")
    return Table(f"Tuning: bits/{unit} at each learning rate, the best of a line starred", columns, rows)


def costs(study: str, plan: Plan, speed: Speed) -> Table:
    """What a study takes, before it is begun."""
    rows: list[list[Cell]] = []
    total, counts = 0.0, trainings(plan)
    for row in plan.rows:
        of_one = cost(row.design, plan.recipe.context).training * plan.recipe.tokens
        hours = of_one * counts[row.name] / speed.flops_per_second / 3600
        total += hours
        rows.append(
            [row.name, f"{parameters(row.design):,}", f"{of_one:.3g}", f"{counts[row.name]:.3g}", _hours(hours)]
        )
    rows.append(["all", NOTHING, NOTHING, NOTHING, _hours(total)])
    title = (
        f"Cost of {study}, {plan.replaced}, at size {plan.size}: {plan.recipe.tokens:,} tokens a training;"
        f" hours of one device, at {speed.words}"
    )
    return Table(title, ("row", "parameters", "FLOPs of a training", "trainings", "hours"), rows)


def need(deviation: float | None = None, of: str = "") -> Table:
    """The power analysis.

    Args:
        deviation: of log ratios, where it was measured; that of pilots otherwise. of: which ratio that was.
    """
    if deviation:
        return power.needs(deviation, f"measured here, {of}")
    return power.needs(power.PILOT_SPREAD, "of pilots with D = 64")


def _bits(bits: float | None, best: bool) -> str:
    if bits is None:
        return NOTHING
    return "diverged" if math.isinf(bits) else f"{bits:.4f}{'*' if best else ''}"


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2f}"

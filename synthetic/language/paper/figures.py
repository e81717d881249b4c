"""The figures of a language study: ratios to the baseline along the way and by cost, and bits over learning rates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.pictures.charts import Curve, Panel, side_by_side
from synthetic.language.paper.studies import ALIBI, FULL, RATES, ROTARY, WIDENED, StudyPlan, at_rate
from synthetic.language.paper.summary import Row

# The first validations, where everything is far from what it will be, would flatten the rest.
SHOWN_FROM = 4
BASELINE = ("baseline", 1.0)


def ratios(plan: StudyPlan, rows: Sequence[Row], unit: str) -> str:
    """For each baseline two panels: ratios of bits along the way, and the last ones against training FLOPs."""
    panels = []
    for base in rows:
        group = [row for row in rows if row.variant.against == base.name and row.tokens is not None]
        if group:
            along = [_along(plan, row, base) for row in group]
            by_cost = [_by_cost(row) for row in group]
            spent = sorted(curve.x[0] for curve in by_cost)
            title = f"against {base.name}"
            panels.append(Panel(title, "tokens", f"bits/{unit} over the baseline's", along, BASELINE))
            ends = (spent[0], spent[-1])
            panels.append(Panel("after the last step", "training kFLOPs per token", "", by_cost, BASELINE, ends))
    return side_by_side(panels or [Panel("too many runs diverged", "tokens", f"bits/{unit}", [])])


def learning_rates(rows: Sequence[Row], unit: str) -> str:
    """Mean bits of each model over the learning rate, and the range over its seeds."""
    named = {row.name: row for row in rows}
    curves = []
    for name in (ROTARY, ALIBI, FULL, FULL + WIDENED):
        sound = [rate for rate in RATES if not named[at_rate(name, rate)].diverged]
        found = [named[at_rate(name, rate)].finals for rate in sound]
        means = [math.fsum(bits) / len(bits) for bits in found]
        rates = [1e4 * rate for rate in sound]
        curves.append(Curve(name, rates, means, [min(bits) for bits in found], [max(bits) for bits in found]))
    ticks = [1e4 * rate for rate in RATES]
    panel = Panel("mean and range over seeds", "learning rate x 10,000", f"bits/{unit}", curves, ticks=ticks)
    return side_by_side([panel])


def _along(plan: StudyPlan, row: Row, base: Row) -> Curve:
    """The geometric mean over the seeds at each validation."""
    first = min(SHOWN_FROM, len(row.records[0].steps) - 1)
    steps = row.records[0].steps[first:]
    tokens = [step * plan.recipe.batch * plan.recipe.context for step in steps]
    means = [
        math.exp(
            math.fsum(math.log(a.bits[i] / b.bits[i]) for a, b in zip(row.records, base.records, strict=True))
            / len(row.records)
        )
        for i in range(first, first + len(steps))
    ]
    return Curve(row.name, tokens, means)


def _by_cost(row: Row) -> Curve:
    """One point: the ratio at equal tokens with its 95 % interval."""
    assert row.tokens is not None
    ratio = row.tokens.ratio
    low, high = (ratio.mean if value is None else value for value in (ratio.low, ratio.high))
    return Curve(row.name, [row.records[0].training / 1e3], [ratio.mean], [low], [high])

"""The pictures of the study: rows side by side on one scale, the tuning curves, and how the steps lie.

Rows are labelled where they stand, and panels that show one quantity share its scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from cemverify.results.numbers import shown_ratio
from reports.pictures.charts import Curve, DotRow, Panel, dot_chart, side_by_side
from synthetic.language.paper.summary import MARGIN
from synthetic.language.training.steps import Steps
from synthetic.language.tuned import designs
from synthetic.language.tuned.halving import rate
from synthetic.language.tuned.plan import SecondStepPlan
from synthetic.language.tuned.study import State
from synthetic.language.tuned.summary import Summary


def ratios(plan: SecondStepPlan, summary: Summary) -> str:
    """Every row over T = 1, and the recursion over its controls: a dot for each seed, the mean and its interval."""
    one, deep = designs.one(), designs.several(plan.depth)
    groups = []
    for title, chosen in (
        (f"bits over those of {one}", [p for p in summary.pairs if p.base == one]),
        (f"bits of {deep} over those of", [p for p in summary.pairs if p.model == deep and p.base != one]),
    ):
        lines = []
        for pair in chosen:
            c = pair.comparison
            if c is not None:
                label = pair.model if pair.base == one else pair.base
                lines.append(DotRow(label, pair.ratios, c.ratio.mean, c.ratio.low, c.ratio.high, shown_ratio(c)))
        if lines:
            groups.append((title, lines))
    return dot_chart(groups, level=1.0, band=MARGIN, x_label="below 1: fewer bits")


def rates(found: State, unit: str) -> str:
    """Bits over the learning rate at the length that decided it, one curve for each row."""
    curves = []
    for tuned in found.rows:
        if not tuned.curves:
            continue
        shown = {k: bits for k, bits in tuned.curves[-1].bits.items() if math.isfinite(bits)}
        curves.append(Curve(tuned.row.name, [1e4 * rate(k) for k in shown], list(shown.values())))
    ticks = sorted({x for curve in curves for x in curve.x})
    panel = Panel("tuning half, before judging", "learning rate x 10,000", f"bits/{unit}", curves, ticks=ticks)
    return side_by_side([panel])


def steps(found: State, name: str) -> str | None:
    """How the steps of one row lie, layer by layer, at the start and after training; None without a record."""
    tuned = found.of(name)
    record = None if tuned is None else next((r for r in tuned.judged.values() if r is not None), None)
    if record is None:
        return None
    groups = []
    quantities: tuple[tuple[str, Callable[[Steps], Sequence[float]]], ...] = (
        ("length of each step over the stream", lambda layer: layer.lengths),
        ("cosine of each step with the one before", lambda layer: layer.turns),
        ("cosine of N(x_t), where a step is asked, with N(h)", lambda layer: layer.nearness[1:]),
    )
    for title, values in quantities:
        lines = [
            DotRow(f"{layer.place}, {when}", values(layer), None, told=", ".join(f"{v:.2f}" for v in values(layer)))
            for when, of_layers in (("start", record.start), ("trained", record.end))
            for layer in of_layers
        ]
        groups.append((title, sorted(lines, key=lambda line: line.label)))
    return dot_chart(groups, level=1.0, band=0.0, x_label="")

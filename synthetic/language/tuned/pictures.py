"""The pictures of the study: rows side by side on one scale, the tuning curves, and how the steps lie.

The same data gives the same bytes. Rows are labelled where they stand, and panels that show one quantity share its
scale.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from cemverify.results.numbers import shown_ratio
from reports.plots import Curve, Panel, svg
from synthetic.language.paper.summary import MARGIN
from synthetic.language.training.steps import Steps
from synthetic.language.tuned import designs
from synthetic.language.tuned.halving import rate
from synthetic.language.tuned.plan import SecondStepPlan
from synthetic.language.tuned.study import State
from synthetic.language.tuned.summary import Summary

_BLUE, _RED, _GREY = "#0072B2", "#D55E00", "#666666"


@dataclass(frozen=True)
class Line:
    """A line of a dot chart.

    Attributes:
        label: at the left. dots: small, one for each replicate. mean: a large one, low, high: its interval.
        told: at the right.
    """

    label: str
    dots: Sequence[float]
    mean: float | None
    low: float | None = None
    high: float | None = None
    told: str = ""


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
                lines.append(Line(label, pair.ratios, c.ratio.mean, c.ratio.low, c.ratio.high, shown_ratio(c)))
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
    return svg([panel])


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
            Line(f"{layer.place}, {when}", values(layer), None, told=", ".join(f"{v:.2f}" for v in values(layer)))
            for when, of_layers in (("start", record.start), ("trained", record.end))
            for layer in of_layers
        ]
        groups.append((title, sorted(lines, key=lambda line: line.label)))
    return dot_chart(groups, level=1.0, band=0.0, x_label="")


def dot_chart(groups: Sequence[tuple[str, Sequence[Line]]], *, level: float, band: float, x_label: str) -> str:
    """Groups of lines below each other on one scale.

    Args:
        level: where a vertical line stands. band: shaded from level / (1 + band) to level * (1 + band).
    """
    count = sum(len(lines) + 1.4 for _, lines in groups) or 1
    with matplotlib.rc_context({"svg.hashsalt": "cemverify", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(7.2, 0.9 + 0.27 * count), layout="constrained")
        FigureCanvasSVG(figure)
        axis = figure.subplots()
        axis.axvline(level, color=_GREY, linewidth=1)
        if band:
            axis.axvspan(level / (1 + band), level * (1 + band), color="#eeeeee", zorder=0)
        y, places, labels = 0.0, [], []
        right = axis.get_yaxis_transform()
        for title, lines in groups:
            axis.text(0.0, y, f" {title}", transform=right, va="center", fontweight="bold", fontsize=8.5)
            y += 1
            for line in lines:
                colour = _BLUE
                if line.low is not None and line.high is not None and not line.low <= level <= line.high:
                    colour = _RED if line.low > level else "#009E73"
                axis.plot(line.dots, [y] * len(line.dots), "o", markersize=3, alpha=0.6, color=_GREY)
                if line.mean is not None:
                    axis.plot([line.mean], [y], "o", markersize=6, color=colour)
                if line.low is not None and line.high is not None:
                    axis.hlines(y, line.low, line.high, color=colour, linewidth=1.6)
                axis.text(1.01, y, line.told, transform=right, va="center", fontsize=8)
                places.append(y)
                labels.append(line.label)
                y += 1
            y += 0.4
        axis.set_yticks(places, labels)
        axis.set_ylim(y, -0.7)
        axis.set_xlabel(x_label)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()

"""Figures as SVG: curves with intervals. The numbers are in the tables next to them.

The same data gives the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart by everybody
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", ":", "-.")
_MARKERS = ("o", "s", "^")


@dataclass(frozen=True)
class Curve:
    """A line of points.

    Attributes:
        name: as in the legend. x, y: of the points. low, high: the interval at each point, if it has one.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        title, x_label, y_label: words. curves: what it shows. level: a horizontal line with its name, a floor say.
        ticks: where the x axis has its marks; by itself if ().
    """

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    level: tuple[str, float] | None = None
    ticks: Sequence[float] = ()


def svg(panels: Sequence[Panel]) -> str:
    """A row of panels with logarithmic x axes, one y scale if all measure the same, and one legend below them.

    Raises:
        ValueError: there is no panel.
    """
    if not panels:
        raise ValueError("a figure needs at least one panel")
    # here and below, since the import takes a second, and most runs of a study draw nothing
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(curve.name for panel in panels for curve in panel.curves))
    with matplotlib.rc_context({"svg.hashsalt": "cemverify", "svg.fonttype": "none", "font.size": 9}):
        longest = max((len(name) for name in names), default=0)
        width = max(5.0, 3.6 * len(panels))
        columns = max(1, min(3, int(width / (0.065 * longest + 0.5))))
        lines = -(-len(names) // columns)
        # without pyplot, whose backend belongs to the caller: a notebook keeps its own
        figure = Figure(figsize=(width, 3.8 + 0.17 * max(0, lines - 3)), layout="constrained")
        FigureCanvasSVG(figure)
        # panels that measure the same share a scale, so that heights can be compared
        shared = len({panel.y_label for panel in panels}) == 1
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=shared)
        for axis, panel in zip(axes[0], panels, strict=True):
            _draw(axis, panel, names)
        shown: dict[str, Artist] = {}
        for axis in axes[0]:
            handles, labels = axis.get_legend_handles_labels()
            shown |= dict(zip(labels, handles, strict=True))
        figure.legend(
            list(shown.values()),
            list(shown),
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize=8,
        )
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _draw(axis: Axes, panel: Panel, names: Sequence[str]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    for curve in panel.curves:
        i = names.index(curve.name)
        again, place = divmod(i, len(_COLOURS))
        colour, style, marker = _COLOURS[place], _STYLES[again % len(_STYLES)], _MARKERS[again % len(_MARKERS)]
        # side by side, so that intervals at the same x do not hide each other
        aside = 2 ** (0.05 * (i - (len(names) - 1) / 2)) if curve.low is not None else 1.0
        x = [value * aside for value in curve.x]
        axis.plot(
            x, curve.y, marker=marker, markersize=4, linewidth=1.2, linestyle=style, color=colour, label=curve.name
        )
        if curve.low is not None and curve.high is not None:
            axis.vlines(x, curve.low, curve.high, color=colour, linewidth=1)
    if panel.level is not None:
        name, height = panel.level
        axis.axhline(height, color="#666666", linewidth=1, linestyle="--", label=name)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    reached = [value for curve in panel.curves for value in curve.x]
    if reached and max(reached) < 8 * min(reached):  # powers of two alone would leave an axis with one mark
        axis.xaxis.set_major_locator(LogLocator(base=2, subs=(1.0, 1.5)))
    if panel.ticks:
        axis.xaxis.set_major_locator(FixedLocator(list(panel.ticks)))
        axis.xaxis.set_minor_locator(NullLocator())
    axis.set_title(panel.title, loc="left")
    axis.set_xlabel(panel.x_label)
    axis.set_ylabel(panel.y_label)
    axis.spines[["top", "right"]].set_visible(False)

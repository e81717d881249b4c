"""Charts that several studies share: curves in panels, and rows of dots on one scale; data first, then drawings.

Curves are drawn in one of two ways: side by side with a legend below, for the wide pages under docs/results; or one
below the other with names at their ends, for a phone and for a page of results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from synthetic.figures.drawing import (
    COLOURS,
    INK,
    PLAIN,
    Dash,
    Mark,
    Picture,
    drawn,
    label_ends,
    picture,
    series,
    wrapped,
)

_BLUE, _RED, _GREEN, _GREY = "#0072b2", "#d55e00", "#009e73", "#666666"
_WIDE_COLOURS = (*COLOURS[:5], "#8c564b", "#000000")
_WIDE_DASHES: Sequence[Dash] = ("-", ":", "-.")
REFERENCE = "reference"  # the family of curves that are not models
_WIDE_MARKERS = ("o", "s", "^")
# A line with more points has no markers.
_MOST_MARKED = 20
# A scale from 0 ends at this multiple of the highest point: intervals of two or three functions may be far longer.
_MOST_ABOVE = 3


@dataclass(frozen=True)
class Curve:
    """Points joined by a line, each with an interval if it has one."""

    name: str  # as in the legend
    # x, y: of the points
    x: Sequence[float]
    y: Sequence[float]
    # low, high: the interval at each point, if it has one
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dots: Sequence[Sequence[float]] = field(
        default=(), kw_only=True, metadata={"added": True}
    )  # at each x, its replicates as small dots
    # on a wide page curves of one family share a colour; those of REFERENCE are grey, without points
    family: str = field(default="", kw_only=True, metadata={"added": True})


@dataclass(frozen=True)
class Panel:
    """One pair of axes with its curves, labels and scales."""

    # title, x_label, y_label: words
    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]  # what it shows
    level: tuple[str, float] | None = None  # a horizontal line with its name, such as a floor
    ticks: Sequence[float] = ()  # ticks of the x axis; () chooses them automatically
    # x_scale, y_scale: "log2" has ticks at powers of two, "from 0" is linear and begins at 0
    x_scale: Literal["log2", "linear"] = "log2"
    y_scale: Literal["log", "linear", "from 0"] = "linear"


@dataclass(frozen=True)
class DotRow:
    """A row of a chart of dots: replicates as small dots, their mean and its interval."""

    label: str  # at the left
    dots: Sequence[float]  # small, one for each replicate
    mean: float | None  # a large one
    # low, high: its interval
    low: float | None = None
    high: float | None = None
    note: str = ""  # at the right
    verdict: str | None = None  # decides the colour; if None, the interval does


# --- curves, for a phone ---------------------------------------------------------------------------


def stacked(
    name: str, title: str, about: str, panels: Sequence[Panel], columns: Sequence[str], across: int = 1
) -> Picture:
    """Panels one below the other on one y scale, every line named at its end, with the data of all curves.

    Args:
        columns: of the data: what panels and curves stand for, x, y. across: the number of panels side by side; if
            more than one, all share the x scale too.
    """
    full = [panel for panel in panels if panel.curves]
    marks = series([curve.name for panel in full for curve in panel.curves])
    down = -(-len(full) // across)
    edge = _MOST_ABOVE * max((y for panel in full for curve in panel.curves for y in curve.y), default=0.0)
    full = [replace(panel, x_label=panel.x_label + _cut(panel, edge)) for panel in full]

    def draw(figure: Figure) -> None:
        axes = figure.subplots(down, min(across, len(full)), sharex=across > 1, sharey=True, squeeze=False)
        for axis in axes.flat[len(full) :]:
            axis.remove()
        ends: list[list[tuple[float, str, Mark]]] = []
        for axis, panel in zip(axes.flat, full, strict=False):
            ends.append([(c.y[-1], c.name, _drawn(axis, c, k, panel, marks)) for k, c in enumerate(panel.curves)])
            if panel.level is not None:
                words, height = panel.level
                axis.axhline(height, linestyle="--", color=INK, linewidth=1)
                ends[-1].append((height, words, Mark(INK, dash="--")))
        # only after all panels have their points: a limit holds for all panels, and stops the other end from adapting
        for i, (axis, panel) in enumerate(zip(axes.flat, full, strict=False)):
            if len(full) > 1 and panel.title:
                axis.set_title(wrapped(panel.title, 50 // across))
            if i % across == 0:
                axis.set_ylabel(panel.y_label)
            _scaled(axis, panel, edge)
            if i + across >= len(full) or panel.x_label != full[i + across].x_label:
                axis.set_xlabel(panel.x_label)
            label_ends(axis, ends[i])

    ranged = any(curve.low is not None for panel in full for curve in panel.curves)
    rows: list[list[Any]] = []
    for panel in full:
        panel_name = panel.title or panel.x_label
        for c in panel.curves:
            ends = zip(c.low or c.y, c.high or c.y, strict=True)
            points = zip(c.x, c.y, ends, strict=True)
            rows += [[panel_name, c.name, x, y, *(interval if ranged else ())] for x, y, interval in points]
        if panel.level is not None:
            rows.append([panel_name, panel.level[0], None, panel.level[1], *((None, None) if ranged else ())])
    headings = [*columns, *(("low", "high") if ranged else ())]
    return picture(name, title, about, 0.8 + 2.1 * down, draw, headings, rows)


def _drawn(axis: Axes, curve: Curve, i: int, panel: Panel, marks: dict[str, Mark]) -> Mark:
    mark = marks[curve.name]
    if len(curve.x) > _MOST_MARKED:
        mark = Mark(mark.colour, dash=mark.dash)
    shift = 0.06 * (i - (len(panel.curves) - 1) / 2) if panel.x_scale == "log2" else 0.0
    _plot(axis, curve, mark, shift)
    return mark


def _plot(axis: Axes, curve: Curve, mark: Mark, octaves: float, **how: Any) -> None:
    """Draws a curve, moved aside by `octaves` if it has intervals, which would otherwise hide each other."""
    aside = 2**octaves if curve.low is not None else 1.0
    x = [value * aside for value in curve.x]
    axis.plot(x, curve.y, mark.dash, marker=mark.marker, color=mark.colour, **how)
    for at, dots in zip(x, curve.dots, strict=False):
        beside = [at * 2**0.04] * len(dots)  # the interval would hide them
        axis.plot(beside, dots, "o", markersize=2.5, alpha=0.5, color=mark.colour, markeredgewidth=0)
    if curve.low is not None and curve.high is not None:
        axis.vlines(x, curve.low, curve.high, color=mark.colour, linewidth=1)


def _cut(panel: Panel, edge: float) -> str:
    """A line on intervals that reach beyond the edge of the scale; "" if none does."""
    highest = max((high for curve in panel.curves for high in curve.high or ()), default=0.0)
    if panel.y_scale != "from 0" or highest <= edge:
        return ""
    return f"\nintervals are cut off at {edge:.2g} (they reach {highest:.2g})"


def _scaled(axis: Axes, panel: Panel, edge: float) -> None:
    if panel.x_scale == "linear":
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    else:
        axis.set_xscale("log", base=2)
        axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.5g}"))
    if panel.ticks:
        axis.xaxis.set_major_locator(FixedLocator(list(panel.ticks)))
    if panel.y_scale == "from 0":
        axis.set_ylim(0, min(axis.get_ylim()[1], edge))
    elif panel.y_scale == "log":
        _scale_y(axis)


def _scale_y(axis: Axes) -> None:
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))


# --- curves, for a wide page -----------------------------------------------------------------------


def side_by_side(panels: Sequence[Panel]) -> str:
    """The SVG of a row of panels: logarithmic x axes, one y scale if all show one quantity, one legend below."""
    marks = _wide_marks([curve for panel in panels for curve in panel.curves])
    names = list(marks)
    longest = max((len(name) for name in names), default=0)
    width = max(5.0, 3.6 * len(panels))
    columns = max(1, min(3, int(width / (0.065 * longest + 0.5))))
    lines = -(-len(names) // columns)

    def draw(figure: Figure) -> None:
        # panels of one quantity share a scale, so that heights can be compared
        shared = len({panel.y_label for panel in panels}) == 1
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=shared)
        for axis, panel in zip(axes[0], panels, strict=True):
            _draw_wide(axis, panel, marks)
        legend: dict[str, Artist] = {}
        for axis in axes[0]:
            handles, labels = axis.get_legend_handles_labels()
            legend |= dict(zip(labels, handles, strict=True))
        figure.legend(
            list(legend.values()), list(legend), loc="outside lower center", ncols=columns, frameon=False, fontsize=8
        )

    return drawn(width, 3.8 + 0.17 * max(0, lines - 3), draw, PLAIN).decode()


def _wide_marks(curves: Sequence[Curve]) -> dict[str, Mark]:
    """A mark for each name: a colour for each family, and a different dash for each curve in it."""
    families: dict[str, list[str]] = {}
    for name, family in dict.fromkeys((curve.name, curve.family or curve.name) for curve in curves):
        families.setdefault(family, []).append(name)
    references = families.pop(REFERENCE, [])
    marks = {}
    for i, members in enumerate(families.values()):
        again, place = divmod(i, len(_WIDE_COLOURS))
        for k, name in enumerate(members, again):
            marks[name] = Mark(_WIDE_COLOURS[place], _WIDE_MARKERS[k % 3], _WIDE_DASHES[k % 3])
    return marks | {name: Mark(_GREY, dash=("--", ":", "-.")[k % 3]) for k, name in enumerate(references)}


def _draw_wide(axis: Axes, panel: Panel, marks: Mapping[str, Mark]) -> None:
    for curve in panel.curves:
        octaves = 0.05 * (list(marks).index(curve.name) - (len(marks) - 1) / 2)
        _plot(axis, curve, marks[curve.name], octaves, markersize=4, linewidth=1.2, label=curve.name)
    if panel.level is not None:
        name, height = panel.level
        axis.axhline(height, color=_GREY, linewidth=1, linestyle="--", label=name)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    reached = [value for curve in panel.curves for value in curve.x]
    if reached and max(reached) < 8 * min(reached):  # powers of two alone might leave one tick
        axis.xaxis.set_major_locator(LogLocator(base=2, subs=(1.0, 1.5)))
    if panel.ticks:
        axis.xaxis.set_major_locator(FixedLocator(list(panel.ticks)))
        axis.xaxis.set_minor_locator(NullLocator())
    if panel.y_scale == "log":
        _scale_y(axis)
    axis.set_title(panel.title, loc="left")
    axis.set_xlabel(panel.x_label)
    axis.set_ylabel(panel.y_label)
    axis.spines[["top", "right"]].set_visible(False)


# --- rows of dots ----------------------------------------------------------------------------------


Dots = Sequence[tuple[str, Sequence[DotRow]]]


def draw_dots(figure: Figure, groups: Dots, *, level: float, band: float, x_label: str) -> None:
    """Draws groups of rows, one below the other, on one scale.

    Args:
        groups: titles, "" for none, and rows. level: where a vertical line stands.
        band: shaded from level / (1 + band) to level * (1 + band).
    """
    axis = figure.subplots()
    axis.axvline(level, color=_GREY, linewidth=1)
    if band:
        axis.axvspan(level / (1 + band), level * (1 + band), color="#eeeeee", zorder=0)
    y, places, labels = 0.0, [], []
    right = axis.get_yaxis_transform()
    for title, rows in groups:
        if title:
            axis.text(0.0, y, f" {title}", transform=right, va="center", fontweight="bold", fontsize=8.5)
            y += 1
        for row in rows:
            colour = _BLUE
            if row.verdict is not None:
                colour = {"better": _GREEN, "worse": _RED}.get(row.verdict, _BLUE)
            elif row.low is not None and row.high is not None and not row.low <= level <= row.high:
                colour = _RED if row.low > level else _GREEN
            axis.plot(row.dots, [y] * len(row.dots), "o", markersize=3, alpha=0.6, color=_GREY)
            if row.mean is not None:
                axis.plot([row.mean], [y], "o", markersize=6, color=colour)
            if row.low is not None and row.high is not None:
                axis.hlines(y, row.low, row.high, color=colour, linewidth=1.6)
            axis.text(1.01, y, row.note, transform=right, va="center", fontsize=8)
            places.append(y)
            labels.append(row.label)
            y += 1
        y += 0.4
    axis.set_yticks(places, labels)
    axis.set_ylim(y, -0.7)
    axis.set_xlabel(x_label)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0)

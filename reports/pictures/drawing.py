"""How pictures look: one style sheet for all, and what a picture is.

Text stays text (`svg.fonttype: none`): it can be searched, selected and read aloud, is sharp at any size, and needs
no font file. Widths are computed with DejaVu Sans, which comes with matplotlib; where it is not installed, Verdana
has nearly the same ones. No backend is chosen: a figure is drawn by its own canvas, and pyplot is not imported.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from cemverify.console.escaping import one_line
from cemverify.results.envelope import Table
from cemverify.results.tables import csv_rows

# Okabe and Ito's colours without yellow, told apart by everybody; their lightness differs, so grey keeps them apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7a7a7a")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")
INK, QUIET, GRID = "#1f2428", "#5c6670", "#d9dde1"
GOOD, BAD, UNSURE, ABSENT = "#2f7f5f", "#c03221", "#96600f", "#c3c9cf"
# of text on these, and of the gaps between them
PAPER = "#fefefe"
# The same in a page, which has light and dark values of each.
VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        **{colour: f"var(--series-{i}, {colour})" for i, colour in enumerate(COLOURS, 1)},
        INK: f"var(--ink, {INK})",
        QUIET: f"var(--quiet, {QUIET})",
        GRID: f"var(--grid, {GRID})",
        GOOD: f"var(--good, {GOOD})",
        BAD: f"var(--bad, {BAD})",
        UNSURE: f"var(--unsure, {UNSURE})",
        ABSENT: f"var(--absent, {ABSENT})",
        PAPER: f"var(--paper, {PAPER})",
    }
)
STYLE: Mapping[Any, Any] = MappingProxyType(
    {
        "svg.hashsalt": "cemverify",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
        "font.size": 8.5,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.facecolor": "none",
        "axes.edgecolor": QUIET,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 8.5,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "xtick.color": QUIET,
        "ytick.color": QUIET,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "lines.linewidth": 1.5,
        "lines.markersize": 4.5,
        "axes.unicode_minus": True,
        "text.usetex": False,
        "text.parse_math": False,
    }
)
# Inches; at 72 points an inch a phone shows text at about its own size.
WIDTH = 5.0


@dataclass(frozen=True)
class Picture:
    """A picture and what it shows.

    Attributes:
        name: for its file. title: what it says. about: how to read it, for those who cannot see it too.
        svg: as a file of its own, on white. data: what is drawn.
    """

    name: str
    title: str
    about: str
    svg: str
    data: Table

    @property
    def csv(self) -> str:
        """The data as CSV."""
        return csv_rows(self.data)


def picture(
    name: str,
    title: str,
    about: str,
    height: float,
    draw: Callable[[Figure], None],
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> Picture:
    """Draws a picture; the same data gives the same bytes.

    Args:
        height: inches. draw: draws into an empty figure. columns, rows: the data.
    """
    with matplotlib.rc_context(dict(STYLE)):
        lines = textwrap.wrap(one_line(title), 60)[:4]
        figure = Figure(figsize=(WIDTH, height + 0.18 * len(lines)), layout="constrained")
        FigureCanvasSVG(figure)
        figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=10, fontweight="bold")
        draw(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return Picture(name, one_line(title), one_line(about), buffer.getvalue(), Table(title, columns, rows))


def inline(svg: str, prefix: str) -> str:
    """The picture as a part of a page: without a background, in the colours of the page, with names of its own.

    Args:
        prefix: of its names, so that pictures on one page do not share any.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    head, rest = body.split(">", 1)
    body = re.sub(r' (?:width|height)="[^"]*"', "", head) + ">" + rest
    body = re.sub(r'<g id="patch_1">.*?</g>', "", body, count=1, flags=re.DOTALL)  # the white background
    body = re.sub(r'(?<=id=")(?=[^"])|(?<=href="#)|(?<=url\(#)', prefix, body)
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, variable)
    return body


def label_ends(axis: Axes, ends: Sequence[tuple[float, float, str, str]], room: float = 0.34) -> None:
    """Names lines at their right ends, apart from each other, instead of a legend.

    Args:
        ends: for each line its last x and y, its name and its colour. room: share of the width kept for the names.
    """
    if not ends:
        return
    low, high = axis.get_xlim()
    logarithmic = axis.get_xscale() == "log"
    grown = high * (high / low) ** (room / (1 - room)) if logarithmic else high + (high - low) * room / (1 - room)
    axis.set_xlim(low, grown)
    axis.set_xticks([tick for tick in axis.get_xticks() if low <= tick <= high])
    axis.set_xlim(low, grown)
    to_axis = axis.transData + axis.transAxes.inverted()
    placed: list[tuple[float, float, float, str, str]] = []
    for x, y, name, colour in ends:
        _, at = to_axis.transform((x, y))
        placed.append((float(min(max(at, 0.02), 0.98)), x, y, name, colour))
    placed.sort(key=lambda end: end[0])
    figure = axis.figure.get_figure(root=True)
    assert figure is not None
    gap = 11.5 / (axis.get_position().height * figure.get_figheight() * 72)
    heights = _apart([end[0] for end in placed], gap)
    for height, (_, x, y, name, colour) in zip(heights, placed, strict=True):
        axis.annotate(
            shortened(name, 24),
            (x, y),
            xytext=(1 - room + 0.03, height),
            textcoords="axes fraction",
            va="center",
            color=INK,
            fontsize=8,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 3},
        )


def shortened(name: str, most: int) -> str:
    """A name from outside that leaves room for the picture."""
    flat = one_line(name)
    return flat if len(flat) <= most else f"{flat[: most - 3]}..."


def series(names: Sequence[str]) -> dict[str, tuple[str, str, str]]:
    """For each name a colour, a marker and a dash; a colour means the same model in every panel of a picture."""
    found = {}
    for i, name in zip(count(), dict.fromkeys(names), strict=False):
        again = i // len(COLOURS)
        found[name] = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)], DASHES[again % len(DASHES)]
    return found


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Sorted heights moved as little as needed to be a gap apart, inside 0 to 1 where that is possible."""
    found = list(heights)
    for _ in range(200):
        moved = False
        for i in range(len(found) - 1):
            short = gap - (found[i + 1] - found[i])
            if short > 1e-6:
                found[i] -= short / 2
                found[i + 1] += short / 2
                moved = True
        if not moved:
            break
    shift = max(0.0, -min(found, default=0.0)) - max(0.0, max(found, default=0.0) - 1)
    return [height + shift for height in found]

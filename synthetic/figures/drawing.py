"""How pictures look: one style for all, and what a picture consists of.

Text in SVG stays text (`svg.fonttype: none`): it can be searched, selected and read aloud, is sharp at any size, and
needs no font file. Text widths are computed with DejaVu Sans, which comes with matplotlib; where a reader does not
have it, Verdana has nearly the same widths. A PDF embeds the font as TrueType, as publishers require.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cemverify.console.escaping import brief, one_line
from cemverify.results.envelope import Table
from cemverify.results.tables import csv_rows

# Okabe and Ito's colours without yellow: everybody can distinguish them, in grey too, since lightness differs. The
# second blue comes last: only a picture of seven lines has both.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#7a7a7a", "#8c564b")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
Dash = Literal["-", "--", "-.", ":"]
DASHES: tuple[Dash, ...] = ("-", "--", "-.", ":")
INK, QUIET, GRID = "#1f2428", "#5c6670", "#d9dde1"
# The same colours in an HTML page, which has a light and a dark value of each.
_NAMES = {colour: f"series-{i}" for i, colour in enumerate(COLOURS, 1)}
_NAMES |= {INK: "ink", QUIET: "quiet", GRID: "grid"}
VARIABLES: Mapping[str, str] = {c: f"var(--{name}, {c})" for c, name in _NAMES.items()}
STYLE: Mapping[Any, Any] = {
    "svg.hashsalt": "cemverify",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "savefig.dpi": 300,
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
# For the pages under docs/results, whose pictures are wide and have a white background.
PLAIN: Mapping[Any, Any] = {"svg.hashsalt": "cemverify", "svg.fonttype": "none", "font.size": 9}
# Inches; at 72 points per inch a phone shows text at about its nominal size.
WIDTH = 5.0
Format = Literal["svg", "pdf", "png"]
# Metadata that would differ from run to run, or name the program.
_UNSAID: Mapping[Format, Sequence[str]] = {
    "svg": ("Date", "Creator"),
    "pdf": ("CreationDate", "Creator", "Producer"),
    "png": ("Software",),
}


@dataclass(frozen=True)
class Picture:
    """A picture, its title, a description in words, and the data that it draws."""

    name: str  # for its file
    title: str  # its statement
    about: str  # how to read it, also for those who cannot see it
    height: float  # inches
    draw: Callable[[Figure], None]  # draws into an empty figure
    data: Table  # what is drawn

    def file(self, kind: Format) -> bytes:
        """The picture as a file of its own, on white."""
        return drawn(WIDTH, self.height, self.draw, STYLE, kind)

    @cached_property
    def svg(self) -> str:
        """The picture as SVG."""
        return self.file("svg").decode()

    @property
    def csv(self) -> str:
        """The data that the picture draws, as CSV with a heading."""
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
    """A picture below its title; the same data gives the same bytes.

    Args:
        height: inches, without the title. draw: draws into an empty figure. columns, rows: the data.
    """
    lines = wrapped(title, 60)

    def titled(figure: Figure) -> None:
        figure.suptitle(lines, x=0.01, ha="left", fontsize=10, fontweight="bold")
        draw(figure)

    height += 0.18 * (1 + lines.count("\n"))
    return Picture(name, one_line(title), one_line(about), height, titled, Table(title, columns, rows))


def wrapped(title: str, width: int) -> str:
    """The whole title, in lines of limited length."""
    return textwrap.fill(one_line(title), width)


def drawn(
    width: float,
    height: float,
    draw: Callable[[Figure], None],
    style: Mapping[Any, Any],
    kind: Format = "svg",
) -> bytes:
    """The file of a figure, with sizes in inches; the same data gives the same bytes.

    It does not use pyplot, because its backend belongs to the caller, for instance a notebook.

    Args:
        draw: draws into an empty figure. style: `STYLE` or `PLAIN`.
    """
    with matplotlib.rc_context(dict(style)):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, metadata=dict.fromkeys(_UNSAID[kind]))
    return buffer.getvalue()


def inline(svg: str, prefix: str) -> str:
    """The picture as part of an HTML page: without a background, in the page's colours, with its own ids.

    Args:
        prefix: of its ids, so that pictures on one page do not share any.
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


def label_ends(axis: Axes, ends: Sequence[tuple[float, str, Mark]]) -> None:
    """Names lines at the right of the axes, without overlap, each beside a sample of its line.

    No line leads from a name to its curve: if the curve ends early, it would cross others and be taken for data.

    Args:
        ends: for each line its last y, its name and how it is drawn.
    """
    if not ends:
        return
    to_axis = axis.transData + axis.transAxes.inverted()
    x = axis.get_xlim()[0]
    placed = [(min(max(float(to_axis.transform((x, y))[1]), 0.02), 0.98), name, mark) for y, name, mark in ends]
    placed.sort(key=lambda end: end[0])
    figure = axis.figure.get_figure(root=True)
    assert figure is not None
    gap = 11.5 / (axis.get_position().height * figure.get_figheight() * 72)
    inch = 1 / (axis.get_position().width * figure.get_figwidth())  # as a fraction of the axes
    for height, (_, name, mark) in zip(_apart([end[0] for end in placed], gap), placed, strict=True):
        left, right = 1 + 0.08 * inch, 1 + 0.36 * inch
        # an artist, since `plot` would count it among the data
        axis.add_artist(
            Line2D(
                [left, (left + right) / 2, right],
                [height] * 3,
                color=mark.colour,
                linestyle=mark.dash,
                marker=mark.marker,
                markevery=[1],
                transform=axis.transAxes,
                clip_on=False,
            )
        )
        axis.text(right + 0.05 * inch, height, brief(name, 24), transform=axis.transAxes, va="center", fontsize=8)


@dataclass(frozen=True)
class Mark:
    """How a line and the sample beside its name are drawn: colour, marker ("" for none) and dash."""

    colour: str
    marker: str = ""
    dash: Dash = "-"


def series(names: Sequence[str]) -> dict[str, Mark]:
    """A colour, a marker and a dash for each name, the same in every panel of a picture.

    A colour that is used again has another marker and another dash.
    """
    return {
        name: Mark(COLOURS[place], MARKERS[(place + again) % len(MARKERS)], DASHES[again % len(DASHES)])
        for i, name in enumerate(dict.fromkeys(names))
        for again, place in [divmod(i, len(COLOURS))]
    }


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Sorted heights, moved as little as needed to be a gap apart, within 0 to 1 if possible."""
    places = list(heights)
    for _ in range(200):
        moved = False
        for i in range(len(places) - 1):
            short = gap - (places[i + 1] - places[i])
            if short > 1e-6:
                places[i] -= short / 2
                places[i + 1] += short / 2
                moved = True
        if not moved:
            break
    shift = max(0.0, -min(places, default=0.0)) - max(0.0, max(places, default=0.0) - 1)
    return [height + shift for height in places]

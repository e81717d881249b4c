"""The picture of a check: margins as a strip."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from matplotlib.figure import Figure

from cemverify.console.escaping import brief
from reports.kinds.check import families
from synthetic.figures.drawing import BAD, GOOD, INK, UNSURE, Picture, picture

# Margins below are drawn there: nothing is to be told between them.
_LEAST = 1e-3
# Violated properties are drawn there: their margin may be infinite.
_BEYOND = 6.0
_MARKS = (
    ("holds", GOOD, "o", 3.5),
    ("inconclusive", UNSURE, "s", 3.5),
    ("suite error", UNSURE, "D", 3.5),
    ("violated", BAD, "X", 5.0),
)


def of_check(content: Mapping[str, Any]) -> Iterator[Picture]:
    """The margin of each property, by family."""
    by_family = {
        name: [e for e in entries if e["verdict"] != "not offered"] for name, entries in families(content).items()
    }
    by_family = {name: entries for name, entries in by_family.items() if entries}
    if not by_family:
        return
    everything = [e for entries in by_family.values() for e in entries]
    margins = [e["margin"] for e in everything if e["verdict"] == "holds" and e["margin"] is not None]
    bad = sum(e["verdict"] == "violated" for e in everything)
    total = len(everything)
    title = f"{brief(content['implementation'], 100)}: "
    title += f"{bad} of {total} properties are violated" if bad else "every error is explained by roundoff"
    if margins:
        title += f"; the largest margin that holds is {max(margins):.2g}"

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for row, entries in enumerate(by_family.values()):
            for verdict, colour, marker, size in _MARKS:
                chosen = [e["margin"] for e in entries if e["verdict"] == verdict]
                if verdict == "violated":
                    xs = [_BEYOND] * len(chosen)
                else:
                    xs = [min(max(margin, _LEAST), _BEYOND) for margin in chosen if margin is not None]
                ys = [row + _aside(i) for i in range(len(xs))]
                axis.plot(xs, ys, marker, color=colour, markersize=size, alpha=0.8, markeredgewidth=0)
        axis.axvline(1, color=INK, linewidth=1)
        axis.set_xscale("log")
        axis.set_xlim(_LEAST / 1.5, 12)
        axis.set_xticks([1e-3, 1e-2, 1e-1, 1], ["≤ 0.001", "0.01", "0.1", "1"])
        axis.minorticks_off()
        names = [f"{brief(name, 18)} ({len(entries)})" for name, entries in by_family.items()]
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(by_family) - 0.5, -0.5)
        axis.grid(axis="y", visible=False)
        axis.set_xlabel("margin: largest error / what roundoff explains")
        axis.text(1.15, -0.62, "violated", color=INK, fontsize=8, va="bottom")
        axis.text(0.9, -0.62, "holds", color=INK, fontsize=8, va="bottom", ha="right")

    rows = [[e["id"], name, e["verdict"], e["margin"]] for name, entries in by_family.items() for e in entries]
    yield picture(
        "margins",
        title,
        "One mark for each property, by family. The x axis is the largest error over what roundoff explains, "
        "logarithmic; left of 1 a property holds, crosses to the right are violated.",
        0.9 + 0.3 * len(by_family),
        draw,
        ["property", "family", "verdict", "margin"],
        rows,
    )


def _aside(i: int) -> float:
    """Spreads marks of one row, the same way each time."""
    return 0.28 * math.sin(2.4 * i)

"""Implementations by families of properties: colour is the verdict, and what was looked at less is paler."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cemverify.console.escaping import brief
from reports.matrix.standings import Line, families_of, sheet
from synthetic.figures.drawing import ABSENT, BAD, GOOD, INK, PAPER, UNSURE, Picture, picture
from synthetic.figures.sheets import Quantity

_COLOURS = {"holds": GOOD, "violated": BAD, "inconclusive": UNSURE, "not offered": ABSENT}
_MOST = 60
_PALEST = 0.25


def matrix(lines: Sequence[Line]) -> Picture:
    """The matrix; of very many implementations the first, as the table has the others."""
    drawn = list(lines)[:_MOST]
    names = families_of(drawn)
    whole = sum(line.whole for line in lines)

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for y, line in enumerate(drawn):
            for x, name in enumerate(names):
                standing = line.by_family.get(name)
                if standing is None:
                    continue
                strength = _PALEST + (1 - _PALEST) * standing.strength if standing.run else 0.35
                colour = _COLOURS[standing.verdict]
                axis.add_patch(
                    Rectangle((x - 0.47, y - 0.42), 0.94, 0.84, facecolor=colour, alpha=strength, linewidth=0)
                )
                # the verdict in a colour of full strength: paleness speaks of the look alone
                axis.add_patch(Rectangle((x - 0.47, y - 0.42), 0.08, 0.84, facecolor=colour, linewidth=0))
                ink = PAPER if standing.run and strength > 0.72 else INK
                mark = "✗\n" if standing.violated else ""
                words = f"{mark}{standing.holds}/{standing.run}" if standing.run else "–"
                words += f"\n+{standing.unasked}" if standing.unasked else ""
                if standing.detection is not None and standing.run:
                    words += f"\n{100 * standing.detection:.0f} %"
                axis.text(x + 0.03, y, words, ha="center", va="center", fontsize=6, color=ink)
        axis.set_xlim(-0.5, len(names) - 0.5)
        axis.set_ylim(len(drawn) - 0.5, -0.5)
        axis.set_xticks(
            range(len(names)), [brief(name, 16) for name in names], rotation=40, ha="left", rotation_mode="anchor"
        )
        axis.xaxis.tick_top()
        labels = [f"{brief(line.implementation, 26)}\n{line.date}, {brief(line.version, 10)}" for line in drawn]
        axis.set_yticks(range(len(drawn)), labels, fontsize=7)
        axis.tick_params(length=0, labelcolor=INK)
        axis.spines[:].set_visible(False)
        axis.grid(visible=False)

    data = sheet(lines)
    rows = [[cell.value if isinstance(cell, Quantity) else cell for cell in row] for row in data.rows]
    return picture(
        "matrix",
        f"{whole} of {len(lines)} implementations hold every property that was to be run",
        "A row for each implementation with the date and the version of the suite, a column for each family of "
        "properties. A cell has how many properties hold of those that were run, after a plus how many were not "
        "asked, and the share of faults that are detected where it was measured; the paler, the fewer examples and "
        "faults detected.",
        1.2 + 0.36 * len(drawn),
        draw,
        [column.name for column in data.columns],
        rows,
    )

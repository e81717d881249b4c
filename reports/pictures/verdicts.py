"""Pictures of verdicts: margins as a strip, what faults are caught, what is stated and true."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from cemverify.console.escaping import brief
from reports.kinds.check import families
from reports.kinds.claims import NAMES
from synthetic.figures.drawing import ABSENT, BAD, COLOURS, GOOD, INK, PAPER, UNSURE, Picture, picture, series

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
_DTYPES = ("float64", "float32", "bfloat16", "float16")


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


def of_power(content: Mapping[str, Any]) -> Iterator[Picture]:
    """How often faults are caught at each budget, and the smallest faults found."""
    yield from _detection(content)
    yield from _smallest(content)


def of_claims(content: Mapping[str, Any]) -> Iterator[Picture]:
    """How the statements fare, by kind."""
    counts = content["counts"]
    colours = {
        **dict.fromkeys(("holds", "agrees"), GOOD),
        **dict.fromkeys(("holds under condition", "depends on the scale"), UNSURE),
        **dict.fromkeys(("refuted", "disagrees"), BAD),
    }
    paper = counts.get("paper", {})
    total = sum(paper.values())
    title = "; ".join(f"{n} {verdict}" for verdict, n in paper.items())

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for row, kind in enumerate(counts):
            left, whole = 0.0, sum(counts[kind].values())
            for verdict, n in counts[kind].items():
                share = n / whole
                colour = colours.get(verdict, ABSENT)
                axis.barh(row, share, left=left, height=0.62, color=colour, edgecolor=PAPER, linewidth=0.8)
                if share > 0.07:
                    words = f"{n}\n{verdict}" if share > 0.022 * max(map(len, verdict.split())) else str(n)
                    words = words.replace(" under ", "\nunder ")
                    ink = PAPER if verdict in colours else INK
                    axis.text(left + share / 2, row, words, ha="center", va="center", fontsize=7, color=ink)
                left += share
        names = [f"{NAMES.get(kind, kind)} ({sum(tally.values())})" for kind, tally in counts.items()]
        axis.set_yticks(range(len(names)), names)
        axis.invert_yaxis()
        axis.set_xlim(0, 1)
        axis.xaxis.set_major_formatter(PercentFormatter(1))
        axis.grid(visible=False)

    rows = [[kind, verdict, n] for kind, tally in counts.items() for verdict, n in tally.items()]
    about = (
        "A bar for each kind of statement, divided by verdict: green holds, brown holds under a condition, red not."
    )
    if total:
        title = f"Of {total} statements of the paper: {title}"
        columns = ["kind", "verdict", "statements"]
        yield picture("claims", title, about, 0.7 + 0.62 * len(counts), draw, columns, rows)


def _detection(content: Mapping[str, Any]) -> Iterator[Picture]:
    budgets = sorted({at["examples"] for mutant in content["mutants"] for at in mutant["budgets"]})
    if not budgets:
        return
    weakest: dict[str, dict[int, Mapping[str, Any]]] = {}  # the hardest fault of each family at each budget
    for mutant in content["mutants"]:
        hardest = weakest.setdefault(mutant["family"], {})
        for at in mutant["budgets"]:
            budget = at["examples"]
            hardest[budget] = min(hardest.get(budget, at), at, key=lambda each: each["probability"])
    least = min((of[max(of)]["probability"] for of in weakest.values() if of), default=1.0)
    title = (
        f"With {budgets[-1]} examples every fault is caught with every seed"
        if least == 1
        else f"With {budgets[-1]} examples the hardest fault is caught by {least:.0%} of the seeds"
    )

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for row, of in enumerate(weakest.values()):
            for i, (_, at) in enumerate(sorted(of.items())):
                colour = COLOURS[budgets.index(at["examples"]) % len(COLOURS)]
                y = row + (i - (len(of) - 1) / 2) * 0.26
                axis.plot([at["low"], at["high"]], [y, y], color=colour, linewidth=1.5)
                axis.plot([at["probability"]], [y], "o", color=colour)
        for i, examples in enumerate(budgets):
            axis.plot([], [], "o-", color=COLOURS[i % len(COLOURS)], label=f"{examples} examples")
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(budgets), frameon=False, fontsize=8)
        axis.set_yticks(range(len(weakest)), [brief(name, 20) for name in weakest])
        axis.set_ylim(len(weakest) - 0.5, -0.5)
        axis.set_xlim(-0.02, 1.03)
        axis.xaxis.set_major_formatter(PercentFormatter(1))
        axis.set_xlabel("seeds that catch the fault, 95 % interval")
        axis.grid(axis="y", visible=False)

    rows = [
        [m["family"], m["id"], at["examples"], at["probability"], at["low"], at["high"]]
        for m in content["mutants"]
        for at in m["budgets"]
    ]
    about = (
        "For each family and each budget of examples, the share of seeds that catch the fault that is hardest there, "
        "with its exact 95 % interval."
    )
    columns = ["family", "mutant", "examples", "probability", "low", "high"]
    yield picture("detection", title, about, 1.0 + 0.34 * len(weakest), draw, columns, rows)


def _smallest(content: Mapping[str, Any]) -> Iterator[Picture]:
    smallest = [s for s in content["smallest"] if s["epsilon"] is not None]
    if not smallest:
        return
    names = list(dict.fromkeys(s["family"] for s in content["smallest"]))
    dtypes = sorted({str(s["dtype"]) for s in smallest}, key=lambda d: (_DTYPES.index(d) if d in _DTYPES else 9, d))
    style = series(dtypes)
    best = min(smallest, key=lambda s: float(s["epsilon"]))

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for s in smallest:
            if s["dtype"] in style:
                mark = style[s["dtype"]]
                axis.plot([s["epsilon"]], [names.index(s["family"])], mark.marker, color=mark.colour, markersize=6)
        for dtype, mark in style.items():
            axis.plot([], [], mark.marker, color=mark.colour, label=dtype)
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(style), frameon=False, fontsize=8)
        axis.set_xscale("log")
        axis.set_yticks(range(len(names)), [brief(name, 20) for name in names])
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.set_xlabel("smallest relative fault in one place that every seed finds")

    rows = [[s["family"], s["dtype"], s["epsilon"], s["property"], s["place"]] for s in content["smallest"]]
    title = f"The smallest fault found is {best['epsilon']:.0e} of an update, in {best['dtype']}"
    about = (
        "For each family and floating-point type, the smallest fault in one place that every seed finds; "
        "logarithmic. A family without a mark sees no such fault."
    )
    columns = ["family", "dtype", "epsilon", "property", "place"]
    yield picture("smallest-faults", title, about, 1.0 + 0.27 * len(names), draw, columns, rows)


def _aside(i: int) -> float:
    """Spreads marks of one row, the same way each time."""
    return 0.28 * math.sin(2.4 * i)

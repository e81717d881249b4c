"""Pictures of what recursion gains: panels of curves, one for each prior, from the rows of a result.

The page of a study shows some of them side by side; a page of results shows some one below the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from cemverify.console.escaping import brief
from cemverify.results.statistics import compare, mean_interval
from synthetic.figures.charts import REFERENCE, Curve, Panel, stacked
from synthetic.figures.drawing import Picture
from synthetic.studies.recursion.rows import (
    DISTANCE,
    Content,
    Family,
    Row,
    at_depths,
    by_points,
    drawn_models,
    errors,
    families,
    floor,
    named,
    shallowest,
)
from synthetic.studies.recursion.tables import headline, shown_depths

# Families in one picture for a phone; the others are only in the table.
_MOST_FAMILIES = 5
_TEST_TICKS = (1, 2, 4, 8, 16)


# --- for the page of a study -----------------------------------------------------------------------


def panels(make: Callable[[Content, str, Sequence[Row]], Panel | None], content: Content) -> list[Panel]:
    """One panel for each prior that has one."""
    made = (make(content, prior, rows) for prior, rows in named(content).items())
    return [panel for panel in made if panel is not None]


def ratios(_content: Content, prior: str, rows: Sequence[Row]) -> Panel:
    """Every family with several depths: expected RMSE over that of its smallest T, with interval and functions."""
    curves = []
    for family, members in _with_depths(rows).items():
        ratios = [compare(errors(row), errors(members[0])).ratio for row in members]
        low = [r.mean if r.low is None else r.low for r in ratios]
        high = [r.mean if r.high is None else r.high for r in ratios]
        dots = [[e / b for e, b in zip(errors(row), errors(members[0]), strict=True)] for row in members]
        curves.append(Curve(family, _depths(members), [r.mean for r in ratios], low, high, dots=dots))
    label = f"RMSE / RMSE at T = {shallowest(rows)}"
    ticks = sorted({x for curve in curves for x in curve.x})
    return Panel(prior, "T", label, curves, ("no change", 1.0), ticks)


def points(content: Content, prior: str, rows: Sequence[Row]) -> Panel | None:
    """For functions from context: RMSE after 1, 2, ... points: each family at T = 1 and its best T; references."""
    scores = by_points(content, rows)
    best = [min(members, key=lambda row: row["rmse"]["mean"]) for members in families(rows).values()]
    chosen = [row for row in rows if row["name"] != "prior mean" and (not row["contender"] or row["depth"] == 1)]
    shown = {row["name"]: row["contender"] for row in (*chosen, *best) if row["name"] in scores}
    curves = [
        Curve(name, range(1, len(rmse := scores[name][0][1:]) + 1), rmse, family=c["family"] if c else REFERENCE)
        for name, c in shown.items()
    ]
    ticks = [n for n in (*_TEST_TICKS, 32, 64) if n <= len(curves[0].y)] if curves else []
    return Panel(prior, "points seen", "RMSE", curves, None, ticks) if curves else None


def costs(_content: Content, prior: str, rows: Sequence[Row]) -> Panel:
    """Distance to the Bayes-optimal predictor against matrix-product FLOPs of one prediction."""
    points: dict[str, list[tuple[int, float]]] = {}
    for family, members in families(rows).items():
        # the untied MLP of several sizes is one curve
        name = "MLP, several sizes" if family.startswith("MLP, ") else family
        points.setdefault(name, []).extend((r["cost"]["inference"]["matmul"], r["excess"]["mean"]) for r in members)
    curves = [Curve(name, *zip(*sorted(pairs), strict=True)) for name, pairs in points.items()]
    return Panel(prior, "matmul FLOPs of a prediction", DISTANCE, curves)


def other_steps(_content: Content, prior: str, rows: Sequence[Row]) -> Panel | None:
    """Plain CEM trained at each T, evaluated with other numbers of steps, and the floor."""
    trained = [row for row in families(rows).get(Family.CEM, []) if at_depths(row)]
    models = {f"trained at T = {row['depth']}": row for row in trained}
    # other numbers of steps may double the error or multiply it by millions
    return _over_steps(prior, rows, [], models, 100 * (floor(rows) or 0.0), "log") if models else None


def dial(_content: Content, prior: str, rows: Sequence[Row]) -> Panel | None:
    """One model for all depths, at each number of steps, against a model for each T; {} without such a model."""
    curves = []
    for family, name in ((Family.CEM, "a model for each T"), (Family.SUMMED, "the same, steps sum to 1")):
        if members := families(rows).get(family):
            curves.append(Curve(name, _depths(members), [row["rmse"]["mean"] for row in members]))
    drawn = drawn_models(rows)
    return _over_steps(prior, rows, curves, drawn, 4 * (floor(rows) or 0.0) + 0.2, "linear") if drawn else None


def _over_steps(
    prior: str,
    rows: Sequence[Row],
    curves: Sequence[Curve],
    models: Mapping[str, Row],
    edge: float,
    scale: Literal["linear", "log"],
) -> Panel:
    """Curves; those over test-time steps end at an upper edge, and values above it are named below the axis."""
    errors = {name: at_depths(row) for name, row in models.items()}
    shown = {name: {T: at.get(T, math.inf) for T in shown_depths(rows)} if at else {} for name, at in errors.items()}
    highest = max((error for at in shown.values() for error in at.values()), default=0.0)
    left_out = f"\nerrors above {edge:.2g} are not shown (up to {highest:.2g})" if highest > edge else ""
    drawn = [(name, [T for T, error in at.items() if error <= edge]) for name, at in shown.items()]
    more = [Curve(name, depths, [shown[name][T] for T in depths]) for name, depths in drawn]
    level = ("floor", floor(rows) or 0.0)
    words = f"T' at test time{left_out}"
    return Panel(prior, words, "expected RMSE", [*curves, *more], level, _TEST_TICKS, y_scale=scale)


def _with_depths(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The families that have several depths."""
    return {name: members for name, members in families(rows).items() if len(members) > 1}


def _depths(rows: Sequence[Row]) -> list[int]:
    return [row["depth"] for row in rows]


# --- for a page of results -------------------------------------------------------------------------


def of_recursion(content: Content) -> Iterator[Picture]:
    """RMSE against T; the other charts are on the study's page, with their numbers in its tables."""
    made = panels(_against_depth, content)
    if any(panel.curves for panel in made):
        yield stacked(
            "rmse-against-T",
            headline(content),
            "RMSE against the recursion depth T, a panel for each prior on one scale; mean and 95 % interval over"
            " functions.",
            made,
            ("prior", "model", "T", "RMSE"),
        )


def _against_depth(_content: Content, prior: str, rows: Sequence[Row]) -> Panel:
    curves = []
    shown = dict(list(_with_depths(rows).items())[:_MOST_FAMILIES])
    hidden = brief(", ".join(name for name in families(rows) if name not in shown), 60)
    for name, members in shown.items():
        mean = [row["rmse"]["mean"] for row in members]
        low, high = zip(*(mean_interval(**row["rmse"]) or (row["rmse"]["mean"],) * 2 for row in members), strict=True)
        curves.append(Curve(name, _depths(members), mean, low, high))
    optimum = floor(rows)
    level = None if optimum is None else ("Bayes floor", optimum)
    ticks = sorted({x for curve in curves for x in curve.x})
    words = "recursion depth T" + (f"\nonly in the tables: {hidden}" if hidden else "")
    return Panel(prior, words, "RMSE", curves, level, ticks, y_scale="from 0")

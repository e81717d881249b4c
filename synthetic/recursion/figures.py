"""The figures of the recursion study, one row of panels for each, a panel for each prior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cemverify.results.statistics import compare
from reports.plots import Curve, Panel, svg
from synthetic.recursion.summary import Row, is_drawn, mean_at_depths


def ratios(studied: Mapping[str, Sequence[Row]]) -> str:
    """Every family with several depths: expected RMSE over that of its smallest T, with the 95 % interval."""
    return svg([_ratio_panel(prior, rows) for prior, rows in studied.items()])


def costs(studied: Mapping[str, Sequence[Row]]) -> str:
    """Distance to the Bayes-optimal predictor against matrix-product FLOPs of one prediction."""
    return svg([_cost_panel(prior, rows) for prior, rows in studied.items()])


def test_time(studied: Mapping[str, Sequence[Row]]) -> str:
    """Plain CEM trained at each T, evaluated with T' = 1 ... 16 steps, and the floor."""
    return svg([_test_time_panel(prior, rows) for prior, rows in studied.items()])


def dial(studied: Mapping[str, Sequence[Row]]) -> str | None:
    """One model for all depths, at T' = 1 ... 16 steps, against models trained for each T; None if there is none."""
    panels = [_dial_panel(prior, rows) for prior, rows in studied.items() if any(map(is_drawn, rows))]
    return svg(panels) if panels else None


def _dial_panel(prior: str, rows: Sequence[Row]) -> Panel:
    floor = next(row.rmse.mean for row in reversed(rows) if row.contender is None and row.rmse is not None)
    families = _families(rows)
    curves = []
    for family, name in (("CEM", "a model for each T"), ("CEM, steps sum to 1", "the same, steps sum to 1")):
        known = [
            (row.contender.depth, row.rmse.mean) for row in families.get(family, []) if row.contender and row.rmse
        ]
        if known:
            curves.append(Curve(name, *zip(*known, strict=True)))
    for row in filter(is_drawn, rows):
        assert row.contender is not None
        shown = [(T, value) for T, value in mean_at_depths(row) if value <= 4 * floor + 0.2]
        curves.append(Curve(row.contender.family, [T for T, _ in shown], [value for _, value in shown]))
    return Panel(_short(prior), "T' at test time", "expected RMSE", curves, ("floor", floor), (1, 2, 4, 8, 16))


def _families(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Trained rows without divergence, by family, in order of depth."""
    families: dict[str, list[Row]] = {}
    for row in rows:
        if row.contender is not None and not row.diverged:
            families.setdefault(row.contender.family, []).append(row)
    return families


def _ratio_panel(prior: str, rows: Sequence[Row]) -> Panel:
    curves = []
    depths: set[int] = set()
    for family, members in _families(rows).items():
        if len(members) < 2:
            continue
        found = [compare(row.errors, members[0].errors).ratio for row in members]
        xs = [row.contender.depth for row in members if row.contender is not None]
        depths |= set(xs)
        low = [r.mean if r.low is None else r.low for r in found]
        high = [r.mean if r.high is None else r.high for r in found]
        curves.append(Curve(family, xs, [r.mean for r in found], low, high))
    return Panel(_short(prior), "T", "RMSE / RMSE at T = 1", curves, ("no change", 1.0), sorted(depths))


def _cost_panel(prior: str, rows: Sequence[Row]) -> Panel:
    points: dict[str, list[tuple[int, float]]] = {}
    for family, members in _families(rows).items():
        # the untied MLP of several sizes is one curve
        name = "MLP, several sizes" if family.startswith("MLP, ") else family
        for row in members:
            if row.cost is not None and row.excess is not None:
                points.setdefault(name, []).append((row.cost.inference.matmul, row.excess.mean))
    curves = [Curve(name, *zip(*sorted(found), strict=True)) for name, found in points.items()]
    return Panel(_short(prior), "matmul FLOPs of a prediction", "excess over the floor", curves)


def _test_time_panel(prior: str, rows: Sequence[Row]) -> Panel:
    floor = next(row.rmse.mean for row in reversed(rows) if row.contender is None and row.rmse is not None)
    highest = 4 * floor + 0.2  # beyond it a curve only says that it has left the picture
    curves = []
    for row in _families(rows).get("CEM", []):
        assert row.contender is not None
        shown = [(T, value) for T, value in mean_at_depths(row) if value <= highest]
        curves.append(Curve(f"trained at T = {row.contender.depth}", [T for T, _ in shown], [v for _, v in shown]))
    return Panel(_short(prior), "T' at test time", "expected RMSE", curves, ("floor", floor), (1, 2, 4, 8, 16))


def _short(prior: str) -> str:
    return prior.partition("(")[0]

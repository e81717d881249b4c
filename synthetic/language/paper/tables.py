"""The tables of a language study, for people; every figure in them is in the result file as a number too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cemverify.results.envelope import Cell, Table
from cemverify.results.numbers import NOTHING, shown_ratio, shown_spread
from cemverify.results.statistics import PairedComparison, compare, spread
from synthetic.language.paper.estimates import Forecast
from synthetic.language.paper.rates import tuned
from synthetic.language.paper.studies import ALIBI, FULL, ROTARY, WIDENED, StudyPlan
from synthetic.language.paper.summary import MARGIN, Row


def comparisons(plan: StudyPlan, unit: str, rows: Sequence[Row]) -> Table:
    """Every model at equal tokens, at equal FLOPs, at equal parameters."""
    recipe = plan.recipe
    title = (
        f"{plan.study} ({plan.figure}) at size {plan.size}: {recipe.steps:,} steps of {recipe.batch} x"
        f" {recipe.context} tokens, bits/{unit} as mean ± std of n = {plan.seeds} seed(s),"
        " ratios to the baseline paired by seed with 95 % interval"
    )
    columns = (
        "model",
        "baseline",
        "parameters",
        "training MFLOPs/token",
        f"bits/{unit}",
        "equal tokens",
        "verdict",
        "equal FLOPs: after",
        f"bits/{unit} then",
        "equal FLOPs",
        "verdict then",
        "equal parameters",
        "verdict so",
    )
    return Table(title, columns, [_row(row) for row in rows])


def rates(rows: Sequence[Row], unit: str) -> Table:
    """The best learning rate of each model, found seed by seed between those tried."""
    named = {row.name: row for row in rows}
    cells: list[list[Cell]] = []
    base = tuned(named, ROTARY)
    for name in (ROTARY, ALIBI, FULL, FULL + WIDENED):
        found = tuned(named, name)
        if found is None:
            cells.append([name, "too many runs diverged", NOTHING, NOTHING, NOTHING])
            continue
        edges = sum(optimum.at_edge for optimum in found)
        edge = f" (at the edge for {edges} of {len(found)})" if edges else ""
        rate = spread([optimum.rate for optimum in found])
        finals = [optimum.bits for optimum in found]
        c = None if base is None or name == ROTARY else compare(finals, [o.bits for o in base], MARGIN)
        told = [NOTHING, NOTHING] if c is None else [shown_ratio(c), c.conclusion]
        cells.append([name, f"{shown_spread(rate, 5)}{edge}", shown_spread(spread(finals)), *told])
    columns = ("model", "best rate", f"bits/{unit} there", f"ratio to {ROTARY}", "verdict")
    return Table("Each at its best learning rate, by Akima interpolation over log2 of the rate", columns, cells)


def costs(plan: StudyPlan, forecasts: Mapping[str, Forecast], speed: str) -> Table:
    """What a study takes, before it is begun."""
    title = f"Cost of {plan.study} at size {plan.size}, {plan.seeds} seed(s) each; hours of one device, at {speed}"
    columns = ("model", "parameters", "tokens", "FLOPs", "hours", "memory of the model", "checkpoint")
    cells = [[name, *_forecast(forecast)] for name, forecast in forecasts.items()]
    total_flops = plan.seeds * sum(f.flops for f in forecasts.values())
    total_hours = plan.seeds * sum(f.hours for f in forecasts.values())
    total_tokens = plan.seeds * sum(f.tokens for f in forecasts.values())
    largest = max(f.memory for f in forecasts.values())
    kept = max(f.checkpoint for f in forecasts.values())
    total = Forecast(0, total_tokens, total_flops, total_hours, largest, kept)
    runs = f"all {plan.seeds * len(forecasts)} trainings; of the largest"
    return Table(title, columns, [*cells, [runs, NOTHING, *_forecast(total)[1:]]])


def _forecast(forecast: Forecast) -> list[Cell]:
    return [
        f"{forecast.parameters:,}",
        f"{forecast.tokens:,}",
        f"{forecast.flops:.3g}",
        f"{forecast.hours:,.1f}" if forecast.hours >= 1 else f"{forecast.hours:.4f}",
        _bytes(forecast.memory),
        _bytes(forecast.checkpoint),
    ]


def _row(row: Row) -> list[Cell]:
    first = row.records[0]
    cells: list[Cell] = [
        row.name,
        row.variant.against or NOTHING,
        f"{first.parameters:,}" + ("" if row.share is None else f" ({row.share:.3f})"),
        f"{first.training / 1e6:,.3f}",
    ]
    if row.bits is None or row.bits_then is None:
        return [*cells, f"diverged {row.diverged}/{len(row.records)}", *[NOTHING] * 8]
    return [
        *cells,
        shown_spread(row.bits),
        *_comparison(row.tokens),
        f"{row.affordable:,.0f} steps",
        shown_spread(row.bits_then),
        *_comparison(row.flops),
        *_comparison(row.parameters),
    ]


def _comparison(comparison: PairedComparison | None) -> list[Cell]:
    return [NOTHING, NOTHING] if comparison is None else [shown_ratio(comparison), comparison.conclusion]


def _bytes(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"

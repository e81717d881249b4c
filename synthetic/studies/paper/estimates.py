"""What a study takes, said before it is begun: counted on the meta device, at a speed that is stated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cemverify.results.envelope import Cell, Table
from cemverify.results.numbers import NOTHING
from synthetic.studies.engine.estimates import Speed
from synthetic.studies.paper.cells import count, measured
from synthetic.studies.paper.rows import StudyPlan, Variant


@dataclass(frozen=True)
class Forecast:
    """What one training takes.

    Attributes:
        parameters: of the model. tokens: predicted in training. flops: of all steps; causal attention as if dense.
        hours: of one device. memory: bytes of weights, gradients and optimiser state, without activations.
        checkpoint: bytes of one.
    """

    parameters: int
    tokens: int
    flops: float
    hours: float
    memory: int
    checkpoint: int


def forecast(plan: StudyPlan, variant: Variant, speed: Speed) -> Forecast:
    """What one training of a variant takes at a speed."""
    parameters = count(variant.looped)
    tokens = plan.recipe.tokens
    flops = tokens * measured(variant.looped, plan.recipe.context).training
    hours = flops / speed.flops_per_second / 3600
    return Forecast(parameters, tokens, flops, hours, 16 * parameters, 12 * parameters)


def forecasts(plan: StudyPlan, speed: Speed) -> dict[str, Forecast]:
    """One training of each variant of a study, by name."""
    return {variant.name: forecast(plan, variant, speed) for variant in plan.variants}


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


def _bytes(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"

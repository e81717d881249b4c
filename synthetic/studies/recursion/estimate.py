"""What a recursion study takes, said before it is begun."""

from __future__ import annotations

from cemverify.results.envelope import Cell, Table
from synthetic.studies.recursion.presets import RecursionConfig

# So many rates a search tries on average, mostly the first four: the standard study found 100 rates in 412 trainings.
USUAL_RATES = 4.1


def estimate(config: RecursionConfig) -> Table:
    """For each prior its functions, models and trainings, and the time of one core, by the seconds of its cells."""
    rates = float(len(config.rates) or USUAL_RATES)
    rows: list[list[Cell]] = []
    total = 0.0
    for prior in config.priors:
        functions = config.task_cells(prior)
        models, rest = (
            [config.model_cell(prior, c, 1e-2, rest=r) for c in config.contenders(prior) if config.parts(prior)[r]]
            for r in (False, True)
        )
        seconds = sum(f.cost for f in functions) + rates * sum(m.cost for m in models) + sum(m.cost for m in rest)
        rows.append([prior, len(functions), len(models), round(rates * len(models)), _shown(seconds)])
        total += seconds
    rows.append(["all", "", "", "", _shown(total)])
    search = "" if config.rates else f", a search taken to try {USUAL_RATES:g} rates"
    title = (
        f"What the study takes: trainings of all functions of a prior at once{search}; time of one core of an Intel"
        " Xeon with AVX-512"
    )
    return Table(title, ("prior", "functions", "models", "trainings", "time"), rows)


def _shown(seconds: float) -> str:
    unit, size = next((u, s) for u, s in (("h", 3600), ("min", 60), ("s", 1)) if seconds >= s or s == 1)
    return f"{seconds / size:.2g} {unit}"

"""What the runs of the recursion study say together: one row for each depth, beside what needs no training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cemverify.results import Cell, Table
from synthetic.recursion_runs import RunRecord, Size, TaskRecord
from synthetic.statistics import Ratio, Spread, paired_ratio, spread
from synthetic.tasks import Score

NOTHING = "–"


@dataclass(frozen=True)
class Summary:
    """One row of the table: a predictor on all functions of a prior.

    Attributes:
        predictor: "CEM MLP, T = 4", "ridge", ... . prior: what the functions are drawn from. depth: T, if it has one.
        runs, diverged: how many there were, and how many of them diverged. If any did, no figure below is
            given: a mean over those that survived would flatter.
        rmse, observed, excess: of `Score`. gap_closed: (ridge - model) / (ridge - floor) of the expected errors.
        ratio: of the expected error to that of the smallest depth on the same function.
        energy_falls: for each descent step, the share of test points whose energy it lowers.
    """

    predictor: str
    prior: str
    depth: int | None
    size: Size | None
    runs: int
    diverged: int
    rmse: Spread | None
    observed: Spread | None
    excess: Spread | None
    gap_closed: Spread | None
    ratio: Ratio | None
    energy_falls: tuple[float, ...] | None


def summarise_depth(
    tasks: Sequence[TaskRecord], runs: Sequence[RunRecord], shallowest: Sequence[RunRecord], size: Size
) -> Summary:
    """The row of one depth.

    Args:
        tasks: the functions of one prior. runs, shallowest: the runs on them at this depth and at the smallest,
            in the same order.
    """
    depth = runs[0].run.depth
    name, prior = f"CEM MLP, T = {depth}", tasks[0].replicate.task.prior
    scores = [run.score for run in runs if run.score is not None]
    falls = [run.energy_falls for run in runs if run.energy_falls is not None]
    diverged = len(runs) - len(scores)
    if diverged:
        return Summary(name, prior, depth, size, len(runs), diverged, None, None, None, None, None, None)
    base = [run.score.expected for run in shallowest if run.score is not None]
    return Summary(
        name,
        prior,
        depth,
        size,
        len(runs),
        diverged,
        *_spreads(tasks, scores),
        ratio=paired_ratio([s.expected for s in scores], base) if len(base) == len(scores) else None,
        energy_falls=tuple(sum(step) / len(step) for step in zip(*falls, strict=True)),
    )


def summarise_references(tasks: Sequence[TaskRecord]) -> list[Summary]:
    """The rows of what needs no training: prior mean, ridge, and the Bayes-optimal predictor."""
    prior = tasks[0].replicate.task.prior
    references = {
        "prior mean": [task.prior_mean for task in tasks],
        "ridge": [task.ridge for task in tasks],
        "Bayes-optimal floor": [task.bayes for task in tasks],
    }
    return [
        Summary(name, prior, None, None, len(tasks), 0, *_spreads(tasks, scores), ratio=None, energy_falls=None)
        for name, scores in references.items()
    ]


def table(tasks: Sequence[TaskRecord], rows: Sequence[Summary]) -> Table:
    """The table of one prior."""
    task = tasks[0].replicate.task
    depths = [row.depth for row in rows if row.depth is not None]
    title = (
        f"RMSE on functions from {task.prior} (lengthscale {task.lengthscale:g}, {task.dimensions} inputs, "
        f"noise {task.noise:g}): {task.train_points} training and {task.test_points} test points, "
        f"mean ± std of n = {len(tasks)}"
    )
    columns = [
        "predictor",
        "parameters",
        "FLOPs/point",
        "expected RMSE",
        "observed RMSE",
        "excess",
        "gap closed",
        f"ratio to T = {min(depths)}",
        "energy falls",
    ]
    return Table(title, columns, [_cells(row) for row in rows])


def _spreads(tasks: Sequence[TaskRecord], scores: Sequence[Score]) -> tuple[Spread, Spread, Spread, Spread]:
    """Spreads of the expected and observed error, of the excess, and of the gap closed."""
    closed = [
        (task.ridge.expected - score.expected) / (task.ridge.expected - task.floor)
        for task, score in zip(tasks, scores, strict=True)
    ]
    return (
        spread([score.expected for score in scores]),
        spread([score.observed for score in scores]),
        spread([score.excess for score in scores]),
        spread(closed),
    )


def _cells(row: Summary) -> list[Cell]:
    size = [NOTHING, NOTHING] if row.size is None else [f"{row.size.parameters:,}", f"{row.size.forward:,}"]
    if row.rmse is None or row.observed is None or row.excess is None or row.gap_closed is None:
        return [row.predictor, *size, f"diverged {row.diverged}/{row.runs}", *[NOTHING] * 5]
    return [
        row.predictor,
        *size,
        _spread(row.rmse),
        _spread(row.observed),
        _spread(row.excess),
        f"{row.gap_closed.mean:.1%}",
        _ratio(row.ratio),
        # the step that lowers the fewest: an average over steps would hide a last one that climbs
        NOTHING if row.energy_falls is None else f"{min(row.energy_falls):.1%}",
    ]


def _spread(value: Spread) -> str:
    return f"{value.mean:.4f}" if value.std is None else f"{value.mean:.4f} ± {value.std:.4f}"


def _ratio(value: Ratio | None) -> str:
    if value is None:
        return NOTHING
    if value.low is None or value.high is None or value.low == value.high:
        return f"{value.mean:.3f}"
    return f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}]"

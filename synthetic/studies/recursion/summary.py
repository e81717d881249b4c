"""What the cells of the recursion study say together: for each prior one row for each contender and reference.

A contender's learning rate is chosen by one rule for all: the smallest geometric mean over the functions of the error
on the points held out, of the rates at which the fewest replicates diverged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cemverify.results.statistics import PairedComparison, Spread, compare, correct, spread
from synthetic.gp.tasks import Score
from synthetic.studies.recursion.cells import RunRecord, TaskRecord
from synthetic.studies.recursion.contenders import Contender, RegressorCost

Rates = Mapping[float, Sequence[RunRecord]]


@dataclass(frozen=True)
class Row:
    """A predictor on all functions of a prior.

    Attributes:
        name: of a contender or of a reference. contender: None for a reference.
        learning_rate: the one that was chosen; None for a reference. at_edge: whether it was the smallest or the
            largest of several, so that a better one may lie beyond.
        cost: of the model; None for a reference.
        runs: at that rate, one for each function; () for a reference.
        diverged: how many of them did. If any did, no figure below is given: a mean over those that survived would
            flatter.
        rmse, observed, excess: of `Score`. gap_closed: (ridge - model) / (ridge - floor) of the expected errors.
        deeper: its expected errors against those of its family's smallest T, or of CEM's for a family of one.
        same_depth: the same against CEM at the same T, if that took part.
    """

    name: str
    contender: Contender | None
    learning_rate: float | None
    at_edge: bool
    cost: RegressorCost | None
    runs: Sequence[RunRecord]
    diverged: int
    rmse: Spread | None
    observed: Spread | None
    excess: Spread | None
    gap_closed: Spread | None
    deeper: PairedComparison | None = None
    same_depth: PairedComparison | None = None

    @property
    def errors(self) -> list[float]:
        """The expected error on each function, if none diverged."""
        return [run.score.expected for run in self.runs if run.score is not None]


def choose_rate(rates: Rates) -> float:
    """The learning rate of a contender, by what happened on the points held out."""

    def badness(rate: float) -> tuple[int, float]:
        held_out = [run.held_out_rmse for run in rates[rate]]
        sound = [error for error in held_out if error is not None]
        mean = math.fsum(map(math.log, sound)) / len(sound) if sound else math.inf
        return sum(run.diverged_at is not None for run in rates[rate]), mean

    return min(sorted(rates), key=badness)


def summarise(
    tasks: Sequence[TaskRecord], runs: Mapping[Contender, Rates], costs: Mapping[Contender, RegressorCost]
) -> list[Row]:
    """The rows of one prior: references, contenders, the exact posterior.

    Args:
        tasks: the functions. runs: for each contender and rate one record for each function, in their order.
    """
    references = [
        Row(name, None, None, False, None, (), 0, *_spreads(tasks, [task.scores[name] for task in tasks]))
        for name in tasks[0].scores
    ]
    contenders = _compared([_row(tasks, contender, rates, costs[contender]) for contender, rates in runs.items()])
    return [*references[:-1], *contenders, references[-1]]


def _row(tasks: Sequence[TaskRecord], contender: Contender, rates: Rates, cost: RegressorCost) -> Row:
    rate = choose_rate(rates)
    runs = rates[rate]
    scores = [run.score for run in runs if run.score is not None]
    diverged = len(runs) - len(scores)
    at_edge = len(rates) > 1 and rate in (min(rates), max(rates))
    figures = (None, None, None, None) if diverged else _spreads(tasks, scores)
    return Row(contender.name, contender, rate, at_edge, cost, runs, diverged, *figures)


def _spreads(tasks: Sequence[TaskRecord], scores: Sequence[Score]) -> tuple[Spread, Spread, Spread, Spread]:
    """Spreads of the expected and observed error, of the excess, and of the gap closed."""
    ridge = [task.scores["ridge"].expected for task in tasks]
    closed = [
        (linear - score.expected) / (linear - task.floor)
        for task, linear, score in zip(tasks, ridge, scores, strict=True)
    ]
    return (
        spread([score.expected for score in scores]),
        spread([score.observed for score in scores]),
        spread([score.excess for score in scores]),
        spread(closed),
    )


def _compared(rows: Sequence[Row]) -> list[Row]:
    """The rows with their comparisons, corrected for how many of each kind there are."""
    plain = [row for row in rows if row.contender is not None and row.contender.family == "CEM"]
    deeper = [_against(row, _shallowest(row, rows, plain)) for row in rows]
    same = [_against(row, next((p for p in plain if _depth(p) == _depth(row)), None)) for row in rows]
    return [
        replace(row, deeper=d, same_depth=s) for row, d, s in zip(rows, correct(deeper), correct(same), strict=True)
    ]


def _shallowest(row: Row, rows: Sequence[Row], plain: Sequence[Row]) -> Row | None:
    assert row.contender is not None
    family = [r for r in rows if r.contender is not None and r.contender.family == row.contender.family]
    candidates = family if len(family) > 1 else plain
    return min(candidates, key=_depth, default=None)


def _depth(row: Row) -> int:
    assert row.contender is not None
    return row.contender.depth


def _against(row: Row, base: Row | None) -> PairedComparison | None:
    if base is None or base is row or row.diverged or base.diverged:
        return None
    return compare(row.errors, base.errors)

"""Studies whose rows find their own learning rates: all rows are tuned first, and then judged seed by seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cemverify.runs import Cell
from cemverify.runs.plain import restore
from synthetic.corpora.choice import PinnedCorpus
from synthetic.corpora.corpus import Corpus
from synthetic.corpora.tokens import Batches
from synthetic.studies.engine.comparisons import Compared, compared
from synthetic.studies.engine.conduct import Look
from synthetic.studies.engine.designs import Row, cost
from synthetic.studies.engine.plan import TUNING_SEED, Plan
from synthetic.studies.engine.rates import Curve, optimum, rate, starts, wanted
from synthetic.studies.engine.trials import TrialCell, TrialRecord, compute_trial, part_windows
from synthetic.training.cost import Paths, paths
from synthetic.training.looped import looped_on_meta


@dataclass
class Tuned:
    """A row of the study, as far as it is.

    Attributes:
        row: the model. curves: one for each length of tuning, the shorter first; the last may be unfinished.
        rate: the learning rate that was found; None as long as tuning lasts.
        judged: the record of each seed; None where it is missing.
    """

    row: Row
    curves: list[Curve] = field(default_factory=list)
    rate: float | None = None
    judged: dict[int, TrialRecord | None] = field(default_factory=dict)

    @property
    def records(self) -> list[TrialRecord]:
        """The records of the seeds that have been judged."""
        return [record for record in self.judged.values() if record is not None]

    @property
    def finals(self) -> dict[int, float]:
        """Bits per byte of each seed that is there and did not diverge."""
        return {s: r.bits for s, r in self.judged.items() if r is not None and r.bits is not None}

    @property
    def diverged(self) -> int:
        """How many judged trainings did."""
        return sum(record.bits is None for record in self.records)

    def over(self, base: Tuned) -> Compared:
        """This row against another, seed by seed."""
        names = self.row.name, base.row.name
        return compared(*names, self.finals, base.finals, self.diverged + base.diverged)


@dataclass(frozen=True)
class State:
    """How far the study is.

    Attributes:
        rows: in the study's order. todo: the cells that are wanted next; () if all is done. known: those that are
            computed.
    """

    rows: tuple[Tuned, ...]
    todo: tuple[Cell, ...]
    known: tuple[Cell, ...]

    def of(self, name: str) -> Tuned | None:
        """The row of that name, as far as it is; None if the study has no such row."""
        return next((tuned for tuned in self.rows if tuned.row.name == name), None)

    def compared(self, asked: Iterable[tuple[str, str]]) -> list[Compared]:
        """Rows over others, by their names; of rows that the study lacks nothing is compared."""
        pairs = [(self.of(model), self.of(base)) for model, base in asked]
        return [model.over(base) for model, base in pairs if model is not None and base is not None]

    @property
    def seeds(self) -> int:
        """How many seeds every row has been judged with."""
        return min((len(tuned.records) for tuned in self.rows), default=0)


# The record of a cell; None if it is not computed yet.
Recall = Callable[[TrialCell, str], TrialRecord | None]


def state(plan: Plan, corpus: PinnedCorpus, device: str, look: Look) -> State:
    """How far the study is, and what it wants next.

    Raises:
        UsageError: tuning ran into the absurd.
    """
    known: list[Cell] = []
    todo: list[Cell] = []

    def recall(spec: TrialCell, label: str) -> TrialRecord | None:
        flops = cost(spec.design, spec.recipe.context).training * spec.recipe.tokens
        cell = compute_trial.cell(spec, cost=flops, label=label)
        payload = look(cell)
        (todo if payload is None else known).append(cell)
        return None if payload is None else restore(TrialRecord, payload)

    rows = [Tuned(row) for row in plan.rows]
    for tuned in rows:
        tuned.rate = plan.given_rate(tuned.row)
        if tuned.rate is None:
            _tune(plan, tuned, corpus, device, recall)
    of_tuning = tuple(todo)
    for seed in range(plan.seed, plan.seed + plan.seeds):
        for tuned in rows:
            if tuned.rate is not None:
                label = f"{tuned.row.name}, rate {tuned.rate:.3g}, seed {seed}"
                spec = plan.cell(tuned.row, seed, "judging", 1.0, tuned.rate, corpus, device)
                tuned.judged[seed] = recall(spec, label)
    return State(tuple(rows), of_tuning or tuple(todo), tuple(known))


def check_fits(plan: Plan, corpus: Corpus) -> None:
    """Refuses a context that is longer than the data, before any work.

    Raises:
        UsageError: it is longer than the training part, or than what is scored.
    """
    Batches(corpus.train.tokens, plan.seed, plan.recipe.batch, plan.recipe.context)
    part_windows(corpus.validation.tokens, "whole" if plan.papers else "judging", 1, plan.recipe.context)


def paths_of(plan: Plan) -> dict[str, Paths]:
    """The paths that the layers of each row take, by its name."""
    return {
        row.name: paths(looped_on_meta(row.design.looped), plan.recipe, compiled=plan.compiled) for row in plan.rows
    }


def trainings(plan: Plan) -> Mapping[str, float]:
    """What each row takes, in trainings of the recipe's length: to judge, and to tune if no edge extends."""
    first, last = plan.shares
    of_tuning = 0.0 if plan.papers else plan.tuning_seeds * (len(starts(None)) * first + 3 * last)
    return {row.name: row.length * (plan.seeds + of_tuning) for row in plan.rows}


def _tune(plan: Plan, tuned: Tuned, corpus: PinnedCorpus, device: str, recall: Recall) -> None:
    """Reads the tuning of a row into it, as far as it is."""
    before: Curve | None = None
    for share in plan.shares:
        bits: dict[int, float] = {}
        while numbers := wanted(bits, starts(before)):
            for k in numbers:
                label = f"tuning {tuned.row.name}, {share:.3g} of the length, rate {rate(k):.3g}"
                seeds = range(TUNING_SEED, TUNING_SEED + plan.tuning_seeds)
                cells = [plan.cell(tuned.row, seed, "tuning", share, rate(k), corpus, device) for seed in seeds]
                found = [recall(cell, label) for cell in cells]
                records = [record for record in found if record is not None]
                if len(records) == len(cells):
                    bits[k] = _mean([math.inf if r.bits is None else r.bits for r in records])
            if any(k not in bits for k in numbers):
                if bits:
                    tuned.curves.append(Curve(share, dict(sorted(bits.items()))))
                return
        before = Curve(share, dict(sorted(bits.items())))
        tuned.curves.append(before)
    assert before is not None
    tuned.rate = optimum(before, rounded=plan.rounded)


def _mean(bits: Sequence[float]) -> float:
    return math.fsum(bits) / len(bits) if all(map(math.isfinite, bits)) else math.inf

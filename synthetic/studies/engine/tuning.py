"""Studies that tune the learning rate of every row: all rows are tuned first, and then judged seed by seed."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from cemverify.console.errors import UsageError
from cemverify.runs.plain import restore
from synthetic.corpora.choice import PinnedCorpus
from synthetic.studies.engine.comparisons import Compared, compared
from synthetic.studies.engine.conduct import Course, WantedCells, together
from synthetic.studies.engine.designs import Row, cost
from synthetic.studies.engine.plan import TUNING_SEED, Plan
from synthetic.studies.engine.rates import HIGHEST, LOWEST, TuningCurve, optimum, rate, starts, wanted, within
from synthetic.studies.engine.trials import TrialCell, TrialRecord, compute_trial
from synthetic.training.cost import Paths, paths
from synthetic.training.looped import looped_on_meta


@dataclass
class Tuned:
    """A row of the study, as far as it has come."""

    row: Row  # the model
    # one for each length of tuning, the shorter first; the last may be incomplete
    curves: list[TuningCurve] = field(default_factory=list)
    rate: float | None = None  # the learning rate found; None until tuning is finished
    # the record of each seed; None where it is missing
    judged: dict[int, TrialRecord | None] = field(default_factory=dict)

    @property
    def records(self) -> list[TrialRecord]:
        """The records of the seeds that have been judged."""
        return [record for record in self.judged.values() if record is not None]

    @property
    def finals(self) -> dict[int, float]:
        """Bits per byte of each judged seed that did not diverge."""
        return {s: r.bits for s, r in self.judged.items() if r is not None and r.bits is not None}

    @property
    def diverged(self) -> int:
        """How many judged trainings diverged."""
        return sum(record.bits is None for record in self.records)


@dataclass(frozen=True)
class StudyState:
    """The rows of a study in its order, as far as they have come."""

    rows: tuple[Tuned, ...]

    def of(self, key: Hashable) -> Tuned | None:
        """The row with this key; None if the study has no such row."""
        return next((tuned for tuned in self.rows if tuned.row.key == key), None)

    def compared(self, keys: Iterable[tuple[Hashable, Hashable]]) -> list[Compared]:
        """Rows over others, seed by seed, by their keys; pairs with a row that the study lacks are left out."""
        pairs = [(self.of(model), self.of(base)) for model, base in keys]
        return [
            compared(m.row.name, b.row.name, m.finals, b.finals, m.diverged + b.diverged, (m.row.key, b.row.key))
            for m, b in pairs
            if m is not None and b is not None
        ]

    @property
    def seeds(self) -> int:
        """The number of seeds with which every row has been judged."""
        return min((len(tuned.records) for tuned in self.rows), default=0)


def study(plan: Plan, corpus: PinnedCorpus, device: str) -> Course[StudyState]:
    """Tunes the rows that have no learning rate, all in parallel; then judges all rows, seed by seed."""
    given = plan.recipe.learning_rate if plan.papers else None
    rows = [Tuned(row, rate=given and (row.rate or given)) for row in plan.rows]
    yield from together(_tune(plan, tuned, corpus, device) for tuned in rows if tuned.rate is None)
    trainings = [
        (tuned, seed, plan.cell(tuned.row, seed, "judging", 1.0, tuned.rate, corpus, device))
        for seed in range(plan.seed, plan.seed + plan.seeds)
        for tuned in rows
        if tuned.rate is not None
    ]
    labels = [f"{tuned.row.name}, rate {tuned.rate:.3g}, seed {seed}" for tuned, seed, _ in trainings]
    # while any row is being tuned, only trainings already in the store are read
    all_tuned = all(tuned.rate is not None for tuned in rows)
    records = yield from _train([cell for _, _, cell in trainings], labels, computed=all_tuned)
    for (tuned, seed, _), record in zip(trainings, records, strict=True):
        tuned.judged[seed] = record
    return StudyState(tuple(rows))


def _train(
    specs: Sequence[TrialCell], labels: Sequence[str], *, computed: bool = True
) -> Course[list[TrialRecord | None]]:
    """The records of trainings; None for those that are missing."""
    flops = [cost(spec.design, spec.recipe.context).training * spec.recipe.tokens for spec in specs]
    cells = [compute_trial.cell(s, cost=f, label=label) for s, f, label in zip(specs, flops, labels, strict=True)]
    payloads = yield WantedCells(cells, computed)
    return [None if payload is None else restore(TrialRecord, payload) for payload in payloads]


def found_within(numbers: Sequence[int]) -> Sequence[int]:
    """The rates to try next, unchanged.

    Raises:
        UsageError: one of them is beyond the limits of a search.
    """
    if within(numbers) != numbers:
        raise UsageError(
            f"the best learning rate lies beyond {rate(LOWEST):.2g} to {rate(HIGHEST):.2g}: something other than the"
            " rate is wrong with this model or its data"
        )
    return numbers


def _tune(plan: Plan, tuned: Tuned, corpus: PinnedCorpus, device: str) -> Course[None]:
    """Finds the learning rate of a row; ends without one if a training is missing."""
    seeds = range(TUNING_SEED, TUNING_SEED + plan.tuning_seeds)
    before: TuningCurve | None = None
    for share in plan.shares:
        bits: dict[int, float] = {}
        while numbers := found_within(wanted(bits, starts(before))):
            pairs = [(k, seed) for k in numbers for seed in seeds]
            cells = [plan.cell(tuned.row, seed, "tuning", share, rate(k), corpus, device) for k, seed in pairs]
            labels = [f"tuning {tuned.row.name}, {share:.3g} of the length, rate {rate(k):.3g}" for k, _ in pairs]
            records = iter((yield from _train(cells, labels)))
            for k in numbers:
                finals = [
                    math.inf if r.bits is None else r.bits for r in islice(records, len(seeds)) if r is not None
                ]
                if len(finals) == len(seeds):
                    bits[k] = math.fsum(finals) / len(finals) if all(map(math.isfinite, finals)) else math.inf
            if any(k not in bits for k in numbers):
                if bits:
                    tuned.curves.append(TuningCurve(share, dict(sorted(bits.items()))))
                return
        before = TuningCurve(share, dict(sorted(bits.items())))
        tuned.curves.append(before)
    assert before is not None
    tuned.rate = optimum(before, rounded=plan.rounded)


def paths_of(plan: Plan, device: str) -> dict[str, Paths]:
    """The paths that the layers of each row take on a device, by the row's name."""
    models = {row.name: looped_on_meta(row.design.looped) for row in plan.rows}
    return {name: paths(m, plan.recipe, device=device, compiled=plan.compiled) for name, m in models.items()}


def trainings(plan: Plan) -> Mapping[str, float]:
    """The cost of each row in trainings of full length: judging, and tuning if no search is extended."""
    first, last = plan.shares
    of_tuning = 0.0 if plan.papers else plan.tuning_seeds * (len(starts(None)) * first + 3 * last)
    return {row.name: row.length * (plan.seeds + of_tuning) for row in plan.rows}

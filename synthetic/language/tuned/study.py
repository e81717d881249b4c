"""The study step by step: what the store holds of it, what is to be computed next, until nothing is.

What comes next follows from what is stored alone, so a run that was stopped anywhere goes on as if it had not been.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cemverify.runs import Alarm, Cell, CellStore, CorruptCell, RunOptions, ctrl_c_after, payloads, run_cells
from synthetic.corpora.batches import Batches
from synthetic.corpora.choice import PinnedCorpus
from synthetic.corpora.corpus import Corpus
from synthetic.language.training.looped import looped_on_meta
from synthetic.language.training.paths import Paths, paths
from synthetic.language.tuned.cells import TrialCell, TrialRecord, compute_trial, part_windows, read_record
from synthetic.language.tuned.designs import Row, cost
from synthetic.language.tuned.halving import Curve, optimum, rate, starts, wanted
from synthetic.language.tuned.plan import SecondStepPlan

# The record of a cell; None if it is not computed yet.
Look = Callable[[TrialCell], TrialRecord | None]


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
    def finals(self) -> dict[int, float]:
        """Bits per byte of each seed that is there and did not diverge."""
        return {s: r.bits for s, r in self.judged.items() if r is not None and r.bits is not None}

    @property
    def diverged(self) -> int:
        """How many judged trainings did."""
        return sum(r is not None and r.bits is None for r in self.judged.values())


@dataclass(frozen=True)
class Asked:
    """A cell that is wanted, and what progress calls it."""

    spec: TrialCell
    label: str


@dataclass(frozen=True)
class State:
    """How far the study is.

    Attributes:
        rows: in the study's order. todo: the cells that are wanted next; () if all is done.
        known: all specifications that have a record.
    """

    rows: tuple[Tuned, ...]
    todo: tuple[Asked, ...]
    known: tuple[TrialCell, ...]

    def of(self, name: str) -> Tuned | None:
        """The row of that name."""
        return next((tuned for tuned in self.rows if tuned.row.name == name), None)

    @property
    def seeds(self) -> int:
        """How many seeds every row has been judged with."""
        return min((sum(r is not None for r in tuned.judged.values()) for tuned in self.rows), default=0)


def state(plan: SecondStepPlan, corpus: PinnedCorpus, device: str, look: Look) -> State:
    """How far the study is, and what it wants next: all rows are tuned first, and then judged seed by seed.

    Raises:
        UsageError: tuning ran into the absurd.
    """
    known: list[TrialCell] = []

    def seen(cell: TrialCell) -> TrialRecord | None:
        record = look(cell)
        if record is not None:
            known.append(cell)
        return record

    rows: list[Tuned] = []
    todo: list[Asked] = []
    for row in plan.rows:
        tuned = Tuned(row)
        rows.append(tuned)
        todo += _tune(plan, tuned, corpus, device, seen)
    tuning = bool(todo)
    for i in range(plan.seeds):
        seed = plan.seed + i
        for tuned in rows:
            if tuned.rate is None:
                continue
            cell = plan.cell(tuned.row, seed, "judging", 1.0, tuned.rate, corpus, device)
            tuned.judged[seed] = seen(cell)
            if tuned.judged[seed] is None and not tuning:
                todo.append(Asked(cell, f"{tuned.row.name}, rate {tuned.rate:.3g}, seed {seed}"))
    return State(tuple(rows), tuple(todo), tuple(known))


def conduct(
    plan: SecondStepPlan, corpus: PinnedCorpus, device: str, where: RunOptions, until: float | None = None
) -> State:
    """Computes what the store lacks, for so many minutes at most, and says how far the study is.

    Args:
        until: minutes; 0 only reads the store. None goes on to the end.

    Raises:
        UsageError: a cell failed. KeyboardInterrupt: of somebody, not of the clock.
    """
    store = CellStore(where.store)
    records: dict[str, TrialRecord] = {}
    computed: set[str] = set()

    def look(spec: TrialCell) -> TrialRecord | None:
        key = compute_trial.cell(spec).key
        if not where.resume and key not in computed:
            return None
        if key not in records:
            try:
                stored = store.get(key)
            except CorruptCell:  # the run names it, and computes it again
                return None
            if stored is None or (stored.failure is not None and where.retry_failed):
                return None
            records[key] = read_record(payloads([stored], where.store)[0])
        return records[key]

    found = state(plan, corpus, device, look)
    if until == 0:
        return found
    alarm = Alarm()
    try:
        with ctrl_c_after(until) as alarm:
            while found.todo:
                cells = [_cell(asked) for asked in found.todo]
                payloads(run_cells(cells, where), where.store)
                computed.update(cell.key for cell in cells)
                found = state(plan, corpus, device, look)
    except KeyboardInterrupt:
        if not alarm.rang:
            raise
    return state(plan, corpus, device, look)


def check_fits(plan: SecondStepPlan, corpus: Corpus) -> None:
    """Refuses a context that is longer than the data, before any work.

    Raises:
        UsageError: it is longer than the training part, or than half of the validation part.
    """
    Batches(corpus.train.tokens, plan.seed, plan.recipe.batch, plan.recipe.context)
    part_windows(corpus.validation.tokens, "judging", 1, plan.recipe.context)


def paths_of(plan: SecondStepPlan) -> dict[str, Paths]:
    """The paths that the layers of each row take, by its name."""
    return {
        row.name: paths(looped_on_meta(row.design.looped), plan.recipe, compiled=plan.compiled) for row in plan.rows
    }


def keys(found: State) -> Iterator[str]:
    """The keys of all cells of the study that are computed."""
    for spec in found.known:
        yield compute_trial.cell(spec).key


def trainings(plan: SecondStepPlan) -> Mapping[str, float]:
    """How many full-length trainings each row takes: one for each seed, and those of tuning if no edge extends."""
    first, last = plan.shares
    of_tuning = plan.tuning_seeds * (len(starts(None)) * first + 3 * last)
    return {row.name: plan.seeds + of_tuning for row in plan.rows}


def _tune(plan: SecondStepPlan, tuned: Tuned, corpus: PinnedCorpus, device: str, look: Look) -> list[Asked]:
    """Reads the tuning of a row into it; returns the trainings that it wants next."""
    before: Curve | None = None
    for share in plan.shares:
        bits: dict[int, float] = {}
        while numbers := wanted(bits, starts(before)):
            asked: list[Asked] = []
            for k in numbers:
                cells = plan.tuning_cells(tuned.row, share, [k], corpus, device)
                found = [look(cell) for cell in cells]
                label = f"tuning {tuned.row.name}, {share:.3g} of the length, rate {rate(k):.3g}"
                asked += [Asked(c, label) for c, r in zip(cells, found, strict=True) if r is None]
                if all(r is not None for r in found):
                    bits[k] = _mean([math.inf if r is None or r.bits is None else r.bits for r in found])
            if asked:
                if bits:
                    tuned.curves.append(Curve(share, dict(sorted(bits.items()))))
                return asked
        before = Curve(share, dict(sorted(bits.items())))
        tuned.curves.append(before)
    assert before is not None
    tuned.rate = optimum(before)
    return []


def _mean(bits: Sequence[float]) -> float:
    return math.fsum(bits) / len(bits) if all(map(math.isfinite, bits)) else math.inf


def _cell(asked: Asked) -> Cell:
    spec = asked.spec
    flops = cost(spec.design, spec.recipe.context).training * spec.recipe.tokens
    return compute_trial.cell(spec, cost=flops, label=asked.label)

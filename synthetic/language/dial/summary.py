"""What the study says: bits with each number of steps at test time, and with each stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from cemverify.results.statistics import PairedComparison, compare
from synthetic import stopping
from synthetic.language.dial.plan import TEST_DEPTHS, DialPlan, own
from synthetic.language.paper.summary import MARGIN
from synthetic.language.tuned.designs import cost
from synthetic.language.tuned.study import State, Tuned
from synthetic.stopping import AtStop


@dataclass(frozen=True)
class Against:
    """One model for all T, with T steps, against the model that was trained for T.

    Attributes:
        model: its row. steps: T. values, references: its bits and the other's, one for each seed that both have.
        comparison: of them.
    """

    model: str
    steps: int
    values: tuple[float, ...]
    references: tuple[float, ...]
    comparison: PairedComparison


@dataclass(frozen=True)
class DialSummary:
    """What is known.

    Attributes:
        bits: means over seeds with each T' of `TEST_DEPTHS`, by row; None where a seed has no finite one.
        falls: by row that is a dial, in their order: the T' up to which its bits fall with every T' that was tried.
        against: the dials against the models for each T.
        stopped: means over seeds with each of `STOPS`, by row; no entry where a seed lacks one.
        saved: the training FLOPs of all models for one T together, over those of a model for all T; None if the study
            lacks either.
    """

    bits: dict[str, tuple[float | None, ...]]
    falls: dict[str, int]
    against: tuple[Against, ...]
    stopped: dict[str, tuple[AtStop, ...]]
    saved: float | None


def summarise(plan: DialPlan, found: State) -> DialSummary:
    """The summary of what is there."""
    bits = {tuned.row.name: means for tuned in found.rows if (means := _means(tuned)) is not None}
    dials = [tuned for tuned in found.rows if tuned.row.design.dial]
    apart = [tuned for tuned in found.rows if not tuned.row.design.dial]
    return DialSummary(
        bits,
        {t.row.name: falls_up_to(bits[t.row.name]) for t in dials if t.row.name in bits},
        tuple(pair for dial in dials for T in TEST_DEPTHS if (pair := _against(dial, T, found)) is not None),
        {tuned.row.name: ended for tuned in found.rows if (ended := _stopped(tuned))},
        _flops(apart, plan) / _flops(dials[:1], plan) if apart and dials else None,
    )


def _flops(rows: Sequence[Tuned], plan: DialPlan) -> float:
    """Of training all of them, per token."""
    return sum(cost(tuned.row.design, plan.recipe.context).training for tuned in rows)


def falls_up_to(bits: Sequence[float | None]) -> int:
    """The last T' of `TEST_DEPTHS` up to which every step makes the bits fewer."""
    reached = TEST_DEPTHS[0]
    for before, after, T in zip(bits, bits[1:], TEST_DEPTHS[1:], strict=False):
        if before is None or after is None or after >= before:
            break
        reached = T
    return reached


def _means(tuned: Tuned) -> tuple[float | None, ...] | None:
    records = [record for record in tuned.judged.values() if record is not None and record.at_depths]
    if not records:
        return None
    columns = zip(*(record.at_depths for record in records), strict=True)
    return tuple(None if None in column else fmean(b for b in column if b is not None) for column in columns)


def _stopped(tuned: Tuned) -> tuple[AtStop, ...]:
    replicates = [record.at_stops for record in tuned.judged.values() if record is not None]
    return stopping.means(replicates) if all(replicates) else ()  # one that diverged has none


def _against(dial: Tuned, steps: int, found: State) -> Against | None:
    other = found.of(own(steps))
    if other is None:
        return None
    i = TEST_DEPTHS.index(steps)
    pairs = [
        (mine, theirs)
        for seed, theirs in other.finals.items()
        if (record := dial.judged.get(seed)) is not None
        and record.at_depths
        and (mine := record.at_depths[i]) is not None
    ]
    if not pairs:
        return None
    values, references = zip(*pairs, strict=True)
    return Against(dial.row.name, steps, values, references, compare(values, references, MARGIN))

"""What the cells of a language study say together: a row for each model, compared at equal tokens, FLOPs, parameters.

Models are paired by seed: the same batches in the same order, and the same first value of every parameter that two
models share. All comparisons are of bits per byte, as ratios.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cemverify.results.statistics import PairedComparison, Spread, compare, correct, spread
from synthetic.studies.engine.comparisons import MARGIN
from synthetic.studies.paper.cells import TrainingRecord
from synthetic.studies.paper.rows import StudyPlan, Variant

# Parameters this near to each other are as good as equal.
EQUAL_PARAMETERS = 0.02


@dataclass(frozen=True)
class Row:
    """A model over all seeds.

    Attributes:
        records: one for each seed. diverged: how many of them did; if any did, no figure below is given.
        bits: after the last step, bits per byte.
        tokens: against the baseline at equal tokens; None of a baseline.
        affordable: the step at which it has spent what the study's cheapest model spends in all; may be a fraction.
        bits_then: bits per byte then. flops: against the baseline, both then.
        share: its parameters over the baseline's. parameters: the widened model, or itself if that is as large as the
            baseline, against the baseline; None if the study has no such model.
    """

    variant: Variant
    records: Sequence[TrainingRecord]
    diverged: int
    bits: Spread | None
    tokens: PairedComparison | None
    affordable: float
    bits_then: Spread | None
    flops: PairedComparison | None
    share: float | None
    parameters: PairedComparison | None

    @property
    def name(self) -> str:
        """The name of the row's variant."""
        return self.variant.name

    @property
    def finals(self) -> list[float]:
        """Bits per byte of each seed, if none diverged."""
        return [record.final for record in self.records if record.final is not None]

    @property
    def bits_at_equal_flops(self) -> list[float]:
        """Bits per byte of each seed at equal FLOPs."""
        return [bits_at(record, self.affordable) for record in self.records]


def summarise(plan: StudyPlan, records: Mapping[str, Sequence[TrainingRecord]]) -> list[Row]:
    """The rows of a study, in the order of its variants.

    Args:
        records: for each variant's name one for each seed, in their order.
    """
    cheapest = min(records[variant.name][0].training for variant in plan.variants)
    rows = {variant.name: _row(variant, records[variant.name], plan, cheapest) for variant in plan.variants}
    found = [_compared(row, rows) for row in rows.values()]
    tokens, flops, parameters = (
        correct([getattr(row, kind) for row in found]) for kind in ("tokens", "flops", "parameters")
    )
    return [
        replace(row, tokens=t, flops=f, parameters=p)
        for row, t, f, p in zip(found, tokens, flops, parameters, strict=True)
    ]


def bits_at(record: TrainingRecord, step: float) -> float:
    """Bits per byte at a step between two validations; before the first, that one stands for it."""
    steps, bits = record.steps, record.bits
    if step <= steps[0]:
        return bits[0]
    for i in range(1, len(steps)):
        if step <= steps[i]:
            part = (step - steps[i - 1]) / (steps[i] - steps[i - 1])
            return bits[i - 1] + part * (bits[i] - bits[i - 1])
    return bits[-1]


def against(row: Row, base: Row) -> PairedComparison | None:
    """One row against another at equal tokens; None if a run of either diverged."""
    return None if row.diverged or base.diverged else compare(row.finals, base.finals, MARGIN)


def _row(variant: Variant, records: Sequence[TrainingRecord], plan: StudyPlan, cheapest: float) -> Row:
    diverged = sum(record.final is None for record in records)
    affordable = plan.recipe.steps * cheapest / records[0].training
    bits = bits_then = None
    if not diverged:
        bits = spread([record.bits[-1] for record in records])
        bits_then = spread([bits_at(record, affordable) for record in records])
    return Row(variant, records, diverged, bits, None, affordable, bits_then, None, None, None)


def _compared(row: Row, rows: Mapping[str, Row]) -> Row:
    if row.variant.against is None:
        return row
    base = rows[row.variant.against]
    share = row.records[0].parameters / base.records[0].parameters
    matched = rows[row.variant.widened] if row.variant.widened else row
    itself_equal = math.isclose(share, 1, abs_tol=EQUAL_PARAMETERS)
    parameters = against(matched, base) if row.variant.widened or itself_equal else None
    sound = not (row.diverged or base.diverged)
    return replace(
        row,
        tokens=against(row, base),
        flops=compare(row.bits_at_equal_flops, base.bits_at_equal_flops, MARGIN) if sound else None,
        share=share,
        parameters=parameters,
    )

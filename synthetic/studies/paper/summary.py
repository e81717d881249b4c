"""The trainings of an experiment together: models compared at equal tokens, FLOPs and parameters, and over rates.

Models are paired by seed: the same batches in the same order, and the same initial value of every parameter that two
models share. All comparisons are ratios of bits per byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.interpolate import Akima1DInterpolator

from cemverify.results.statistics import PairedComparison, compare, correct
from synthetic.studies.engine.comparisons import MARGIN
from synthetic.studies.engine.tuning import StudyState, Tuned
from synthetic.studies.paper.rows import RATES, Key, Variant

# Points of the interpolated curve between the smallest and the largest rate.
GRID = 4001


@dataclass(frozen=True)
class Summed:
    """A model over all seeds."""

    model: Tuned
    # the step, possibly fractional, at which it has used the total FLOPs of the study's cheapest model
    affordable: float
    # tokens, flops: against the baseline, after the last step and with both at their `affordable` step
    tokens: PairedComparison | None = None
    flops: PairedComparison | None = None

    @property
    def finals(self) -> list[float]:
        """Bits per byte of each seed after the last step; empty if one diverged."""
        return [] if self.model.diverged else list(self.model.finals.values())

    @property
    def at_equal_flops(self) -> list[float]:
        """Bits per byte of each seed at the step `affordable`; empty if one diverged."""
        return [] if self.model.diverged else [bits_at(r.along, self.affordable) for r in self.model.records]


def summarise(steps: int, models: Sequence[Tuned]) -> list[Summed]:
    """The models of a study with their comparisons, each kind corrected for its number of comparisons.

    Args:
        steps: of a full training. models: with the records of all their seeds.
    """
    cheapest = min(model.records[0].training for model in models)
    rows = {m.row.key: Summed(m, steps * cheapest / m.records[0].training) for m in models}
    bases = [rows.get(against_of(row.model)) for row in rows.values()]
    pairs = list(zip(rows.values(), bases, strict=True))
    tokens = correct([b if b is None else between(row.finals, b.finals) for row, b in pairs])
    flops = correct([b if b is None else between(row.at_equal_flops, b.at_equal_flops) for row, b in pairs])
    return [replace(r, tokens=t, flops=f) for r, t, f in zip(rows.values(), tokens, flops, strict=True)]


def against_of(model: Tuned) -> Key | None:
    """The key of a model's baseline; None for a baseline."""
    assert isinstance(model.row, Variant)
    return model.row.against


def between(values: Sequence[float], references: Sequence[float]) -> PairedComparison | None:
    """Bits of a model against those of a baseline, seed by seed; None if a run of either diverged."""
    return compare(values, references, MARGIN) if values and references else None


def bits_at(along: Sequence[tuple[int, float]], step: float) -> float:
    """Bits per byte at a step, interpolated between two validations; before the first, the value there."""
    steps, bits = zip(*along, strict=True)
    return float(np.interp(step, steps, bits))


# --- the best learning rate --------------------------------------------------------------------------


@dataclass(frozen=True)
class Optimum:
    """The lowest point of a curve."""

    rate: float  # where
    bits: float  # how low
    at_edge: bool  # whether it is the smallest or the largest rate; a better one may lie beyond


def optimum(rates: Sequence[float], bits: Sequence[float]) -> Optimum:
    """The lowest point of Akima's curve through (log2 rate, bits); rates must increase; at least two are needed.

    Akima (1970) weights the slopes on both sides. One rate at which training goes badly therefore bends the curve
    between the others less than it would bend a polynomial or a cubic spline.
    """
    curve = Akima1DInterpolator(np.log2(rates), np.asarray(bits, dtype=np.float64))
    x = np.linspace(np.log2(rates[0]), np.log2(rates[-1]), GRID)
    y = curve(x)  # (GRID,)
    lowest = int(np.argmin(y))
    return Optimum(float(2 ** x[lowest]), float(y[lowest]), lowest in (0, GRID - 1))


def tuned(state: StudyState, key: Key) -> list[Optimum]:
    """The optimum of each seed of a model of the learning-rate study; empty if too many runs diverged.

    A model that diverges at some rates is tuned over those at which no run did; at least three are needed.
    """
    at = {rate: state.of(replace(key, rate=rate)) for rate in RATES}
    finals = {rate: list(row.finals.values()) for rate, row in at.items() if row is not None and not row.diverged}
    if len(finals) < 3:
        return []
    return [optimum(list(finals), bits) for bits in zip(*finals.values(), strict=True)]

"""Verdicts and the records that carry them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """What a run says of one property."""

    HOLDS = "holds"
    VIOLATED = "violated"
    INCONCLUSIVE = "inconclusive"
    NOT_OFFERED = "not offered"
    SUITE_ERROR = "suite error"


@dataclass(frozen=True)
class Record:
    """One property's verdict and the evidence for it.

    Attributes:
        id, claim, source: of the property.
        verdict: see `Verdict`.
        examples: valid ones. telling: those that could have told right from wrong. discarded: outside the premise.
        margin: worst residual over budget; above 1 on a violation.
        cause: for a violation, which identity failed or which kind of fault. reason: a sentence.
        counterexample: the smallest case found, both sides, the worst coordinate.
        seconds: how long it took.
    """

    id: str
    claim: str
    source: str
    verdict: Verdict
    examples: int = 0
    telling: int = 0
    discarded: int = 0
    margin: float | None = None
    cause: str | None = None
    reason: str | None = None
    counterexample: Mapping[str, Any] | None = None
    seconds: float = 0.0

    def describe(self) -> dict[str, Any]:
        """As JSON; what does not apply is left out."""
        optional = {"cause": self.cause, "reason": self.reason, "counterexample": self.counterexample}
        return {
            "id": self.id,
            "verdict": str(self.verdict),
            "claim": self.claim,
            "source": self.source,
            "examples": self.examples,
            "telling": self.telling,
            "discarded": self.discarded,
            "margin": self.margin,
            "seconds": round(self.seconds, 3),
            **{key: value for key, value in optional.items() if value is not None},
        }


def counts(records: Iterable[Record]) -> dict[str, int]:
    """The denominator: properties applicable, run, and each verdict."""
    tally = Counter(record.verdict for record in records)
    applicable = sum(tally.values())
    return {
        "applicable": applicable,
        "run": applicable - tally[Verdict.NOT_OFFERED],
        "holds": tally[Verdict.HOLDS],
        "violated": tally[Verdict.VIOLATED],
        "inconclusive": tally[Verdict.INCONCLUSIVE],
        "not_offered": tally[Verdict.NOT_OFFERED],
        "suite_error": tally[Verdict.SUITE_ERROR],
    }


def exit_code(tally: Mapping[str, int]) -> int:
    """0: all hold. 1: some are violated. 2: it could not be judged (nothing ran, or not conclusively)."""
    if tally["violated"]:
        return 1
    if not tally["run"] or tally["inconclusive"] or tally["suite_error"]:
        return 2
    return 0

"""What the claims ledger reads of a study (kind "readings"): its figures, and its readings of statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cemverify.results.envelope import Table, result
from cemverify.results.provenance import Maker
from cemverify.results.statistics import paired_ratio


def measured_ratio(
    model: str, baseline: str, values: Sequence[float], references: Sequence[float], on: str = ""
) -> dict[str, Any]:
    """One model's figure over another's, paired by replicate, with the intervals of 95 and of 90 %.

    Args:
        on: what both were trained on, if the study has several.
    """
    wide, narrow = (paired_ratio(values, references, confidence=c) for c in (0.95, 0.9))
    ends = [None if r.low is None or r.high is None else [r.low, r.high] for r in (wide, narrow)]
    return {
        "model": model,
        "baseline": baseline,
        "on": on,
        "mean": wide.mean,
        "interval95": ends[0],
        "interval90": ends[1],
    }


def counted(count: int, noun: str) -> str:
    """A number with its noun: "1 seed", "3 seeds"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def readings(maker: Maker, title: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    """The result file: the ratios of the payload as a table, and the payload."""
    rows = [
        (
            *(r["on"], r["model"], r["baseline"], f"{r['mean']:.4f}"),
            " to ".join(f"{end:.4f}" for end in r["interval95"] or ()),
        )
        for r in payload["ratios"]
    ]
    table = Table(title, ("on", "model", "baseline", "ratio", "95 % interval"), rows)
    return result("readings", maker, [table], payload)


# --- statements of the paper --------------------------------------------------------------------------


Reading = Literal["agrees", "disagrees", "undecided", "not asked"]


@dataclass(frozen=True)
class Statement:
    """A statement of the paper and how it fares here."""

    text: str  # what the paper says
    found: str  # what the study found
    reading: Reading  # whether that agrees


def shown_statements(read: Sequence[Statement]) -> Table:
    """The statements as a table."""
    columns = ("the paper", "here", "reading")
    return Table("The paper's statements", columns, [[s.text, s.found, s.reading] for s in read])

"""What a study measured, as the claims ledger reads it: figures beside the page, and no verdict (kind "readings")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cemverify.results.envelope import Table, result
from cemverify.results.provenance import Maker
from cemverify.results.statistics import paired_ratio


def measured_ratio(
    model: str, baseline: str, values: Sequence[float], references: Sequence[float], on: str = ""
) -> dict[str, Any]:
    """One model's figure over another's, paired by replicate, with the intervals of 95 and of 90 %.

    Args:
        on: what both were trained on, where a study has several.
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
    """A number of things in words: "1 seed", "3 seeds"."""
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

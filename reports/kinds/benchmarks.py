"""Ratios of time: `python -m benchmarks`."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from synthetic.figures.sheets import Column, Group, Quantity, Sheet


def headline(content: Mapping[str, Any]) -> str:
    """The names and the number of the benchmarks in the result."""
    return f"{len(content['benchmarks'])} benchmarks: {', '.join(content['benchmarks'])}"


def sheets(content: Mapping[str, Any], _fold: bool) -> list[Sheet]:
    """Attention with every digit; the other benchmarks have their tables in the file."""
    attention = content["benchmarks"].get("attention")
    if not attention:
        return []
    rows = [
        [
            *(row["attention"], row["tokens"], row["path"]),
            Quantity(1e3 * median(row["seconds"]) if row["seconds"] else None),
            Quantity(1e3 * median(row["baseline_seconds"]) if row["baseline_seconds"] else None),
        ]
        for row in attention["rows"]
    ]
    columns = (*map(Column, ("attention", "tokens", "path")), Column("time", "ms"), Column("time of MHA", "ms"))
    return [Sheet("Attention, median times", columns, [Group("", rows)])]

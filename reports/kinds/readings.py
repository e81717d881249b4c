"""The figures of a published study, beside its page in `docs/results`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.sheets import Column, Group, Quantity, Sheet


def headline(content: Mapping[str, Any]) -> str:
    """How many of the ratios are on one side of 1."""
    ratios = content["ratios"]
    better = sum(r["interval95"] is not None and r["interval95"][1] < 1 for r in ratios)
    worse = sum(r["interval95"] is not None and r["interval95"][0] > 1 for r in ratios)
    return (
        f"{content['study']}: in {len(ratios)} comparisons the model is better {better} times and worse {worse} times"
    )


def sheets(content: Mapping[str, Any], _fold: bool) -> list[Sheet]:
    """The ratios with their intervals."""
    rows = [
        [
            r.get("on") or "",
            r["model"],
            r["baseline"],
            Quantity(r["mean"], interval=r["interval95"] and (r["interval95"][0], r["interval95"][1])),
        ]
        for r in content["ratios"]
    ]
    columns = (Column("on"), Column("model"), Column("baseline"), Column("ratio, 95 %", digits=4))
    title = f"{content['study']}: ratios of {content.get('figure', 'the error')}, below 1 the model is better"
    return [Sheet(title, columns, [Group("", rows)])]

"""The figures of a published study, beside its page in `docs/results`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cemverify.results.numbers import NOTHING, shown_verdict
from synthetic.figures.sheets import Column, Group, Quantity, Sheet
from synthetic.studies.recursion import tables as recursion


def headline(content: Mapping[str, Any]) -> str:
    """How many of the comparisons are decided."""
    told = verdicts(content)
    few = next((f"; {verdict}" for verdict in told if verdict.startswith("too few")), "")
    counts = f"the model is better {told.count('better')} times and worse {told.count('worse')} times"
    return f"{content['study']}: in {len(told)} comparisons {counts}{few}"


def summaries(content: Mapping[str, Any]) -> list[Sheet]:
    """The narrow tables of a recursion study, or its ratios if an older file has nothing else."""
    if not content["study"].startswith("recursion"):
        return []
    return recursion.summaries(content) if "rows" in content else [replace(sheets(content, True)[0], name="summary")]


def verdicts(content: Mapping[str, Any]) -> list[str]:
    """The verdict on each ratio; a dash if an older file has none."""
    replicates = content["replicates"]  # "6 functions each", "1 seed"
    n, noun = int(replicates.split()[0]), "functions" if "function" in replicates else "seeds"
    return [shown_verdict(r.get("verdict") or NOTHING, n, noun) for r in content["ratios"]]


def sheets(content: Mapping[str, Any], _fold: bool) -> list[Sheet]:
    """The ratios with their intervals and verdicts."""
    rows = [
        [
            r.get("on") or "",
            r["model"],
            r["baseline"],
            Quantity(r["mean"], interval=r["interval95"] and (r["interval95"][0], r["interval95"][1])),
            verdict,
        ]
        for r, verdict in zip(content["ratios"], verdicts(content), strict=True)
    ]
    columns = (*map(Column, ("on", "model", "baseline")), Column("ratio, 95 %", digits=4), Column("verdict"))
    title = f"{content['study']}: ratios of {content.get('figure', 'the error')}, below 1 the model is better"
    return [Sheet(title, columns, [Group("", rows)])]

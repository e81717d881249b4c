"""The figures of a published study, beside its page in `docs/results`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cemverify.results.numbers import shown_verdict
from cemverify.results.statistics import MARGIN, Ratio, correct, from_intervals
from synthetic.figures.sheets import Column, Group, Quantity, Sheet


def headline(content: Mapping[str, Any]) -> str:
    """How many of the comparisons are decided."""
    told = verdicts(content)
    few = next((f"; {verdict}" for verdict in told if verdict.startswith("too few")), "")
    counts = f"the model is better {told.count('better')} times and worse {told.count('worse')} times"
    return f"{content['study']}: in {len(told)} comparisons {counts}{few}"


def verdicts(content: Mapping[str, Any]) -> list[str]:
    """The verdict on each ratio.

    Files of older versions may lack it. Then it follows from the intervals, corrected by Holm's method for all ratios
    of the file.
    """
    ratios, margin = content["ratios"], content.get("margin", MARGIN)
    pairs = [
        from_intervals(Ratio(r["mean"], *r["interval95"]), Ratio(r["mean"], *r["interval90"]), margin)
        if r["interval95"]
        else None
        for r in ratios
    ]
    noun = "functions" if "functions" in content.get("replicates", "") else "seeds"
    told = []
    for r, pair in zip(ratios, correct(pairs), strict=True):
        n = 1 if pair is None else pair.n
        told.append(shown_verdict(r.get("verdict") or (pair.conclusion if pair else ""), n, noun))
    return told


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

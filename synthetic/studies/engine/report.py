"""The page of a study: one conclusion, pictures, and tables that are the same in every study."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from cemverify.results.envelope import Table
from synthetic.studies.engine import tables
from synthetic.studies.engine.comparisons import Compared
from synthetic.studies.engine.pages import GENERATED, Page, Picture, paragraph
from synthetic.studies.engine.study import Findings, StudyOutcome


def findings(
    study: StudyOutcome,
    title: str,
    answer: str,
    why: str = "",
    *,
    compared: Sequence[Compared] = (),
    base: Hashable = None,
    pictures: Sequence[Picture] = (),
    shown: Sequence[Table] = (),
    figures: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
) -> Findings:
    """The findings of a study, with its page.

    Args:
        title: of the page. answer: to the study's question, one sentence. why: the evidence for it.
        compared: the comparisons. base: the key of the row that the table of rows compares with.
        pictures, shown: pictures and tables of this study alone.
        figures, more: as in `Findings`.
    """
    blocks: list[str | Picture | Table] = [paragraph([f"**{answer}**", why]), *pictures, tables.measured(study)]
    blocks += shown
    if compared:
        blocks.append(tables.comparisons(study.state, compared))
    if base is not None and compared:
        blocks.append(tables.models(study, compared, base))
    if any(tuned.curves for tuned in study.state.rows):
        blocks.append(tables.tuning(study.state, study.unit))
    blocks.append(GENERATED)
    return Findings(Page(title, blocks), f"{answer} {why}".rstrip(), compared, figures=figures or {}, more=more or {})

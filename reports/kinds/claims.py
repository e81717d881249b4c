"""The paper's statements: `cemverify claims --json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synthetic.figures.sheets import Column, Group, Sheet

# Names of the kinds of statement, for tables and pictures.
NAMES = {
    "paper": "the paper's statements",
    "slip": "slips of the pen",
    "ours": "consequences",
    "training": "what it reports of training",
}


def headline(content: Mapping[str, Any]) -> str:
    """The verdicts on the paper's own statements, in a sentence."""
    verdicts = content["counts"].get("paper", {})
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    return f"of {sum(verdicts.values())} statements of the paper: {counts}" if verdicts else "no statement was judged"


def sheets(content: Mapping[str, Any], fold: bool) -> list[Sheet]:
    """The number of claims with each verdict; unless folded, every claim."""
    verdicts = list(dict.fromkeys(v for counts in content["counts"].values() for v in counts))
    columns = (Column("statements"), *(Column(verdict) for verdict in verdicts))
    rows = [
        [NAMES.get(kind, kind), *(counts.get(verdict, 0) for verdict in verdicts)]
        for kind, counts in content["counts"].items()
    ]
    tables = [Sheet("Statements and their verdicts", columns, [Group("", rows)])]
    if not fold:
        every = ("id", "kind", "section", "verdict", "statement", "condition")
        listed = [[claim["id"], *(claim[key] for key in every[1:])] for claim in content["claims"]]
        tables.append(
            Sheet("What is stated, and what is true", [Column(name) for name in every], [Group("", listed)])
        )
    return tables

"""What a pass is worth: `cemverify power --json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synthetic.figures.sheets import Column, Group, Quantity, Sheet


def headline(content: Mapping[str, Any]) -> str:
    """How many faults are caught, and how often a correct implementation is called wrong."""
    sentence = f"{content['killed']} of {content['total']} deliberate faults are caught with every seed"
    if content["false_alarm_runs"]:
        sentence += f"; {content['false_alarms']} false alarms in {content['false_alarm_runs']:,} runs"
    return sentence


def sheets(content: Mapping[str, Any], fold: bool) -> list[Sheet]:
    """The families with their weakest mutant; unless folded, every mutant."""
    mutants: dict[str, list[Mapping[str, Any]]] = {}
    for mutant in content["mutants"]:
        mutants.setdefault(mutant["family"], []).append(mutant)
    rows = []
    for entry in content["families"]:
        largest = [max(m["budgets"], key=lambda b: b["examples"]) for m in mutants.get(entry["family"], [])]
        weakest = min(largest, key=lambda b: b["probability"], default=None)
        rows.append([entry["family"], entry["killed"], entry["total"], _probability(weakest)])
    columns = (*map(Column, ("family", "killed", "mutants")), Column("least detection, 95 % interval", "%"))
    tables = [Sheet("Faults caught, by family", columns, [Group("", rows)])]
    if not fold:
        every = (
            *map(Column, ("mutant", "fault", "property", "examples")),
            *(Column("detection, 95 % interval", "%"), Column("median examples to the first failure")),
        )
        groups = [
            Group(
                name,
                [
                    [m["id"], m["fault"], m["property"], at["examples"], _probability(at), Quantity(at["median"])]
                    for m in members
                    for at in m["budgets"]
                ],
            )
            for name, members in mutants.items()
        ]
        tables.append(Sheet("Every mutant", every, groups))
    return tables


def _probability(budget: Mapping[str, Any] | None) -> Quantity:
    if budget is None:
        return Quantity(None)
    return Quantity(budget["probability"], interval=(budget["low"], budget["high"]))

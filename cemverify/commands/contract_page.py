"""The contract as one Markdown page: its clauses, the tables of the code, and the properties that test each."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from cemverify.conformance.asking.process_state import SETTINGS
from cemverify.conformance.implementations.clauses import CLAUSES, Clause
from cemverify.conformance.implementations.features import FEATURES, FUNCTIONS, OPTIONS, WEIGHTS
from cemverify.results.envelope import Table
from cemverify.results.tables import grid

_INTRODUCTION = """# The contract

What an implementation of CEM layers is given, what it returns, and what it must not do. It holds for the functions
that you pass to `cemverify.implementation(...)`; [any energy layer](energy-layers.md) has a contract of its own.
Properties test most of what follows; where they do, the section ends with their names.

This page is generated: `cemverify list --contract > docs/contract.md`."""


def as_markdown() -> str:
    """The page on the contract, in Markdown."""
    return "\n\n".join((_INTRODUCTION, *(_section(n, clause) for n, clause in enumerate(CLAUSES, 1))))


def _section(number: int, clause: Clause) -> str:
    text = clause.text.strip()
    for name, table in _tables().items():
        text = text.replace(f"{{{name}}}", grid(table, "markdown"))
    text = text.replace("{settings}", textwrap.fill(", ".join(setting.name for setting in SETTINGS), 110))
    tested = [f"Tested by {_listed(clause.asked_by)}."] if clause.asked_by else []
    untested = [f"{clause.unasked[0].upper()}{clause.unasked[1:]}"] if clause.unasked else []
    return "\n\n".join((f"## {number}. {clause.title}", text, *tested, *untested))


def _listed(patterns: Sequence[str]) -> str:
    return ", ".join(f"`{pattern}`" for pattern in patterns)


def _tables() -> Mapping[str, Table]:
    weights = [(f"`{name}`", weight.shape, weight.when, weight.meaning) for name, weight in WEIGHTS.items()]
    functions = [(f"`{text.partition(': ')[0]}`", text.partition(": ")[2]) for text in FUNCTIONS.values()]
    return {
        "functions": Table("Functions", ("function", "returns"), functions),
        "weights": Table("Weights", ("name", "shape", "present with", "meaning"), weights),
        "options": Table("Options", ("option", "values"), [(f"`{name}`", text) for name, text in OPTIONS.items()]),
        "features": Table("Features", ("feature", "meaning"), [(f"`{k}`", v) for k, v in FEATURES.items()]),
    }

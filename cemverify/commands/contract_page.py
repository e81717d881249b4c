"""The contract as one Markdown page: its clauses, the tables of the code, and the properties that test each."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from cemverify.conformance.asking.process_state import SETTINGS
from cemverify.conformance.implementations.clauses import CLAUSES, Clause
from cemverify.conformance.implementations.features import FEATURES, FUNCTIONS, OPTIONS, WEIGHTS
from cemverify.results.envelope import Table
from cemverify.results.tables import folded, grid

_INTRODUCTION = """# The contract

What an implementation of CEM layers is given, what it returns, and what it must not do, for those who write one. It
holds for the functions that you pass to `cemverify.implementation(...)`; [any energy layer](energy-layers.md) has a
contract of its own. In short:

* You get arrays, named weights and a configuration. You return one array: the state after T steps, or one energy per
  token.
* The answer has the dtype and the device of the arguments, and is as exact as that dtype allows.
* It depends on the values of the arguments alone: not on earlier calls, memory layout, threads or settings.
* A call changes nothing that anybody else can see, and never changes an answer that it gave before.
* Gradients are right, bad input is refused with a message, and every size from 1 up works.
* What you cannot do you declare; everything else is tested.

A section ends with the properties that test it. This page is generated:
`cemverify list --contract > docs/contract.md`."""


def as_markdown() -> str:
    """The page on the contract, in Markdown."""
    return "\n\n".join((_INTRODUCTION, *(_section(n, clause) for n, clause in enumerate(CLAUSES, 1))))


def _section(number: int, clause: Clause) -> str:
    text = clause.text.strip()
    for name, table in _tables().items():
        text = text.replace(f"{{{name}}}", table)
    text = text.replace("{settings}", textwrap.fill(", ".join(setting.name for setting in SETTINGS), 110))
    tested = [f"Tested by {_listed(clause.asked_by)}."] if clause.asked_by else []
    untested = [f"{clause.unasked[0].upper()}{clause.unasked[1:]}"] if clause.unasked else []
    return "\n\n".join((f"## {number}. {clause.title}", text, *tested, *untested))


def _listed(patterns: Sequence[str]) -> str:
    return ", ".join(f"`{pattern}`" for pattern in patterns)


def _tables() -> Mapping[str, str]:
    weights = [(f"`{name}`", weight.shape, weight.when, weight.meaning) for name, weight in WEIGHTS.items()]
    functions = [(f"`{text.partition(': ')[0]}`", text.partition(": ")[2]) for text in FUNCTIONS.values()]
    features = _table(("feature", "meaning"), [(f"`{name}`", text) for name, text in FEATURES.items()])
    return {
        "functions": _table(("function", "returns"), functions),
        "weights": _table(("name", "shape", "present with", "meaning"), weights),
        "options": _table(("option", "values"), [(f"`{name}`", text) for name, text in OPTIONS.items()]),
        "features": folded(f"{len(FEATURES)} features", features),
    }


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return grid(Table("", columns, rows), "markdown")

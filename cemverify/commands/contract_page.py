"""The contract as one Markdown page: `contract.md` beside this file, with the tables from the code."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from importlib import resources

from cemverify.conformance.asking.process_state import SETTINGS
from cemverify.conformance.implementations.features import FEATURES, FUNCTIONS, OPTIONS, WEIGHTS
from cemverify.results.envelope import Table
from cemverify.results.tables import folded, grid


def as_markdown() -> str:
    """The page on the contract, in Markdown."""
    weights = [(f"`{name}`", *weight) for name, weight in WEIGHTS.items()]
    functions = [(f"`{text.partition(': ')[0]}`", text.partition(": ")[2]) for text in FUNCTIONS.values()]
    features = _table(("feature", "meaning"), [(f"`{name}`", text) for name, text in FEATURES.items()])
    tables = {
        "functions": _table(("function", "returns"), functions),
        "weights": _table(("name", "shape", "present with", "meaning"), weights),
        "options": _table(("option", "values"), [(f"`{name}`", text) for name, text in OPTIONS.items()]),
        "features": folded(f"{len(FEATURES)} features", features),
        "settings": textwrap.fill(", ".join(setting.name for setting in SETTINGS), 110),
    }
    page = resources.files("cemverify.commands").joinpath("contract.md").read_text(encoding="utf-8").rstrip("\n")
    for name, table in tables.items():
        page = page.replace(f"{{{name}}}", table)
    return page


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return grid(Table("", columns, rows), "markdown")

"""How many questions each property is asked per 60 examples that a run asks for.

The file only has numbers that differ from the usual ones: lower if a question is costly, higher if few of them
tell. Some faults are found by few rows of a covering array. Two parts of the file, one for mutants and one for blind
rounds, give the rows needed to find each fault with every seed, plus half as many again; at least these are asked. A
property with a list of cases is asked all, whatever the file says. The commands that measure the parts write them:

    python -m docs.making.detection
    python -m suites.blind matrix
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

FILE = Path(__file__).with_name("budgets.json")
_SPARE = 1.5

Part = Literal["mutants", "faults"]
_MEASURED: Sequence[Part] = ("mutants", "faults")
Budgets = Mapping[str, int]  # by a property's id, rows per 60 examples asked for


@dataclass(frozen=True)
class Asked:
    """How many questions a property is asked per 60 examples that a run asks for."""

    small: float = 3  # small cases that Hypothesis draws first; more if zeros and ties tell
    most: float = 20  # most small cases when a readable one is searched, or one around a number of the code
    rows: float = 12  # questions of a covering array
    compiled: float = 8  # such questions if each one is compiled


USUAL = Asked()


def asked(id_: str, *parts: Part) -> Asked:
    """How many questions the property of that id is asked, by the measurements in these parts; by default in all."""
    other = _parts()["asked"].get(id_, "")
    numbers = {name: float(number) for name, number in (word.split() for word in other.split(", ") if word)}
    usual = replace(USUAL, **numbers)
    return replace(usual, rows=max([usual.rows, *(of(part).get(id_, 0) for part in parts or _MEASURED)]))


def of(part: Part) -> Budgets:
    """One part of the file."""
    budgets: Budgets = _parts()[part]
    return budgets


def needed(words: Mapping[str, Iterable[str]]) -> Budgets:
    """How many rows properties need, with a margin, to find again what they found.

    Args:
        words: by a property's id, "row4" if the fourth row was violated; other words are ignored.
    """
    rows = {
        id_: [int(word.removeprefix("row")) for word in of if word.startswith("row")] for id_, of in words.items()
    }
    return {id_: math.ceil(_SPARE * max(numbers)) for id_, numbers in rows.items() if numbers}


def text(part: Part, budgets: Budgets) -> str:
    """The text of the file with one part replaced."""
    return f"{json.dumps({**_read(), part: dict(budgets)}, indent=2)}\n"


@cache
def _parts() -> dict[str, dict[str, Any]]:
    return _read()


def _read() -> dict[str, dict[str, Any]]:
    parts: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return parts

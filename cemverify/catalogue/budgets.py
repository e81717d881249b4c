"""How many questions each property is asked, for each 60 examples that a run asks for.

The file says where the number is another than the usual one: less where a question is dear, more where few of them
tell. Some faults are found by few rows of a covering array: a part for mutants and one for the faults of blind rounds
say how many it takes to find each with every seed, and half as many again; so many are asked at least. Of a property
that has a list of cases all are asked, whatever the file says. The commands that measure the two parts write them:

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
Budgets = Mapping[str, int]  # by the id of a property, rows for each 60 examples that are asked for


@dataclass(frozen=True)
class Asked:
    """How many questions a property is asked, for each 60 examples that a run asks for."""

    small: float = 3  # small cases that Hypothesis draws first; more where zeros and ties tell
    most: float = 20  # small cases at most, where a readable one is looked for, or one around a number of the code
    rows: float = 12  # questions of a covering array
    compiled: float = 8  # of them where each is compiled


USUAL = Asked()


def asked(id_: str, *parts: Part) -> Asked:
    """How many questions the property of that id is asked, by what was measured of these parts; of all by default."""
    other = _parts()["asked"].get(id_, "")
    numbers = {name: float(number) for name, number in (word.split() for word in other.split(", ") if word)}
    usual = replace(USUAL, **numbers)
    return replace(usual, rows=max([usual.rows, *(of(part).get(id_, 0) for part in parts or _MEASURED)]))


def of(part: Part) -> Budgets:
    """One part of the file."""
    budgets: Budgets = _parts()[part]
    return budgets


def needed(words: Mapping[str, Iterable[str]]) -> Budgets:
    """How many rows properties need, with room to spare, to find what they found.

    Args:
        words: of properties by id, "row4" where the fourth row was violated; others count for nothing.
    """
    rows = {
        id_: [int(word.removeprefix("row")) for word in of if word.startswith("row")] for id_, of in words.items()
    }
    return {id_: math.ceil(_SPARE * max(numbers)) for id_, numbers in rows.items() if numbers}


def text(part: Part, budgets: Budgets) -> str:
    """The text of the file with one part of it in the place of the old one."""
    return f"{json.dumps({**_read(), part: dict(budgets)}, indent=2)}\n"


@cache
def _parts() -> dict[str, dict[str, Any]]:
    return _read()


def _read() -> dict[str, dict[str, Any]]:
    parts: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return parts

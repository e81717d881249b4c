"""How many rows of its covering array a property is asked at least, as the faults tell that it has to find.

A property declares how many questions it is asked. Some faults are found by few of them: the file says how many rows
it takes to find each with every seed, and half as many again. Nothing follows for a property that has a list of
cases, which are all asked. The file has a part for mutants and one for the faults of blind rounds; the commands that
measure them write it:

    python -m docs.making.detection
    python -m suites.blind matrix
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

FILE = Path(__file__).with_name("budgets.json")
_SPARE = 1.5

Part = Literal["mutants", "faults"]
Budgets = Mapping[str, int]  # by the id of a property, rows for each 60 examples that are asked for


@cache
def least() -> Budgets:
    """How many rows the properties are asked at least."""
    mutants, faults = of("mutants"), of("faults")
    return {id_: max(mutants.get(id_, 0), faults.get(id_, 0)) for id_ in {**mutants, **faults}}


def of(part: Part) -> Budgets:
    """One part of the file."""
    return _parts()[part]


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
    return f"{json.dumps({**_parts(), part: dict(budgets)}, indent=2)}\n"


def _parts() -> dict[str, Budgets]:
    parts: dict[str, Budgets] = json.loads(FILE.read_text(encoding="utf-8"))
    return parts

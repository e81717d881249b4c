"""What each property is known to detect, and how long it takes: which ones to ask first, and what some are worth.

The file has a line for each property, in the order of the catalogue. A command measures it with the mutants of
`cemverify power`, and tests compare it with the catalogue and the mutants:

    python -m docs.making.detection            # all of it: three hours, resumable
    python -m docs.making.detection --missing  # mutants that the file lacks, and the properties that must kill them
    python -m docs.making.detection --named    # all mutants, and the properties that must kill them

Each mutant was tried with each property of the functions that its fault may reach: with `SEEDS` seeds if the first
kills it, and with 20 if it must. Shares computed from this are lower bounds, as no other pair counts.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("detection.jsonl")
HELD, _ELSEWHERE = "-", "?"
SEEDS = 3  # how many seeds a pair is tried with before it counts
# properties of what an energy layer states: the gradient of its energy, a point where that is 0, or another form, as
# the loop of an online layer is
_STATED = frozenset({"gradient/layer/energy", "descent/layer/stationary", "structure/layer/reference"})
_UNKNOWN = 1.0  # seconds for a property that could not be asked where the file was written
# families of claims about calls and unusual numbers: a wrong formula violates them too, but other families say
# so more clearly
_OF_CIRCUMSTANCES = frozenset({"contexts", "contract", "extremes", "modes", "precision", "rejection", "training"})


@dataclass(frozen=True)
class Detects:
    """What one property detects.

    Attributes:
        id: the property's. seconds: of CPU time that it takes on a right layer; 0 if unknown.
        named: the mutants that it is named for, with the features that each needs besides the property's own.
        kills: each mutant that it called wrong with some seed, and a word for every seed tried: "row4" if the fourth
            row of the covering array was violated; `HELD` if all rows held; only "?" if that was on a
            machine with a device that the machine measuring the others lacks.
    """

    id: str
    seconds: float
    named: Mapping[str, Sequence[str]]
    kills: Mapping[str, str]

    @property
    def surely(self) -> list[str]:
        """The mutants that it called wrong with every seed, at least `SEEDS` of them."""
        words = {mutant: of.split() for mutant, of in self.kills.items()}
        return [mutant for mutant, of in words.items() if of == [_ELSEWHERE] or (HELD not in of and len(of) >= SEEDS)]


@dataclass(frozen=True)
class KilledShare:
    """Of the mutants whose faults an implementation can have, how many some properties kill, at least."""

    killed: int
    of: int

    @property
    def percent(self) -> float:
        """The share in per cent; 0 if an implementation can have none of these faults."""
        return 100 * self.killed / self.of if self.of else 0.0


@cache
def detected() -> Mapping[str, Detects]:
    """What is known about each property, by id."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return {row.id: row for row in (Detects(**json.loads(line)) for line in lines)}


def share(ids: Collection[str], offered: Iterable[str], absent: Collection[str]) -> KilledShare:
    """How many of the mutants that such an implementation could be are killed by some properties.

    Args:
        ids: the properties' ids. offered: ids of those that the implementation can be asked.
        absent: features that it lacks.
    """
    possible = _possible(offered, absent)
    killed = {mutant for id_ in ids if id_ in detected() for mutant in detected()[id_].surely}
    return KilledShare(len(killed & possible), len(possible))


def most_telling_first(offered: Sequence[str], absent: Collection[str]) -> list[str]:
    """Ids of properties, each time the one that tells most per second, given those before it.

    What an energy layer states comes first: few mutants are wrong in the way that its layer may be. A mutant counts
    half for the second property that kills it, a quarter for the third: unforeseen faults are found by those that
    kill much, not only by those that kill what no other does. Claims about circumstances count only for mutants that
    are wrong about these.

    Args:
        offered: those that the implementation can be asked. absent: features that it lacks.

    Returns:
        All of them; those that kill no mutant last, in the order given.
    """
    possible, rows = _possible(offered, absent), detected()
    kills = {id_: _tells(rows[id_]) & possible if id_ in rows else set[str]() for id_ in offered}
    counts, worth = dict.fromkeys(possible, 1.0), {id_: float(len(killed)) for id_, killed in kills.items()}
    ordered: list[str] = []
    while worth:
        # the first of equals
        best = max(worth, key=lambda id_: (id_ in _STATED, worth[id_] / _seconds(id_)))
        ordered.append(best)
        del worth[best]
        for id_ in worth:
            worth[id_] -= sum(counts[mutant] / 2 for mutant in kills[id_] & kills[best])
        for mutant in kills[best]:
            counts[mutant] /= 2
    return ordered


def _tells(row: Detects) -> set[str]:
    """The mutants that a property kills for certain, and whose fault it names."""
    family = _family(row.id)
    return {m for m in row.surely if family not in _OF_CIRCUMSTANCES or _families()[m] == family}


@cache
def _families() -> Mapping[str, str]:
    """The family of the property named for each mutant."""
    return {mutant: _family(row.id) for row in detected().values() for mutant in row.named}


def _family(id_: str) -> str:
    return id_.partition("/")[0]


def _possible(offered: Iterable[str], absent: Collection[str]) -> set[str]:
    """The mutants whose fault such an implementation can have: it is asked the property named for them."""
    return {
        mutant
        for id_ in offered
        if id_ in detected()
        for mutant, needs in detected()[id_].named.items()
        if not set(needs) & set(absent)
    }


def _seconds(id_: str) -> float:
    row = detected().get(id_)
    return (row.seconds if row is not None else 0.0) or _UNKNOWN

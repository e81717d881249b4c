"""What is known about every property, read from `listing.jsonl` quickly, without torch.

Properties are declared in code that needs torch and Hypothesis. The file repeats what they say about themselves, one
line each, in the order of the catalogue. A command writes it from the declarations, and a test compares the two:

    python -m docs.making.listing

`retired.jsonl` has a line for each property that is no longer asked, with the one asked in its place.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("listing.jsonl")
RETIRED = Path(__file__).with_name("retired.jsonl")
TRAINED = "trained layer"  # what `cemverify check --checkpoint` measures on real states; no drawn case can show it


@dataclass(frozen=True)
class Listed:
    """What is known about a property.

    Attributes:
        id, claim, source: as it declares them. formula: the claim as a formula. why: what goes wrong otherwise.
        needs: the features that it needs, sorted.
        asked_up_to: the largest sizes of its questions, by letter; empty if unknown.
        kind: what it tests: "CEM implementation", "energy layer" or "trained layer".
        since: the version of the catalogue that introduced it.
    """

    id: str
    claim: str
    source: str
    formula: str
    why: str
    needs: Sequence[str]
    asked_up_to: Mapping[str, int]
    kind: str
    since: str


@dataclass(frozen=True)
class Retired:
    """A property that was asked in earlier versions of the catalogue.

    Attributes:
        id, claim: as they were; no other property ever gets the id. since: the version that introduced it.
        retired: the version that no longer has it. instead: the property that is asked in its place.
    """

    id: str
    claim: str
    since: str
    retired: str
    instead: str

    def __str__(self) -> str:
        return f"{self.id} was retired in catalogue {self.retired}; {self.instead} replaces it"


@cache
def retired() -> Mapping[str, Retired]:
    """The properties that are no longer asked, by id."""
    rows = (Retired(**json.loads(line)) for line in RETIRED.read_text(encoding="utf-8").splitlines())
    return {row.id: row for row in rows}


def retired_by(patterns: Sequence[str], ids: Iterable[str]) -> list[Retired]:
    """The retired properties that match those patterns that match none of the ids."""
    ids = list(ids)
    old = [pattern for pattern in patterns if not any(_matches(id_, pattern) for id_ in ids)]
    return [row for row in retired().values() if any(_matches(row.id, pattern) for pattern in old)]


@cache
def recorded() -> Sequence[Listed]:
    """Every property, in the order of the catalogue, then what is measured on trained layers."""
    return tuple(Listed(**json.loads(line)) for line in FILE.read_text(encoding="utf-8").splitlines())


@cache
def listed() -> Sequence[Listed]:
    """Every property that `cemverify check` can ask, in the order of the catalogue."""
    return tuple(property_ for property_ in recorded() if property_.kind != TRAINED)


def chosen(patterns: Sequence[str], ids: Iterable[str]) -> list[str]:
    """The ids that match an id, a prefix of an id up to a slash, or a shell pattern; all if no pattern is given.

    For a pattern that only matches retired ones, those asked in their place, with a DeprecationWarning.

    Raises:
        ValueError: a pattern matches nothing, or one string was given instead of a collection.
    """
    if isinstance(patterns, str):
        raise ValueError(f"properties must be a collection of names: write ({patterns!r},)")
    ids = list(ids)
    old = {row.id: row.instead for row in retired_by(patterns, ids)}
    for id_ in old:
        warnings.warn(str(retired()[id_]), DeprecationWarning, stacklevel=3)
    for pattern in patterns:
        if not any(_matches(id_, pattern) for id_ in (*ids, *old)):
            if (new := new_id(pattern, ids)) is not None:
                raise ValueError(f"no property matches {pattern!r}; it is {new} now")
            families = ", ".join(dict.fromkeys(id_.partition("/")[0] for id_ in ids))
            raise ValueError(f"no property matches {pattern!r}; families are: {families}; see `cemverify list`")
    wanted = (*patterns, *old.values())
    return [id_ for id_ in ids if not wanted or any(_matches(id_, pattern) for pattern in wanted)]


def by_claim(properties: Iterable[Listed]) -> list[list[Listed]]:
    """The properties by family and claim: one claim may be tested for several functions, or with several options."""
    claims: dict[tuple[str, str], list[Listed]] = {}
    for property_ in properties:
        claims.setdefault((property_.id.partition("/")[0], property_.claim), []).append(property_)
    return list(claims.values())


def patterns(ids: Iterable[str]) -> list[str]:
    """Patterns for ids, one per name: "contract/*/threads" if it matches only these, otherwise the ids."""
    functions: dict[tuple[str, str], list[str]] = {}
    for family, function, name in (id_.split("/") for id_ in ids):
        functions.setdefault((family, name), []).append(function)
    found = []
    for (family, name), of in functions.items():
        pattern, each = f"{family}/*/{name}", [f"{family}/{function}/{name}" for function in of]
        found += [pattern] if len(of) > 1 and [p.id for p in listed() if _matches(p.id, pattern)] == each else each
    return found


def new_id(old: str, ids: Iterable[str]) -> str | None:
    """The property of the same function and name that is now in another family; None if there is none."""
    there = [id_ for id_ in ids if "/" in old and id_.partition("/")[2] == old.partition("/")[2]]
    return there[0] if len(there) == 1 else None


def _matches(id_: str, pattern: str) -> bool:
    return id_ == pattern or id_.startswith(pattern.rstrip("/") + "/") or fnmatchcase(id_, pattern)


def largest(sizes: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The largest of each size, ordered T, J, B, M, K, D."""
    merged: dict[str, int] = {}
    for some in sizes:
        merged |= {letter: max(size, merged.get(letter, 0)) for letter, size in some.items()}
    return {letter: merged[letter] for letter in "TJBMKD" if letter in merged}

"""What is said of every property, read from `listing.jsonl` in a moment, without torch.

Properties are declared in code that needs torch and Hypothesis. The file repeats what they say of themselves, one
line for each, in the order of the catalogue. A command writes it from the declarations, and a test compares the two:

    python -m docs.making.listing
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("listing.jsonl")
TRAINED = "trained layer"  # what `cemverify check --checkpoint` measures on real states; a drawn case cannot


@dataclass(frozen=True)
class Listed:
    """What is told of a property.

    Attributes:
        id, claim, source: as it declares them. formula: the claim as a formula. why: what goes wrong without it.
        needs: the features that it needs, sorted.
        asked_up_to: the largest sizes of its questions, by letter; empty where they are not known.
        kind: what it is asked of: "CEM implementation", "energy layer" or "trained layer".
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


@cache
def recorded() -> Sequence[Listed]:
    """Every property, in the order of the catalogue, then what is measured of trained layers."""
    return tuple(Listed(**json.loads(line)) for line in FILE.read_text(encoding="utf-8").splitlines())


@cache
def listed() -> Sequence[Listed]:
    """Every property that `cemverify check` can ask, in the order of the catalogue."""
    return tuple(property_ for property_ in recorded() if property_.kind != TRAINED)


def chosen(patterns: Sequence[str], ids: Iterable[str]) -> list[str]:
    """The ids that match an id, a prefix of an id up to a slash, or a shell pattern; all if no pattern is given.

    Raises:
        ValueError: a pattern that matches nothing, or one string where a collection is due.
    """
    if isinstance(patterns, str):
        raise ValueError(f"properties must be a collection of names: write ({patterns!r},)")
    ids = list(ids)
    for pattern in patterns:
        if not any(_matches(id_, pattern) for id_ in ids):
            if (new := new_id(pattern, ids)) is not None:
                raise ValueError(f"no property matches {pattern!r}; it is {new} now")
            families = ", ".join(dict.fromkeys(id_.partition("/")[0] for id_ in ids))
            raise ValueError(f"no property matches {pattern!r}; families are: {families}; see `cemverify list`")
    return [id_ for id_ in ids if not patterns or any(_matches(id_, pattern) for pattern in patterns)]


def by_claim(properties: Iterable[Listed]) -> list[list[Listed]]:
    """The properties by family and claim: one claim may be asked of several functions, or with several options."""
    claims: dict[tuple[str, str], list[Listed]] = {}
    for property_ in properties:
        claims.setdefault((property_.id.partition("/")[0], property_.claim), []).append(property_)
    return list(claims.values())


def patterns(ids: Iterable[str]) -> list[str]:
    """Patterns of ids, one for each name: "contract/*/threads" where these are all that it matches, else the ids."""
    functions: dict[tuple[str, str], list[str]] = {}
    for family, function, name in (id_.split("/") for id_ in ids):
        functions.setdefault((family, name), []).append(function)
    found = []
    for (family, name), of in functions.items():
        pattern, each = f"{family}/*/{name}", [f"{family}/{function}/{name}" for function in of]
        found += [pattern] if len(of) > 1 and [p.id for p in listed() if _matches(p.id, pattern)] == each else each
    return found


def new_id(old: str, ids: Iterable[str]) -> str | None:
    """The property of the same function and name that a family of another name has now; None if there is none."""
    there = [id_ for id_ in ids if "/" in old and id_.partition("/")[2] == old.partition("/")[2]]
    return there[0] if len(there) == 1 else None


def _matches(id_: str, pattern: str) -> bool:
    return id_ == pattern or id_.startswith(pattern.rstrip("/") + "/") or fnmatchcase(id_, pattern)


def largest(sizes: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The largest of each size, in the order T, J, B, M, K, D."""
    merged: dict[str, int] = {}
    for some in sizes:
        merged |= {letter: max(size, merged.get(letter, 0)) for letter, size in some.items()}
    return {letter: merged[letter] for letter in "TJBMKD" if letter in merged}

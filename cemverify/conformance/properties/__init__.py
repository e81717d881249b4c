"""The catalogue: every property, one file per family."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from cemverify.catalogue.index import chosen
from cemverify.conformance.properties import (
    contract,
    decoding,
    descent,
    extremes,
    gradient,
    layers,
    metamorphic,
    modes,
    precision,
    recursion,
    rejection,
    sequences,
    sizes,
    structure,
    training,
    tying,
)
from cemverify.conformance.properties.base import Asked, Door, Property

# The most fundamental first: reports keep this order, so the first violation is the headline.
_FAMILIES = (
    gradient,
    training,
    descent,
    tying,
    recursion,
    sequences,
    structure,
    decoding,
    contract,
    metamorphic,
    extremes,
    sizes,
    modes,
    precision,
    rejection,
    layers,
)


@lru_cache(maxsize=1)
def catalogue() -> tuple[Property, ...]:
    """Every property, the most fundamental first. Every report keeps this order."""
    return tuple(property_ for family in _FAMILIES for property_ in family.properties())


@lru_cache(maxsize=1)
def _ids() -> dict[str, Property]:
    return {property_.id: property_ for property_ in catalogue()}


def by_id(id_: str) -> Property:
    """The property of that id.

    Raises:
        KeyError: there is none.
    """
    return _ids()[id_]


def select(patterns: Sequence[str]) -> tuple[Property, ...]:
    """The properties that match an id, a prefix of an id up to a slash, or a shell pattern; all if none is given.

    Raises:
        ValueError: a pattern that matches nothing.
    """
    wanted = set(chosen(patterns, (p.id for p in catalogue())))
    return tuple(p for p in catalogue() if p.id in wanted)


__all__ = ["Asked", "Door", "Property", "by_id", "catalogue", "select"]

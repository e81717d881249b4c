"""The catalogue: every property, in a file for its family or for the code that its checks share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from cemverify.catalogue.budgets import asked
from cemverify.catalogue.index import chosen
from cemverify.conformance.properties import (
    contexts,
    decoding,
    descent,
    extremes,
    gradient,
    layers,
    modes,
    precision,
    recursion,
    rejection,
    sizes,
    structure,
    training,
    tying,
)
from cemverify.conformance.properties.base import Offer, Property, of_module
from cemverify.conformance.properties.contract import arrays, calls
from cemverify.conformance.properties.own import own_properties, properties_of

# The most fundamental first: reports keep this order, so the first violation is the headline.
_FAMILIES = (
    gradient,
    training,
    descent,
    tying,
    recursion,
    structure,
    decoding,
    arrays,
    calls,
    extremes,
    sizes,
    modes,
    contexts,
    precision,
    rejection,
    *layers.FAMILIES,
)


@lru_cache(maxsize=1)
def catalogue() -> tuple[Property, ...]:
    """Every property, the most fundamental first. Every report keeps this order."""
    every = (property_ for family in _FAMILIES for property_ in of_module(family))
    return tuple(replace(p, asked=asked(p.id)) for p in every)


def declared_in(id_: str) -> str:
    """The module that declares this property of the catalogue."""
    return next(family.__name__ for family in _FAMILIES if any(p.id == id_ for p in of_module(family)))


@lru_cache(maxsize=1)
def _ids() -> dict[str, Property]:
    return {property_.id: property_ for property_ in catalogue()}


def by_id(id_: str, stated_in: str | None = None) -> Property:
    """The property of that id.

    Args:
        stated_in: the module that states it; None for the catalogue.

    Raises:
        KeyError: there is none. LoadError: the module cannot be imported, or states no property.
    """
    return (_ids() if stated_in is None else properties_of(stated_in))[id_]


def select(patterns: Sequence[str], own: Sequence[Property] = ()) -> tuple[Property, ...]:
    """The properties that match an id, a prefix of an id up to a slash, or a shell pattern; all if none is given.

    Args:
        own: properties of your own, which follow those of the catalogue.

    Raises:
        ValueError: a pattern matches nothing.
    """
    every = (*catalogue(), *own)
    wanted = set(chosen(patterns, (p.id for p in every)))
    return tuple(p for p in every if p.id in wanted)


__all__ = ["Offer", "Property", "by_id", "catalogue", "declared_in", "own_properties", "select"]

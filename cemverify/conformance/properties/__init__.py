"""The catalogue: every property, one file per family."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from cemverify.conformance.properties import (
    descent,
    gradient,
    layer,
    precision,
    recursion,
    rejection,
    structure,
    tying,
)
from cemverify.conformance.properties.base import Asked, Door, Property

_FAMILIES = (gradient, descent, tying, recursion, structure, precision, rejection, layer)


@lru_cache(maxsize=1)
def catalogue() -> tuple[Property, ...]:
    """Every property, in the order of the report."""
    return tuple(property_ for family in _FAMILIES for property_ in family.properties())


def select(patterns: Sequence[str]) -> tuple[Property, ...]:
    """Properties whose id starts with one of the patterns, or is matched by it as a shell pattern; all, if none.

    Raises:
        ValueError: a pattern that matches nothing.
    """
    from fnmatch import fnmatchcase

    if not patterns:
        return catalogue()
    for pattern in patterns:
        if not any(p.id.startswith(pattern) or fnmatchcase(p.id, pattern) for p in catalogue()):
            families = ", ".join(dict.fromkeys(p.family for p in catalogue()))
            raise ValueError(f"no property matches {pattern!r}; families are: {families}; see `cemverify list`")
    return tuple(p for p in catalogue() if any(p.id.startswith(q) or fnmatchcase(p.id, q) for q in patterns))


__all__ = ["Asked", "Door", "Property", "catalogue", "select"]

"""Properties of energy layers: what an energy layer's declaration implies, one file per kind of claim."""

from __future__ import annotations

from collections.abc import Iterator

from cemverify.conformance.properties.base import Property, of_module
from cemverify.conformance.properties.layers import (
    contexts,
    contract,
    descent,
    differences,
    extremes,
    gradient,
    modes,
    parameters,
    reference,
    structure,
    training,
)

_PARTS = (
    *(gradient, extremes, descent, structure, reference, contract, training),
    *(differences, parameters, modes, contexts),
)


def properties() -> Iterator[Property]:
    """The properties of energy layers, the most fundamental kind first."""
    for part in _PARTS:
        yield from of_module(part)

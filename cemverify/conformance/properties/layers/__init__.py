"""Properties of energy layers: what an energy layer's declaration implies, one file per kind of claim."""

from __future__ import annotations

from collections.abc import Iterator

from cemverify.conformance.properties.base import Property, stated_in
from cemverify.conformance.properties.layers import (
    contexts,
    contract,
    descent,
    differences,
    gradient,
    modes,
    parameters,
    structure,
    training,
)


def properties() -> Iterator[Property]:
    """The properties of energy layers, the most fundamental kind first."""
    for part in (gradient, descent, structure, contract, training, differences, parameters, modes, contexts):
        yield from stated_in(part)
        yield from getattr(part, "properties", tuple)()

"""Properties of energy layers: what a layer's declaration implies, one file per kind of claim."""

from __future__ import annotations

from cemverify.conformance.properties.layers import (
    contexts,
    contract,
    descent,
    differences,
    extremes,
    gradient,
    modes,
    parameters,
    pieces,
    reference,
    structure,
    training,
)

# the most fundamental first
FAMILIES = (
    *(gradient, extremes, descent, structure, reference, pieces, contract, training),
    *(differences, parameters, modes, contexts),
)

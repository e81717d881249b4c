"""Mutants: implementations with exactly one fault, each with the property that must kill it, and for which cause.

A pass is worth as much as the faults that it would have caught. There is one file per family; most mutants replace
one method of `Plain`, and those that misbehave rather than miscalculate wrap a sound implementation.
"""

from __future__ import annotations

from cemverify.power.mutants import (
    attention,
    behaviour,
    block,
    conditional,
    contexts,
    contract,
    decoding,
    diagonals,
    energies,
    extremes,
    layer_contract,
    layer_papers,
    layer_regions,
    layers,
    memory,
    mlp,
    modes,
    norms,
    positions,
    precision,
    preconditioners,
    recursion,
    regions,
    rejection,
    settings,
    sizes,
    subtle,
    tiles,
    training,
)
from cemverify.power.mutants.base import Mutant

_FAMILIES = (
    attention, diagonals, positions, preconditioners, norms, mlp, recursion, block, decoding, tiles, energies,
    behaviour, contract, settings, conditional, contexts, precision, rejection, subtle, extremes,
    memory, modes, training, layers, layer_contract, layer_papers, layer_regions, regions, sizes,
)  # fmt: skip


def mutants() -> tuple[Mutant, ...]:
    """Every mutant, for both kinds of implementations."""
    return tuple(mutant for family in _FAMILIES for mutant in family.ZOO)


__all__ = ["Mutant", "mutants"]

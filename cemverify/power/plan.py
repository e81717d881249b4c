"""What `cemverify power` measures: a plan, and its cells.

Every mutant is tested by its named property, at several budgets and with many seeds; every correct implementation is
tested by every property that applies to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cemverify.conformance.properties import by_id
from cemverify.console.errors import one_of
from cemverify.power.cells import DTYPES, DetectionCell, FalseAlarmCell, Measurement, SmallestFaultCell
from cemverify.power.code import Code
from cemverify.power.mutants import Mutant, mutants

# Examples for a correct implementation, per seed: many seeds with few examples detect more than few seeds with many.
BANK_EXAMPLES = 6
SWEPT_SEEDS = 2
_SEEDS = 5  # in a cell
_PROPERTIES = 4  # in a cell
PARTS = 5  # the properties of a costly implementation are divided into these parts; each seed tests one, in turn
_PLACES = {"structure": ("row", "position")}  # where a family can detect a fault; others in a feature and a position
_UNSWEPT = ("rejection",)  # families that do not look at answers


@dataclass(frozen=True)
class PowerPlan:
    """What to measure."""

    seeds: int = 20  # their number, from 0 on
    budgets: tuple[int, ...] = (15, 60)  # examples per property; the largest decides what counts as killed
    implementation: str | None = None  # which gets the faults; None for the mutants as they are
    bank: tuple[str, ...] = ()  # correct implementations, by name, tested with `BANK_EXAMPLES` per seed
    costly: frozenset[str] = frozenset()  # of the bank: each seed tests a fifth of their properties, in turn
    families: tuple[str, ...] = ()  # only mutants of these; empty for all
    sweep: bool = True  # whether to look for the smallest fault

    def __post_init__(self) -> None:
        families = dict.fromkeys(m.family for m in mutants())
        for family in self.families:
            one_of("family of mutants", family, families)

    @property
    def budget(self) -> int:
        """The number of examples at which a mutant must die to count as killed: the largest one."""
        return max(self.budgets)

    def mutants(self) -> list[Mutant]:
        """The mutants of the chosen families, whether or not their fault can be measured."""
        return [m for m in mutants() if not self.families or m.family in self.families]

    def cells(self, introduced: Mapping[str | None, Introduced]) -> Iterator[Measurement]:
        """All measurements.

        Args:
            introduced: what can be tested in the implementation and in each one of the bank.
        """
        applicable = [m for m in self.mutants() if m.id not in introduced[self.implementation].inapplicable]
        code = Code.here(self.implementation)
        for mutant in applicable:
            for examples in self.budgets:
                for seeds in _parts(range(self.seeds), _SEEDS):
                    yield DetectionCell(mutant.id, mutant.property, examples, seeds, self.implementation, code)
        for name in self.bank:
            yield from self._false_alarms(name, introduced[name].properties)
        if self.sweep:
            yield from self._sweep(introduced[self.implementation].properties, code)

    def _false_alarms(self, name: str, properties: Sequence[str]) -> Iterator[FalseAlarmCell]:
        costly, code = name in self.costly, Code.here(name)
        if costly:
            shares = [(properties[k::PARTS], tuple(range(k, self.seeds, PARTS))) for k in range(PARTS)]
        else:
            shares = [(properties, seeds) for seeds in _parts(range(self.seeds), _SEEDS)]
        for some, seeds in shares:
            for few in _parts(some, _PROPERTIES) if seeds else ():
                yield FalseAlarmCell(name, few, BANK_EXAMPLES, seeds, costly, code)

    def _sweep(self, properties: Sequence[str], code: Code) -> Iterator[SmallestFaultCell]:
        seeds = tuple(range(min(self.seeds, SWEPT_SEEDS)))
        for id_ in properties:
            property_ = by_id(id_)
            if property_.kind != "CEM implementation" or property_.family in _UNSWEPT:
                continue
            places = _PLACES.get(property_.family, ("feature", "position"))
            for name, dtype in DTYPES.items():
                if property_.dtype in (None, dtype):
                    for place in places if name == "float64" else places[:1]:
                        yield SmallestFaultCell(id_, name, place, self.budget, seeds, self.implementation, code)


@dataclass(frozen=True)
class Introduced:
    """What can be tested in an implementation."""

    inapplicable: Mapping[str, str]  # mutants whose fault cannot be measured in it, and why
    properties: Sequence[str]  # the ids that apply


_Item = TypeVar("_Item")


def _parts(items: Sequence[_Item], size: int) -> Iterator[tuple[_Item, ...]]:
    """Splits items into parts of this size."""
    for first in range(0, len(items), size):
        yield tuple(items[first : first + size])

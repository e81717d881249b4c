"""The events of a run. The engine only emits them; listeners decide how they look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cemverify.catalogue.detection import KilledShare
from cemverify.conformance.implementations.origin import Origin, Place
from cemverify.conformance.judging.verdicts import Record
from cemverify.conformance.source.reach.summary import Reach


@dataclass(frozen=True)
class RunStarted:
    """Sent before the first property is tested.

    Attributes:
        applicable: number of properties for this kind of implementation. offered: how many of those it offers.
    """

    implementation: str
    applicable: int
    offered: int


@dataclass(frozen=True)
class PropertyStarted:
    """Sent when a property is put to the implementation; several may be asked at once."""

    id: str


@dataclass(frozen=True)
class PropertyFinished:
    """Sent after each property, in the order in which they finish."""

    record: Record


@dataclass(frozen=True)
class SuggestedEdit:
    """A change of the implementation's source that makes properties hold.

    Attributes:
        place: the first line that changes. before, after: the text of the lines, as it is and as it should be.
    """

    place: Place
    before: str
    after: str


@dataclass(frozen=True)
class RunFinished:
    """Sent at the end, with the record of every property that was judged, in catalogue order.

    Attributes:
        origin: where the implementation is written. reach: what was reached of its code, if that was read.
        edit: one with which every property holds, if one was looked for and found.
        unasked: ids of properties that it offers and that were not asked, or not to the end: the run ended before.
        worth: how many mutants those kill that were asked, where some were not.
    """

    implementation: str
    records: Sequence[Record]
    seconds: float
    origin: Origin = field(default_factory=Origin)
    reach: Reach | None = None
    edit: SuggestedEdit | None = None
    unasked: Sequence[str] = ()
    worth: KilledShare | None = None


Event = RunStarted | PropertyStarted | PropertyFinished | RunFinished

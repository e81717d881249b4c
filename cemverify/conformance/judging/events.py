"""The events of a run. The engine only emits them; listeners decide how they look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cemverify.catalogue.detection import KilledShare
from cemverify.conformance.implementations.origin import Origin, Place
from cemverify.conformance.judging.verdicts import Record
from cemverify.conformance.source.reach.summary import Reach


@dataclass(frozen=True)
class RunStarted:
    """Sent before the first property is tested."""

    implementation: str
    applicable: int  # number of properties for this kind of implementation
    offered: int  # how many of those it offers


@dataclass(frozen=True)
class PropertyStarted:
    """Sent when the test of a property begins; several may be tested at once."""

    id: str


@dataclass(frozen=True)
class PropertyFinished:
    """Sent after each property, in the order in which they finish."""

    record: Record


@dataclass(frozen=True)
class SuggestedEdit:
    """A change of the implementation's source that makes properties hold."""

    place: Place  # the first line that changes
    # before, after: the text of the lines, as it is and as it should be
    before: str
    after: str


@dataclass(frozen=True)
class RunFinished:
    """Sent at the end, with the record of every property that was judged, in catalogue order."""

    implementation: str
    records: Sequence[Record]
    seconds: float
    origin: Origin = field(default_factory=Origin)  # where the implementation is written
    reach: Reach | None = None  # what was reached of its code, if that was read
    edit: SuggestedEdit | None = None  # one with which every property holds, if one was looked for and found
    # ids of properties that it offers but that were not tested, or not to the end: the run ended first
    unasked: Sequence[str] = ()
    worth: KilledShare | None = None  # how many mutants the tested properties kill, if some were not tested
    # the options of `cemverify check` that decide its result, as words; None if that command cannot name the
    # implementation, as it cannot name an object
    options: Sequence[str] | None = ()
    command: str = ""  # the command that repeats everything if `options` is None; empty if there is none
    absences: Mapping[str, Sequence[str]] = field(default_factory=dict)  # see the module of that name
    interrupted: bool = False  # whether a signal ended it, so that the rest was not tested


Event = RunStarted | PropertyStarted | PropertyFinished | RunFinished

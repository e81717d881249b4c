"""A run: what is to be tested of an implementation, and the results."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace

from cemverify.conformance.implementations.contract import Kind, Subject, kind_of
from cemverify.conformance.implementations.origin import Origin, origin_of
from cemverify.conformance.judging.effort import Effort, Explaining
from cemverify.conformance.judging.ending import TO_THE_END, Ending, worth
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.events import Event, PropertyFinished, PropertyStarted, RunFinished, RunStarted
from cemverify.conformance.judging.offered import applicable, not_offered
from cemverify.conformance.judging.verdicts import Record
from cemverify.conformance.properties import Property
from cemverify.conformance.source.reach.summary import Reach
from cemverify.processes.devices import check_device


class Run:
    """What is to be tested of an implementation, and the results.

    Attributes:
        properties: all for this kind of implementation. queue: those that are not begun.
        records: of those that are finished, by id. explaining: seconds left for violations.
    """

    def __init__(self, name: str, effort: Effort, ending: Ending) -> None:
        self.name, self.effort, self.ending = name, effort, ending
        self.started, self.until, self.latest = time.monotonic(), math.inf, math.inf
        self.properties: list[Property] = []
        self.queue: deque[Property] = deque()
        self.records: dict[str, Record] = {}
        self.absent: Collection[str] = ()
        self.over = False  # whether a record has ended it
        self.explaining = Explaining(effort.explaining)

    def take(self, kind: Kind, absent: Mapping[str, str], properties: Sequence[Property]) -> None:
        """Puts the properties that an implementation of this kind offers into the queue.

        Args:
            absent: the features that it lacks, with reasons.

        Raises:
            ValueError: none of them is for this kind.
        """
        self.properties, self.absent = applicable(kind, properties), absent.keys()
        self.records = {
            p.id: r for p in self.properties if (r := not_offered(p, absent, self.effort.dtype)) is not None
        }
        self.queue.extend(self.ending.ordered([p for p in self.properties if p.id not in self.records], self.absent))

    def begin(self) -> Iterator[Event]:
        """Announces the run, and sets the time after which nothing more is begun."""
        yield RunStarted(self.name, len(self.properties), len(self.queue))
        yield from map(PropertyFinished, list(self.records.values()))
        now = time.monotonic()
        self.until, self.latest = now + self.ending.after, now + self.ending.latest

    def more(self) -> bool:
        """Whether anything is left to begin; empties the queue when the time is over."""
        if time.monotonic() > self.until:
            self.queue.clear()
        return bool(self.queue) and not self.over

    def note(self, record: Record) -> Event:
        """A property is finished."""
        self.records[record.id] = record
        self.over = self.over or self.ending.at(record)
        return PropertyFinished(record)

    def finished(self, origin: Origin, reach: Reach | None = None) -> RunFinished:
        """All results, in the order of the catalogue."""
        in_order = [self.records[p.id] for p in self.properties if p.id in self.records]
        unasked = [p.id for p in self.properties if p.id not in self.records]
        told = worth(in_order, unasked, self.absent)
        return RunFinished(self.name, in_order, time.monotonic() - self.started, origin, reach, None, unasked, told)


def run(
    subject: Subject, name: str, properties: Sequence[Property], effort: Effort, ending: Ending = TO_THE_END
) -> Generator[Event, None, None]:
    """Runs in this process. A call that hangs or crashes ends the run; `isolation.run` survives both.

    Args:
        ending: when the run ends before everything is tested.

    Raises:
        ValueError: none of the properties is for its kind, or the device is not available.
    """
    check_device(effort.device)
    run = Run(name, effort, ending)
    run.take(kind_of(subject), subject.not_offered, properties)
    yield from run.begin()
    while run.more():
        property_ = run.queue.popleft()
        yield PropertyStarted(property_.id)
        yield run.note(judge_property(subject, property_, effort, explaining=run.explaining))
    yield replace(run.finished(origin_of(subject)), options=None)  # no command can name the object

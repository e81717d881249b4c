"""Runs an implementation in processes of its own, so that no hang, crash or lie of it changes what is reported.

Each worker is two processes. One asks, compares and judges (see `judge`); neither it nor this process runs code of
the implementation. The other, its child, holds the implementation and answers (see `answering`). A worker takes one
property at a time. One that hangs or dies is replaced, and its current property gets a typed verdict. It is also
replaced when the implementation's process can no longer be trusted, because it ran out of memory or finds
torch's own functions replaced.

Every wait has a limit, which does not count time that a process waits for a core. A call may take `Effort.timeout`
seconds and an import LOADING; the judge's process enforces both. A property may take `Effort.seconds`, or twice that
and a minute if the implementation blocks. A judge's process that for some seconds neither sends anything nor
computes has been stopped or is gone; it is dismissed with its child.
An implementation that costs one process after another is given up (see `giving_up`). `limits` says how much memory
the implementation may hold.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from cemverify.conformance.implementations.features import FUNCTIONS
from cemverify.conformance.judging.absences import asked_for
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.ending import TO_THE_END, Ending
from cemverify.conformance.judging.events import Event, PropertyStarted, RunFinished
from cemverify.conformance.judging.first_call import Answer
from cemverify.conformance.judging.offered import applicable, not_offered
from cemverify.conformance.judging.run import Run
from cemverify.conformance.judging.verdicts import Record
from cemverify.conformance.properties import Property
from cemverify.conformance.source.reach.summary import SharedFunction, Trail, summed
from cemverify.conformance.workers.giving_up import LostWorkers
from cemverify.conformance.workers.judge import (
    Again,
)
from cemverify.conformance.workers.limits import check_memory, usual_memory
from cemverify.conformance.workers.wire import request
from cemverify.conformance.workers.worker import Worker, ready
from cemverify.processes.devices import check_device


def run(
    name: str,
    properties: Sequence[Property],
    effort: Effort,
    workers: int = 1,
    *,
    first_call: bool = False,
    ending: Ending = TO_THE_END,
    absent: bool = False,
) -> Generator[Event, None, None]:
    """Tests the implementation of that name, in worker processes.

    Args:
        first_call: whether to call each function once first, and to refuse an implementation if that fails.
        ending: when to end before everything is tested; if a record ends the run, other workers' properties are left.
        absent: whether to use, at the end, the features that are declared absent.

    Raises:
        LoadError: it cannot be loaded, or its first call failed. ValueError: no property is for its kind, memory
            cannot be limited to that, or the device is not available.
    """
    check_memory(effort.memory)
    check_device(effort.device)
    run = _CrewRun(name, effort, ending)
    try:
        run.load(properties)
        if first_call:
            run.call_first()
        run.hire(workers)
        yield from run.begin()
        while run.goes_on():
            yield from run.give_up()
            yield from run.assign()
            yield from run.collect()
        if absent:
            run.ask_absent()
    finally:
        run.end()
    yield run.told()


class _CrewRun(Run):
    """A run and its workers.

    Attributes:
        crew: the current workers. lost: counts those that the implementation has cost.
        answer: the first worker's answer to the first call, if there was one.
        shared: the functions that run in an energy layer's update and in what it declares.
        trails: which lines ran, by property. untraced: ids of properties for which that is not known.
        around: the numbers in its code around which cases were tested.
        absences: features that are declared absent, by what happened when they were used.
    """

    def __init__(self, name: str, effort: Effort, ending: Ending) -> None:
        super().__init__(name, effort, ending)
        self.lost = LostWorkers()
        self.answer: Answer | None = None
        self.shared: tuple[SharedFunction, ...] = ()
        self.trails: dict[str, Trail] = {}
        self.untraced: list[str] = []
        self.around: set[float] = set()
        self.absences: dict[str, list[str]] = {}
        self.programs = tempfile.TemporaryDirectory(prefix="cemverify-", ignore_cleanup_errors=True)
        self.crew = [self._worker()]

    def _worker(self) -> Worker:
        return Worker(self.name, self.effort, self.programs.name)

    def load(self, properties: Sequence[Property]) -> None:
        """Has the first worker load the implementation, and puts the properties that it offers into the queue."""
        self.introduction = self.crew[0].introduce()
        self.take(self.introduction.kind, self.introduction.absent, properties)

    def call_first(self) -> None:
        """Makes the first worker call each function once that a property in the queue needs."""
        self.crew[0].call(sorted({function for p in self.queue for function in p.needs & FUNCTIONS.keys()}))
        self.answer, self.shared = self.crew[0].first_answer, self.crew[0].shared

    def hire(self, workers: int) -> None:
        """Starts the other workers."""
        self.crew += [self._worker() for _ in range(min(workers, len(self.queue)) - 1)]

    def goes_on(self) -> bool:
        """Whether there is anything left to do or to wait for."""
        busy = any(worker.busy for worker in self.crew) and time.monotonic() < self.latest
        return self.more() or (not self.over and busy)

    def give_up(self) -> Iterator[Event]:
        """Removes from the queue the properties that are not worth another worker."""
        for record in self.lost.give_up(self.queue):
            yield self.note(record)

    def assign(self) -> Iterator[Event]:
        """Gives each idle worker the next property, and replaces those that are gone or too used for it."""
        for i, worker in enumerate(self.crew):
            if worker.busy or not self.queue:  # a busy worker's death is first reported by its `answer`
                continue
            property_ = self._next(worker)
            if not worker.alive or (property_.first and not worker.fresh):
                worker.dismiss()
                worker = self.crew[i] = self._worker()
            if self.answer is not None and not property_.first:
                worker.repeat_first_call()
            worker.ask(property_, explaining=self.explaining.left)
            yield PropertyStarted(property_.id)

    def _next(self, worker: Worker) -> Property:
        """Takes the next property for a worker out of the queue.

        A fresh worker gets a property that needs a new process, as otherwise another would have to be started. What
        compiles is left to a worker that has compiled before, because the compiler takes seconds to import.
        """
        elsewhere = any(other.compiles for other in self.crew if other is not worker and other.alive)
        begins = worker.fresh and math.isinf(self.until) and len(self.crew) > 1 and any(p.first for p in self.queue)

        def suits(p: Property) -> bool:
            return p.first if begins else not ("compile" in p.needs and elsewhere and not worker.compiles)

        property_ = next(filter(suits, self.queue), self.queue[0])
        self.queue.remove(property_)
        return property_

    def collect(self) -> Iterator[Event]:
        """Waits a moment, and takes the records that have arrived.

        Raises:
            LoadError: the parameters of the implementation differ between processes.
        """
        for worker in ready(self.crew):
            worker.check_parameters(self.introduction.origin.parameters, self.answer)
            property_ = worker.property
            if property_ is None or (record := worker.answer()) is None:
                continue
            self.lost.note(property_, record, lost=not worker.alive)
            self.around |= worker.around
            self.explaining.left -= worker.explained
            if worker.trail is None:
                self.untraced.append(record.id)
            else:
                self.trails[record.id] = worker.trail
            yield self.note(record)

    def ask_absent(self) -> None:
        """Uses each feature that is declared absent; one that costs its worker is indeed absent."""
        worker = self.crew[0]
        for feature in asked_for(self.introduction.absent):
            if not worker.alive or worker.busy:
                self.crew.append(worker := self._worker())
                worker.introduce()
            if (found := worker.ask_absent(feature)) is not None:
                self.absences.setdefault(found, []).append(feature)

    def end(self) -> None:
        """Ends all processes."""
        for worker in self.crew:
            worker.dismiss()
        self.programs.cleanup()

    def told(self) -> RunFinished:
        """Everything that the run found, in an order that does not depend on the workers' speed."""
        trails = {p.id: self.trails[p.id] for p in self.properties if p.id in self.trails}
        reach = None
        if self.effort.reads_code:
            reach = summed(self.introduction.code, trails, self.untraced, self.around)
            reach = replace(reach, shared=self.shared)
        options, memory = list(self.effort.options), self.effort.memory
        if memory not in (None, usual_memory(self.effort.device)):
            options += ["--memory", str(memory)]
        return replace(self.finished(self.introduction.origin, reach), options=options, absences=self.absences)


def ask_again(
    name: str,
    property_: Property,
    question: Any,
    dtype: torch.dtype,
    device: str,
    effort: Effort,
    parameters: Mapping[str, torch.Tensor] | None = None,
) -> Record:
    """Asks the implementation of that name one saved question, in a worker process.

    Args:
        parameters: values to set first for an energy layer's parameters, by name.

    Raises:
        LoadError: it cannot be loaded. ValueError: the property is for another kind of implementation, or the device
            is not available.
    """
    check_device(device)
    worker = Worker(name, replace(effort, dtype=dtype, device=device, reads_code=False))
    try:
        introduction = worker.introduce()
        applicable(introduction.kind, [property_])
        absent = not_offered(property_, introduction.absent, dtype)
        if absent is not None:
            return absent
        worker.ask(
            property_, Again(property_.id, property_.stated_in, request(question), request(dict(parameters or {})))
        )
        while True:
            ready([worker])
            if (record := worker.answer()) is not None:
                return record
    finally:
        worker.dismiss()

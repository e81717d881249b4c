"""Runs an implementation in processes of its own, so that it may hang, crash or lie without changing what is said.

Each worker is two processes. One asks, compares and judges (see `judging`); neither it nor this process runs code of
the implementation. The other, its child, holds the implementation and answers (see `answering`). A worker takes one
property at a time. One that hangs or dies is replaced, and the property it was at gets a typed verdict. So does a
property after which the implementation's process can no longer be trusted, because it ran out of memory or finds
torch's own functions replaced.

Every wait has a limit, and what a process waits for a core counts for none of them. A call may take `Effort.timeout`
seconds, an import LOADING, and the judge's process enforces both. A property may take `Effort.seconds`, or twice that
and a minute if the implementation blocks. A judge's process that was neither heard from nor seen to compute for some
seconds has been stopped or is gone, and is dismissed with its child.
An implementation that costs one process after another is given up (see `giving_up`). What the implementation may hold
in memory: see `limits`.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

import torch

from cemverify.conformance.implementations.features import FUNCTIONS
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.implementations.origin import Origin
from cemverify.conformance.judging.absences import asked_for
from cemverify.conformance.judging.effort import Effort, Explaining
from cemverify.conformance.judging.ending import TO_THE_END, Ending
from cemverify.conformance.judging.engine import applicable, finished, not_offered
from cemverify.conformance.judging.events import Event, PropertyFinished, PropertyStarted, RunFinished, RunStarted
from cemverify.conformance.judging.first_call import Answer, alike
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import Property
from cemverify.conformance.source.reach.summary import Trail, summed
from cemverify.conformance.workers import nursery
from cemverify.conformance.workers.compiling import compiling
from cemverify.conformance.workers.giving_up import LostWorkers
from cemverify.conformance.workers.judge import (
    Again,
    Called,
    FinishedProperty,
    FirstCalls,
    Introduction,
    NotLoaded,
    WantedProperty,
    judge,
)
from cemverify.conformance.workers.limits import check_memory, descendants, usual_memory
from cemverify.conformance.workers.wire import request
from cemverify.processes.cores import one_thread
from cemverify.processes.devices import check_device
from cemverify.processes.system import LINUX
from cemverify.processes.time_limits import TimeLimit, busy

LOADING = 120.0  # seconds that an import may take

_POLL = 0.1  # seconds between looks at the clock
_SILENT = 10.0  # seconds without a sign of life after which a process is taken for stopped


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
        first_call: whether to call each function once before, and to refuse an implementation of which that fails.
        ending: when the run ends before everything is tested; what other workers are at is left if a record ends it.
        absent: whether to ask at the end for the features that are declared absent.

    Raises:
        LoadError: it cannot be loaded, or its first call failed. ValueError: none of the properties is for its kind,
            memory cannot be limited so, or the device is not available.
    """
    check_memory(effort.memory)
    check_device(effort.device)
    run = _CheckRun(name, effort, ending)
    try:
        run.load(properties)
        if first_call:
            run.call_first()
        yield from run.begin(workers)
        while run.goes_on():
            yield from run.give_up()
            yield from run.assign()
            yield from run.collect()
        if absent:
            run.ask_absent()
    finally:
        run.end()
    yield run.finished()


class _CheckRun:
    """What is still to be tested, the workers that are at it, and what has come of it.

    Attributes:
        properties: all that are for this kind of implementation. queue: those that no worker has begun.
        records: of those that are finished, by id. over: whether a record has ended the run.
        lost: the workers that the implementation has cost. crew: those that there are.
        answer: what the first worker's layer answered to the first call, if one was made.
        trails: which lines ran, by property. untraced: ids of those of which that is not known.
        around: the numbers in its code around which cases were tested. explaining: seconds left for violations.
        absences: features that are declared absent, by what came of asking for them.
    """

    def __init__(self, name: str, effort: Effort, ending: Ending) -> None:
        self.name, self.effort, self.ending = name, effort, ending
        self.started = time.monotonic()
        self.until = math.inf
        self.properties: list[Property] = []
        self.queue: deque[Property] = deque()
        self.records: dict[str, Record] = {}
        self.over = False
        self.lost = LostWorkers()
        self.answer: Answer | None = None
        self.trails: dict[str, Trail] = {}
        self.untraced: list[str] = []
        self.around: set[float] = set()
        self.explaining = Explaining(effort.explaining)
        self.absences: dict[str, list[str]] = {}
        self.programs = tempfile.TemporaryDirectory(prefix="cemverify-", ignore_cleanup_errors=True)
        self.crew = [self._worker()]

    def _worker(self) -> _Worker:
        return _Worker(self.name, self.effort, self.programs.name)

    def load(self, properties: Sequence[Property]) -> None:
        """Has the first worker load the implementation, and puts the properties that it offers into the queue."""
        self.introduction = self.crew[0].introduce()
        absent, dtype = self.introduction.absent, self.effort.dtype
        self.properties = applicable(self.introduction.kind, properties)
        self.records = {p.id: r for p in self.properties if (r := not_offered(p, absent, dtype)) is not None}
        offered = [p for p in self.properties if p.id not in self.records]
        self.queue.extend(self.ending.ordered(offered, absent.keys()))

    def call_first(self) -> None:
        """Has the first worker call each function once that a property in the queue needs."""
        self.crew[0].call(sorted({function for p in self.queue for function in p.needs & FUNCTIONS.keys()}))
        self.answer = self.crew[0].first_answer

    def begin(self, workers: int) -> Iterator[Event]:
        """Starts the other workers, and the time after which nothing more is begun."""
        yield RunStarted(self.name, len(self.properties), len(self.queue))
        yield from map(PropertyFinished, list(self.records.values()))
        self.crew += [self._worker() for _ in range(min(workers, len(self.queue)) - 1)]
        self.until = time.monotonic() + self.ending.after

    def goes_on(self) -> bool:
        """Whether there is anything left to wait for; empties the queue when the time is over."""
        if time.monotonic() > self.until:
            self.queue.clear()
        return not self.over and bool(self.queue or any(worker.busy for worker in self.crew))

    def give_up(self) -> Iterator[Event]:
        """Takes out of the queue what is not worth another worker."""
        for record in self.lost.give_up(self.queue):
            self.records[record.id] = record
            yield PropertyFinished(record)

    def assign(self) -> Iterator[Event]:
        """Gives each idle worker the next property, and replaces one that is gone or has been used."""
        for i, worker in enumerate(self.crew):
            if worker.busy or not self.queue:  # a busy one's death is first reported by its `answer`
                continue
            property_ = self._next(worker)
            if not worker.alive or (property_.first and not worker.fresh):
                worker.dismiss()
                worker = self.crew[i] = self._worker()
            if self.answer is not None and not property_.first:
                worker.repeat_first_call()
            worker.ask(property_, explaining=self.explaining.left)
            yield PropertyStarted(property_.id)

    def _next(self, worker: _Worker) -> Property:
        """Takes the next property for a worker out of the queue.

        One that has done nothing is given what needs a new process, which another would have to be started for. What
        compiles is left to the worker that has compiled: the compiler takes seconds to import.
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
        for worker in _ready(self.crew):
            worker.check_parameters(self.introduction.origin.parameters, self.answer)
            property_ = worker.property
            if property_ is None or (record := worker.answer()) is None:
                continue
            self.lost.note(property_, record, lost=not worker.alive)
            self.records[record.id] = record
            self.over = self.over or self.ending.at(record)
            self.around |= worker.around
            self.explaining.left -= worker.explained
            if worker.trail is None:
                self.untraced.append(record.id)
            else:
                self.trails[record.id] = worker.trail
            yield PropertyFinished(record)

    def ask_absent(self) -> None:
        """Asks for each feature that is declared absent; one that costs its worker is absent indeed."""
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

    def finished(self) -> RunFinished:
        """All that came of it, in the order of the catalogue, whichever worker was quicker."""
        code, origin, absent = self.introduction.code, self.introduction.origin, self.introduction.absent.keys()
        trails = {p.id: self.trails[p.id] for p in self.properties if p.id in self.trails}
        reach = summed(code, trails, self.untraced, len(self.around)) if self.effort.reads_code else None
        seconds = time.monotonic() - self.started
        options, memory = list(self.effort.options), self.effort.memory
        if memory not in (None, usual_memory(self.effort.device)):
            options += ["--memory", str(memory)]
        end = finished(self.name, self.properties, self.records, seconds, origin, absent, reach)
        return replace(end, options=options, absences=self.absences)


def ask_again(
    name: str,
    property_: Property,
    question: Any,
    dtype: torch.dtype,
    device: str,
    effort: Effort,
    parameters: Mapping[str, torch.Tensor] | None = None,
) -> Record:
    """Asks the implementation of that name one question that was saved, in a worker process.

    Args:
        parameters: numbers that an energy layer's parameters are given first, by name.

    Raises:
        LoadError: it cannot be loaded. ValueError: the property is for another kind of implementation, or the device
            is not available.
    """
    check_device(device)
    worker = _Worker(name, replace(effort, dtype=dtype, device=device, reads_code=False))
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
            _ready([worker])
            if (record := worker.answer()) is not None:
                return record
    finally:
        worker.dismiss()


class _Worker:
    """A pair of processes, and the property they are at.

    Args:
        programs: the folder in which those of a run keep what they compile, if they share one.
    """

    def __init__(self, name: str, effort: Effort, programs: str | None = None) -> None:
        self.name = name
        self.effort = effort
        self.property: Property | None = None
        self.trail: Trail | None = None
        self.around: frozenset[float] = frozenset()
        self.explained = 0.0
        self.introduced = False
        self.origin: Origin | None = None
        self.used = self.called = self.compiles = False
        self.first_answer: Answer | None = None
        self.alive = True
        with one_thread():
            environment = dict(os.environ) if programs is None else compiling(os.environ, programs)
            self.process, self.connection = nursery.start(judge, name, effort, environment, LOADING)
        self.since = self.heard = time.monotonic()  # not before: the server may have to import torch first
        self.worked = 0.0
        self.limit = TimeLimit(2 * LOADING, self._processes)

    @property
    def busy(self) -> bool:
        return self.property is not None

    @property
    def fresh(self) -> bool:
        return not (self.used or self.called)

    def introduce(self) -> Introduction:
        """Waits until the implementation is loaded."""
        message = self._awaited(self.limit, Introduction, NotLoaded)
        if isinstance(message, Introduction):
            self.introduced = True
            return message
        reason = message.reason if message else f"loading {self.name!r}: {_SILENCE if self.alive else _END}"
        self.dismiss()
        raise LoadError(reason)

    def call(self, functions: Sequence[str]) -> None:
        """Has each of the functions called once.

        Raises:
            LoadError: that failed.
        """
        self._send(FirstCalls(functions))
        limit = TimeLimit(len(FUNCTIONS) * (self.effort.timeout + _SILENT), self._processes)
        message = self._awaited(limit, Called)
        if message is not None and message.reason is None:
            self.called, self.first_answer = True, message.answer
            return
        reason = f": {_SILENCE if self.alive else _END}" if message is None else f". {message.reason}"
        self.dismiss()
        raise LoadError(f"{self.name} cannot be tested, as its first call failed{reason}")

    def repeat_first_call(self) -> None:
        """Has its layer answer what the first worker's did, once, before it is given a property."""
        if not self.called:
            self.called = True
            self._send(FirstCalls())

    def check_parameters(self, parameters: str | None, first_answer: Answer | None) -> None:
        """Looks whether its layer has the same parameters as that of the first worker.

        Args:
            parameters: their digest, where they are declared. first_answer: of the first worker's layer.

        Raises:
            LoadError: it has others, so that no counterexample could be found again.
        """
        other = self.origin is not None and self.origin.parameters != parameters
        mine = self.first_answer
        if other or (first_answer is not None and mine is not None and not alike(first_answer, mine)):
            raise LoadError(
                f"{self.name} has other parameters in each process, so no violation could be shown again: "
                "seed what draws them, as by torch.manual_seed(0) before the module is made"
            )

    def ask_absent(self, feature: str) -> str | None:
        """What comes of asking for a feature that is declared absent; it may cost the processes."""
        self.heard = time.monotonic()
        self._send(FirstCalls(absent=feature))
        message: Called | None = self._awaited(TimeLimit(self._most(), self._processes), Called)
        if message is None or message.reason is not None:
            self.dismiss()
        return None if message is None else message.outcome

    def _send(self, message: object) -> None:
        with contextlib.suppress(OSError):  # it died since: what waits for the answer will say so
            self.connection.send(message)

    def _awaited(self, limit: TimeLimit, *kinds: type[Any]) -> Any:
        """The next message of these kinds; None if none comes."""
        while not limit.passed() and self.alive and not self._is_silent():
            if isinstance(message := self._receive(_POLL), kinds):
                return message
        return None

    def ask(self, property_: Property, again: Again | None = None, explaining: float = math.inf) -> None:
        """Gives it a property, or a saved question of it; the answer comes later, after the loading."""
        self.property, self.used, self.trail, self.around, self.explained = property_, True, None, frozenset(), 0.0
        self.compiles = self.compiles or "compile" in property_.needs
        self.since = self.heard = time.monotonic()
        self.limit = TimeLimit(self._most() if self.introduced else 2 * LOADING, self._processes)
        self._send(again or WantedProperty(property_.id, property_.stated_in, explaining))

    def answer(self) -> Record | None:
        """The record, if it has arrived or can no longer arrive."""
        assert self.property is not None
        record = None
        while record is None and self.alive and self.connection.poll():
            record = self._heard()
        record = record or self._overdue()
        if record is not None:
            self.property = None
        return record

    def _receive(self, within: float) -> object:
        """The next message; None if there is none in so many seconds, or will be none."""
        try:
            if not self.connection.poll(within):
                return None
            message: object = self.connection.recv()
        except Exception:  # closed, or a property of the user's own has written into it
            self.alive = False
            return None
        self.heard = time.monotonic()
        return message

    def _heard(self) -> Record | None:
        message = self._receive(0.0)
        if isinstance(message, Introduction):
            self.introduced, self.since, self.origin = True, time.monotonic(), message.origin
            self.limit = TimeLimit(self._most(), self._processes)
        elif isinstance(message, Called):
            self.first_answer = message.answer
        elif isinstance(message, NotLoaded):
            self.dismiss()
            return self._unjudged(f"importing it in another worker failed: {message.reason}")
        elif isinstance(message, FinishedProperty):
            self.trail, self.around, self.explained = message.trail, message.around, message.explained
            if message.lost:
                self.dismiss()
            return message.record
        return None

    def _overdue(self) -> Record | None:
        if not self.alive:
            self.dismiss()
            return self._unjudged(_END)
        if self._is_silent():
            self.dismiss()
            return self._unjudged(_SILENCE)
        if self.limit.passed():
            self.dismiss()
            return self._unjudged("it took more than twice its time budget; --seconds gives it more")
        return None

    def _most(self) -> float:
        """Seconds that a property may take, if the process that judges it cannot say so itself."""
        return 2 * self.effort.seconds + 60

    def _processes(self) -> list[int]:
        pid = self.process.pid
        return [] if pid is None else [pid, *descendants(pid)]

    def _is_silent(self) -> bool:
        """Whether the thread that works was neither heard from nor seen to compute; elsewhere nobody can see that."""
        if not LINUX or time.monotonic() - self.heard <= _SILENT:
            return False
        worked = busy(self.process.pid or 0)
        if worked > self.worked:  # in one long operation
            self.worked, self.heard = worked, time.monotonic()
            return False
        return True

    def dismiss(self) -> None:
        """Ends both processes and whatever they started; a second time does nothing."""
        self.alive = False
        nursery.end(self.process, self.connection)

    def _unjudged(self, reason: str) -> Record:
        assert self.property is not None
        p, seconds = self.property, time.monotonic() - self.since
        unjudged = Record(p.id, p.claim, p.source, Verdict.INCONCLUSIVE, stated_in=p.stated_in)
        return replace(unjudged, reason=reason, seconds=seconds)


_SILENCE = "the process that judges it stopped responding, which the implementation may have caused"
_END = "the process that judges it ended, which the implementation may have caused"


def _ready(crew: Sequence[_Worker]) -> list[_Worker]:
    """The busy workers, after one of them has sent something or a short time has passed."""
    busy = [worker for worker in crew if worker.busy]
    wait([worker.connection for worker in busy if worker.alive], timeout=_POLL)
    return busy

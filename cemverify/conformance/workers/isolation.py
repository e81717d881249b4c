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
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

import torch

from cemverify.conformance.implementations.features import FUNCTIONS
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.implementations.origin import Origin
from cemverify.conformance.judging.effort import Effort, Explaining
from cemverify.conformance.judging.ending import TO_THE_END, Ending
from cemverify.conformance.judging.engine import applicable, finished, not_offered
from cemverify.conformance.judging.events import Event, PropertyFinished, PropertyStarted, RunStarted
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
    Finished,
    FirstCalls,
    Introduction,
    NotLoaded,
    Wanted,
    judge,
)
from cemverify.conformance.workers.limits import check_memory, descendants
from cemverify.conformance.workers.wire import request
from cemverify.processes.cores import one_thread
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
) -> Generator[Event, None, None]:
    """Asks the implementation of that name, in worker processes.

    Args:
        first_call: whether to call each function once before, and to refuse an implementation of which that fails.
        ending: when the run ends before everything is asked; what other workers are at is left if a record ends it.

    Raises:
        LoadError: it cannot be loaded, or its first call failed. ValueError: none of the properties is for its kind,
            or memory cannot be limited so.
    """
    check_memory(effort.memory)
    started = time.monotonic()
    programs = tempfile.TemporaryDirectory(prefix="cemverify-", ignore_cleanup_errors=True)
    first = _Worker(name, effort, programs.name)
    crew = [first]
    try:
        introduction = first.introduce()
        asked = applicable(introduction.kind, properties)
        records = {p.id: r for p in asked if (r := not_offered(p, introduction.absent, effort.dtype)) is not None}
        queue = deque(ending.ordered([p for p in asked if p.id not in records], introduction.absent.keys()))
        if first_call:
            first.call(sorted({function for p in queue for function in p.needs & FUNCTIONS.keys()}))
        first_answer = first.first_answer
        yield RunStarted(name, len(asked), len(queue))
        for record in records.values():
            yield PropertyFinished(record)
        lost, trails, untold, around = LostWorkers(), dict[str, Trail](), list[str](), set[float]()
        explaining = Explaining(effort.explaining)
        crew += [_Worker(name, effort, programs.name) for _ in range(min(workers, len(queue)) - 1)]
        over, until = False, time.monotonic() + ending.after
        while not over and (queue or any(worker.busy for worker in crew)):
            if time.monotonic() > until:
                queue.clear()
            for record in lost.give_up(queue):
                records[record.id] = record
                yield PropertyFinished(record)
            for i, worker in enumerate(crew):
                # a busy one's death is first reported by its `answer`
                if not worker.busy and queue:
                    if not worker.alive or (queue[0].first and worker.used):
                        worker.dismiss()
                        crew[i] = _Worker(name, effort, programs.name)
                    asked_next = queue.popleft()
                    if first_call and first_answer is not None and not asked_next.first:
                        crew[i].call_beside()
                    crew[i].ask(asked_next, explaining=explaining.left)
                    yield PropertyStarted(asked_next.id)
            for worker in _ready(crew):
                worker.must_have(introduction.origin.parameters, first_answer)
                asked_now = worker.asked
                if asked_now is not None and (answer := worker.answer()) is not None:
                    lost.note(asked_now, answer, lost=not worker.alive)
                    records[answer.id] = answer
                    over = over or ending.at(answer)
                    around |= worker.around
                    explaining.left -= worker.explained
                    if worker.trail is None:
                        untold.append(answer.id)
                    else:
                        trails[answer.id] = worker.trail
                    yield PropertyFinished(answer)
    finally:
        for worker in crew:
            worker.dismiss()
        programs.cleanup()
    # in the order of the catalogue, whichever worker was quicker
    in_order = {p.id: trails[p.id] for p in asked if p.id in trails}
    reach = summed(introduction.code, in_order, untold, len(around)) if effort.reads_code else None
    seconds = time.monotonic() - started
    yield finished(name, asked, records, seconds, introduction.origin, introduction.absent.keys(), reach)


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
        LoadError: it cannot be loaded. ValueError: the property is for another kind of implementation.
    """
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
        self.asked: Property | None = None
        self.trail: Trail | None = None
        self.around: frozenset[float] = frozenset()
        self.explained = 0.0
        self.introduced = False
        self.origin: Origin | None = None
        self.used = self.called = False
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
        return self.asked is not None

    def introduce(self) -> Introduction:
        """Waits until the implementation is loaded."""
        while not self.limit.passed():
            said = self._said(_POLL)
            if isinstance(said, Introduction):
                self.introduced = True
                return said
            if isinstance(said, NotLoaded):
                self.dismiss()
                raise LoadError(said.reason)
            if not self.alive or self._is_silent():
                break
        reason = _SILENCE if self.alive else _END
        self.dismiss()
        raise LoadError(f"loading {self.name!r}: {reason}")

    def call(self, functions: Sequence[str]) -> None:
        """Has each of the functions called once.

        Raises:
            LoadError: that failed.
        """
        self.connection.send(FirstCalls(functions))
        limit = TimeLimit(len(FUNCTIONS) * (self.effort.timeout + _SILENT), self._processes)
        while not limit.passed() and self.alive and not self._is_silent():
            said = self._said(_POLL)
            if isinstance(said, Called):
                self.called, self.first_answer = True, said.answer
                if said.reason is not None:
                    self.dismiss()
                    raise LoadError(f"{self.name} cannot be tested, as its first call failed. {said.reason}")
                return
        reason = _SILENCE if self.alive else _END
        self.dismiss()
        raise LoadError(f"{self.name} cannot be tested, as its first call failed: {reason}")

    def call_beside(self) -> None:
        """Has its layer answer what the first worker's did, once, before it is given a property."""
        if not self.called:
            self.called = True
            with contextlib.suppress(OSError):  # it died since: `answer` will say so
                self.connection.send(FirstCalls(()))

    def must_have(self, parameters: str | None, due: Answer | None) -> None:
        """Looks whether its layer has the same parameters as that of the first worker.

        Args:
            parameters: their digest, where they are declared. due: what the first worker's layer answered.

        Raises:
            LoadError: it has others, so that no counterexample could be found again.
        """
        other = self.origin is not None and self.origin.parameters != parameters
        if other or (due is not None and self.first_answer is not None and not alike(due, self.first_answer)):
            raise LoadError(
                f"{self.name} has other parameters in each process, so no violation could be shown again: "
                "seed what draws them, as by torch.manual_seed(0) before the module is made"
            )

    def ask(self, property_: Property, again: Again | None = None, explaining: float = math.inf) -> None:
        """Gives it a property, or a saved question of it; the answer comes later, after the loading."""
        self.asked, self.used, self.trail, self.around, self.explained = property_, True, None, frozenset(), 0.0
        self.since = self.heard = time.monotonic()
        self.limit = TimeLimit(self._most() if self.introduced else 2 * LOADING, self._processes)
        with contextlib.suppress(OSError):  # it died since: `answer` will say so
            self.connection.send(again or Wanted(property_.id, property_.stated_in, explaining))

    def answer(self) -> Record | None:
        """The record, if it has arrived or can no longer arrive."""
        assert self.asked is not None
        record = None
        while record is None and self.alive and self.connection.poll():
            record = self._heard()
        record = record or self._overdue()
        if record is not None:
            self.asked = None
        return record

    def _said(self, within: float) -> object:
        """The next message; None if there is none in so many seconds, or will be none."""
        try:
            if not self.connection.poll(within):
                return None
            said: object = self.connection.recv()
        except (EOFError, OSError):
            self.alive = False
            return None
        self.heard = time.monotonic()
        return said

    def _heard(self) -> Record | None:
        said = self._said(0.0)
        if isinstance(said, Introduction):
            self.introduced, self.since, self.origin = True, time.monotonic(), said.origin
            self.limit = TimeLimit(self._most(), self._processes)
        elif isinstance(said, Called):
            self.first_answer = said.answer
        elif isinstance(said, NotLoaded):
            self.dismiss()
            return self._unjudged(f"importing it in another worker failed: {said.reason}")
        elif isinstance(said, Finished):
            self.trail, self.around, self.explained = said.trail, said.around, said.explained
            if said.lost:
                self.dismiss()
            return said.record
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
        assert self.asked is not None
        asked, seconds = self.asked, time.monotonic() - self.since
        unjudged = Record(asked.id, asked.claim, asked.source, Verdict.INCONCLUSIVE, stated_in=asked.stated_in)
        return replace(unjudged, reason=reason, seconds=seconds)


_SILENCE = "the process that judges it stopped responding, which the implementation may have caused"
_END = "the process that judges it ended, which the implementation may have caused"


def _ready(crew: Sequence[_Worker]) -> list[_Worker]:
    """The busy workers, after one of them has sent something or a short time has passed."""
    busy = [worker for worker in crew if worker.busy]
    wait([worker.connection for worker in busy if worker.alive], timeout=_POLL)
    return busy

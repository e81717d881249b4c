"""Runs an implementation in worker processes of its own, so that it may hang or crash without ending the run.

The parent never imports the implementation. Workers are fresh processes that use one thread each and take one
property at a time. A worker that hangs is killed, one that dies is replaced, and the property it was asking gets a
typed verdict. So does a property after which its worker can no longer be trusted, because it ran out of memory or
finds torch's own functions replaced.

Every wait has a limit: a call may take `Effort.timeout` seconds, an import LOADING, a property `Effort.seconds`
(twice that and a minute if the implementation blocks outside its calls). An implementation that costs one process
after another is given up (see `giving_up`). What a worker may hold in memory: see `limits`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from cemverify.conformance.asking.process_state import Originals
from cemverify.conformance.implementations.contract import LoadError, Subject, load
from cemverify.conformance.implementations.faults import Crashed, Hung, OutOfMemory, Raised, Tampered, words
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import applicable, judge_again, judge_property, not_offered
from cemverify.conformance.judging.events import Event, PropertyFinished, RunFinished, RunStarted
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import Property, catalogue
from cemverify.conformance.workers.giving_up import LostWorkers
from cemverify.conformance.workers.last_question import LastQuestion, Packed, case_of
from cemverify.conformance.workers.limits import adopt_orphans, check_memory, descendants, limit

LOADING = 120.0  # seconds that an import may take

_POLL = 0.1  # seconds between looks at the clock of a call
_FAREWELL = 2.0  # seconds that an idle worker may take to end by itself


@cache
def _processes() -> Any:
    """How workers are started.

    Linux forks them from a server that has imported torch and this module, and nothing of the implementation: that
    takes 50 ms rather than the seconds of an import, which counts where one worker after another is lost.
    """
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    context.set_forkserver_preload([__name__])
    return context


@dataclass(frozen=True)
class _Introduction:
    """What a worker reports about the implementation it loaded."""

    properties: Sequence[str]
    absent: Mapping[str, str]
    arrays: str


@dataclass(frozen=True)
class _Saved:
    """A saved question that a worker is asked instead of a whole property."""

    property: str
    question: Packed


@dataclass(frozen=True)
class _Watching:
    """Informs the parent through memory and files that survive the worker."""

    call_started: Any
    last_question: LastQuestion

    def calling(self, started: float) -> None:
        """A call begins (at this time) or ends (0)."""
        self.call_started.value = started

    def asking(self, question: Any) -> None:
        """A property is about to ask this question."""
        self.last_question.write(question)


def run(name: str, properties: Sequence[Property], effort: Effort, workers: int = 1) -> Iterator[Event]:
    """Asks the implementation of that name, in worker processes.

    Raises:
        LoadError: it cannot be loaded. ValueError: none of the properties is for its door, or memory cannot be
            limited so.
    """
    check_memory(effort.memory)
    started = time.monotonic()
    first = _Worker(name, effort)
    crew = [first]
    try:
        introduction = first.introduce()
        asked = _for_its_door(properties, introduction)
        records = {p.id: r for p in asked if (r := not_offered(p, introduction.absent, effort.dtype)) is not None}
        queue = deque(p for p in asked if p.id not in records)
        yield RunStarted(name, len(asked), len(queue))
        for record in records.values():
            yield PropertyFinished(record)
        lost = LostWorkers()
        crew += [_Worker(name, effort) for _ in range(min(workers, len(queue)) - 1)]
        while queue or any(worker.busy for worker in crew):
            for record in lost.give_up(queue):
                records[record.id] = record
                yield PropertyFinished(record)
            for i, worker in enumerate(crew):
                # a busy one's death is first reported by its `answer`
                if not worker.busy and queue:
                    if not worker.alive:
                        worker.dismiss()
                        crew[i] = _Worker(name, effort)
                    crew[i].ask(queue.popleft())
            for worker in _ready(crew):
                asked_now = worker.asked
                if asked_now is not None and (finished := worker.answer()) is not None:
                    lost.note(asked_now, finished, lost=not worker.alive)
                    records[finished.id] = finished
                    yield PropertyFinished(finished)
    finally:
        for worker in crew:
            worker.dismiss()
    yield RunFinished(name, [records[p.id] for p in asked], time.monotonic() - started)


def ask_again(
    name: str, property_: Property, question: Any, dtype: torch.dtype, device: str, effort: Effort
) -> Record:
    """Asks the implementation of that name one question that was saved, in a worker process.

    Raises:
        LoadError: it cannot be loaded. ValueError: the property is not for its door.
    """
    worker = _Worker(name, replace(effort, dtype=dtype, device=device))
    try:
        introduction = worker.introduce()
        _for_its_door([property_], introduction)
        absent = not_offered(property_, introduction.absent, dtype)
        if absent is not None:
            return absent
        worker.ask(property_, _Saved(property_.id, Packed.of(question)))
        while True:
            _ready([worker])
            if (record := worker.answer()) is not None:
                return record
    finally:
        worker.dismiss()


def _for_its_door(properties: Sequence[Property], introduction: _Introduction) -> list[Property]:
    asked = [p for p in properties if p.id in set(introduction.properties)]
    if not asked:
        raise ValueError("none of these properties applies to this kind of implementation; see `cemverify list`")
    return asked


class _Worker:
    """One worker process and its current property."""

    def __init__(self, name: str, effort: Effort) -> None:
        self.name = name
        self.effort = effort
        self.asked: Property | None = None
        self.since = 0.0
        self.call_started = _processes().Value("d", 0.0, lock=False)
        self.last_question = LastQuestion.empty()
        self.arrays = "torch"
        self.connection, theirs = _processes().Pipe()
        self.introduced = False
        # before torch is imported there: one thread per process, or small tensors crawl
        threads = {key: os.environ.get(key) for key in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        os.environ.update(dict.fromkeys(threads, "1"))
        try:
            self.process = _processes().Process(
                target=_work,
                args=(theirs, _Watching(self.call_started, self.last_question), name, effort, dict(os.environ)),
                daemon=True,
            )
            self.process.start()
        finally:
            for key, value in threads.items():
                if value is None:
                    del os.environ[key]
                else:
                    os.environ[key] = value
        theirs.close()

    @property
    def alive(self) -> bool:
        return bool(self.process.is_alive())

    @property
    def busy(self) -> bool:
        return self.asked is not None

    def introduce(self) -> _Introduction:
        """Waits until the implementation is loaded."""
        if not self.connection.poll(LOADING):
            self.dismiss()
            raise LoadError(f"loading {self.name!r} did not finish within {LOADING:.0f} seconds")
        try:
            said = self.connection.recv()
        except EOFError:
            self.process.join()
            raise LoadError(f"loading {self.name!r} ended the interpreter ({_exit(self.process.exitcode)})") from None
        self.introduced = True
        if isinstance(said, _Introduction):
            self.arrays = said.arrays
            return said
        raise LoadError(str(said))

    def ask(self, property_: Property, saved: _Saved | None = None) -> None:
        """Hands it a property, or a saved question of one; the answer comes later, after loading."""
        self.asked = property_
        self.since = time.monotonic()
        self.call_started.value = 0.0
        with contextlib.suppress(OSError):  # it died since: `answer` will say so
            self.connection.send(saved or property_.id)

    def answer(self) -> Record | None:
        """The record, if it has arrived or can no longer arrive."""
        assert self.asked is not None
        record = self._heard() if self.connection.poll() else self._overdue()
        if record is not None:
            self.asked = None
        return record

    def _heard(self) -> Record | None:
        try:
            said = self.connection.recv()
        except (EOFError, OSError):
            return self._died()
        except Exception as error:
            self.dismiss()
            return self._stopped(
                Verdict.SUITE_ERROR, None, f"the answer of a worker could not be read: {words(error)}"
            )
        if isinstance(said, _Introduction):
            self.introduced, self.arrays = True, said.arrays
            self.since = time.monotonic()
            return None
        if isinstance(said, Record):
            # anything else is the answer of a process that the implementation forked
            if self.asked is None or said.id != self.asked.id:
                return None
            if not self.alive:  # it answered, and took along the process that could tell of its end
                return self._died()
            if said.cause in (OutOfMemory.cause, Tampered.cause):
                self.dismiss()  # what comes next deserves a sound process
            return said
        self.dismiss()
        return self._stopped(Verdict.INCONCLUSIVE, None, f"importing it in another worker failed: {said}")

    def _overdue(self) -> Record | None:
        now = time.monotonic()
        if not self.alive:
            return self._died()
        if (call := self.call_started.value) and now - call > self.effort.timeout:
            question = self.last_question.read()
            self.dismiss()
            reason = f"a call did not return within {self.effort.timeout:g} seconds"
            return self._stopped(Verdict.VIOLATED, Hung.cause, reason, question)
        allowed = 2 * self.effort.seconds + 60 if self.introduced else LOADING
        if now - self.since > allowed:
            self.dismiss()
            what = (
                "it took more than twice its time budget"
                if self.introduced
                else "importing it in another worker did not finish"
            )
            return self._stopped(Verdict.INCONCLUSIVE, None, what)
        return None

    def _died(self) -> Record:
        self.process.join(1.0)
        question = self.last_question.read()
        if self.process.is_alive():
            self.dismiss()
            reason = "it closed its connection to the verifier"
        else:
            reason = f"it ended the interpreter ({_exit(self.process.exitcode)})"
        return self._stopped(Verdict.VIOLATED, Crashed.cause, reason, question)

    def dismiss(self) -> None:
        """Ends the process, whatever it is doing. Calling it again does nothing."""
        if self.connection.closed:
            return
        if self.process.pid is not None:
            started = descendants(self.process.pid) if self.process.is_alive() else []
            if not self.busy and self.introduced:  # it waits for a question: let it put away what libraries opened
                self.connection.close()
                self.process.join(_FAREWELL)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)  # with whatever the implementation started
            for child in started:  # those that left for a group of their own
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.connection.close()
        self.last_question.remove()

    def _stopped(self, verdict: Verdict, cause: str | None, reason: str, question: Any = None) -> Record:
        asked, effort = self.asked, self.effort
        assert asked is not None
        seconds = time.monotonic() - self.since
        record = Record(asked.id, asked.claim, asked.source, verdict, cause=cause, reason=reason, seconds=seconds)
        if question is None:
            return record
        dtype = asked.dtype or effort.dtype
        saved = case_of(asked, question, dtype, effort.device, self.arrays, effort.timeout)
        return replace(record, counterexample={"case": question.describe()}, saved=saved)


def _ready(crew: Sequence[_Worker]) -> list[_Worker]:
    """The busy workers, after one of them has sent something or a short time has passed."""
    busy = [worker for worker in crew if worker.busy]
    wait([worker.connection for worker in busy], timeout=_POLL)
    return busy


def _exit(code: int | None) -> str:
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def _work(
    connection: Connection, watching: _Watching, name: str, effort: Effort, environment: Mapping[str, str]
) -> None:
    """The main loop of a worker: load, report, then answer one property after another."""
    torch.set_num_threads(1)
    os.setsid()  # a group of its own, so that whatever it starts can be ended with it
    adopt_orphans()
    limit(effort.memory)
    os.environ.clear()
    os.environ.update(environment)  # a fork server has that of its own start
    folder = os.getcwd()
    # whatever the implementation prints would end up in the middle of a table
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)

    known = {p.id: p for p in catalogue()}
    originals = Originals()
    try:
        subject = load(name)
    except LoadError as error:
        connection.send(str(error))
        return
    # an import may leave modes and defaults behind, which are not what is judged
    torch.set_num_threads(1)
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    os.chdir(folder)
    door = [p.id for p in applicable(subject, list(known.values()))]
    connection.send(_Introduction(door, dict(subject.not_offered), subject.arrays))
    while True:
        try:
            wanted = connection.recv()
        except EOFError:
            return
        saved = wanted if isinstance(wanted, _Saved) else None
        asked = known[wanted if saved is None else saved.property]
        record = _judge(subject, asked, saved, effort, watching, originals)
        os.environ.clear()
        os.environ.update(environment)
        connection.send(record)


def _judge(
    subject: Subject, asked: Property, saved: _Saved | None, effort: Effort, watching: _Watching, originals: Originals
) -> Record:
    """The engine's record, or one about faults that the engine cannot see."""
    violated = Record(asked.id, asked.claim, asked.source, Verdict.VIOLATED)
    try:
        if saved is None:
            record = judge_property(subject, asked, effort, watching)
        else:
            question = saved.question.unpacked()
            record = judge_again(subject, asked, question, effort.dtype, effort.device, watching)
    except KeyboardInterrupt:  # not the user's, who interrupts the parent
        return replace(violated, cause=Raised.cause, reason="it raised KeyboardInterrupt")
    except MemoryError:
        return replace(
            violated, cause=OutOfMemory.cause, reason="it uses so much memory that none is left for the verifier"
        )
    if replaced := originals.replaced():
        reason = f"it replaced functions that the whole process uses: {', '.join(replaced)}"
        return replace(violated, cause=Tampered.cause, reason=reason, seconds=record.seconds)
    return record

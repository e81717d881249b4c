"""A worker: two processes, one that judges and one that holds the implementation, and their current property."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

from cemverify.conformance.implementations.features import FUNCTIONS
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.implementations.origin import Origin
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.first_call import Answer, alike
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import Property
from cemverify.conformance.source.reach.summary import SharedFunction, Trail
from cemverify.conformance.workers import nursery
from cemverify.conformance.workers.compiling import compiling
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
from cemverify.conformance.workers.limits import descendants
from cemverify.processes.cores import one_thread
from cemverify.processes.system import LINUX
from cemverify.processes.time_limits import TimeLimit, busy

LOADING = 120.0  # seconds that an import may take
_POLL = 0.1  # seconds between checks of the clock
_SILENT = 10.0  # seconds without a sign of life before a process is taken to be stopped


class Worker:
    """A pair of processes, and their current property.

    Args:
        programs: the folder where the processes of a run keep what they compile, if they share one.
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
        self.shared: tuple[SharedFunction, ...] = ()
        self.alive = True
        with one_thread():
            environment = dict(os.environ) if programs is None else compiling(os.environ, programs)
            self.process, self.connection = nursery.start(judge, name, effort, environment, LOADING)
        self.since = self.heard = time.monotonic()  # not earlier: the server may have to import torch first
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
        """Makes it call each of the functions once.

        Raises:
            LoadError: that failed.
        """
        self._send(FirstCalls(functions))
        limit = TimeLimit(len(FUNCTIONS) * (self.effort.timeout + _SILENT), self._processes)
        message = self._awaited(limit, Called)
        if message is not None and message.reason is None:
            self.called, self.first_answer, self.shared = True, message.answer, message.shared
            return
        reason = f": {_SILENCE if self.alive else _END}" if message is None else f". {message.reason}"
        self.dismiss()
        raise LoadError(f"{self.name} cannot be tested, as its first call failed{reason}")

    def repeat_first_call(self) -> None:
        """Makes its layer answer what the first worker's answered, once, before it gets a property."""
        if not self.called:
            self.called = True
            self._send(FirstCalls())

    def check_parameters(self, parameters: str | None, first_answer: Answer | None) -> None:
        """Checks that its layer has the same parameters as that of the first worker.

        Args:
            parameters: their digest, if they are declared. first_answer: the first worker's, to the first call.

        Raises:
            LoadError: they differ, so counterexamples could not be reproduced.
        """
        other = self.origin is not None and self.origin.parameters != parameters
        mine = self.first_answer
        if other or (first_answer is not None and mine is not None and not alike(first_answer, mine)):
            raise LoadError(
                f"{self.name} has different parameters in each process, so no violation could be shown again: "
                "seed what draws them, as with torch.manual_seed(0) before the module is made"
            )

    def ask_absent(self, feature: str) -> str | None:
        """What happens when a feature that is declared absent is used; this may cost the processes."""
        self.heard = time.monotonic()
        self._send(FirstCalls(absent=feature))
        message: Called | None = self._awaited(TimeLimit(self._most(), self._processes), Called)
        if message is None or message.reason is not None:
            self.dismiss()
        return None if message is None else message.outcome

    def _send(self, message: object) -> None:
        with contextlib.suppress(OSError):  # it has died; waiting for the answer will show that
            self.connection.send(message)

    def _awaited(self, limit: TimeLimit, *kinds: type[Any]) -> Any:
        """The next message of these kinds; None if none comes."""
        while not limit.passed() and self.alive and not self._is_silent():
            if isinstance(message := self._receive(_POLL), kinds):
                return message
        return None

    def ask(self, property_: Property, again: Again | None = None, explaining: float = math.inf) -> None:
        """Gives it a property, or a saved question for one; the answer comes later, after loading."""
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
        """The next message; None if there is none within that many seconds, or never will be."""
        try:
            if not self.connection.poll(within):
                return None
            message: object = self.connection.recv()
        except Exception:  # closed, or garbled by a property of the user's own
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
        """Seconds that a property may take, in case the judge's process cannot say so itself."""
        return 2 * self.effort.seconds + 60

    def _processes(self) -> list[int]:
        pid = self.process.pid
        return [] if pid is None else [pid, *descendants(pid)]

    def _is_silent(self) -> bool:
        """Whether the working thread neither sent anything nor used a core; only Linux can tell."""
        if not LINUX or time.monotonic() - self.heard <= _SILENT:
            return False
        worked = busy(self.process.pid or 0)
        if worked > self.worked:  # it is in one long operation
            self.worked, self.heard = worked, time.monotonic()
            return False
        return True

    def dismiss(self) -> None:
        """Ends both processes and all that they started; repeating it does nothing."""
        self.alive = False
        nursery.end(self.process, self.connection)

    def _unjudged(self, reason: str) -> Record:
        assert self.property is not None
        p, seconds = self.property, time.monotonic() - self.since
        unjudged = Record(p.id, p.claim, p.source, Verdict.INCONCLUSIVE, stated_in=p.stated_in)
        return replace(unjudged, reason=reason, seconds=seconds)


_SILENCE = "the process that judges it stopped responding, which the implementation may have caused"
_END = "the process that judges it ended, which the implementation may have caused"


def ready(crew: Sequence[Worker]) -> list[Worker]:
    """The busy workers, after one of them has sent something or a short time has passed."""
    busy = [worker for worker in crew if worker.busy]
    wait([worker.connection for worker in busy if worker.alive], timeout=_POLL)
    return busy

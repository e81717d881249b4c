"""The judge's process: it tests properties of an implementation that lives in another process, and reports.

The implementation's process is its child and holds one end of a socket, over which it answers (see `answering`).
Golden answers, budgets, comparisons and verdicts are made here, where no code of the implementation runs. Every
wait for an answer has a deadline. Twice a second, whoever started this process gets a sign of life from the working
thread, or sees it compute. Otherwise that thread is stopped or gone, and the process is ended.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch

from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.experiments import Allowance, Lost
from cemverify.conformance.implementations.contract import Kind, Subject, kind_of, load
from cemverify.conformance.implementations.faults import (
    Crashed,
    Hung,
    OutOfMemory,
    Tampered,
    fault_of,
    printable,
    words,
)
from cemverify.conformance.implementations.origin import Origin
from cemverify.conformance.judging.absences import outcome
from cemverify.conformance.judging.aiming import Aiming
from cemverify.conformance.judging.conclusion import by_fault, unanswered
from cemverify.conformance.judging.effort import Effort, Explaining
from cemverify.conformance.judging.engine import judge_again, judge_property, recorded
from cemverify.conformance.judging.first_call import Answer, first_calls, shared_functions, shown_twice
from cemverify.conformance.judging.recording import restore_parameters
from cemverify.conformance.judging.verdicts import Record
from cemverify.conformance.properties import Property, by_id
from cemverify.conformance.questions.saving import Packing, Saved
from cemverify.conformance.source.reach.summary import SharedFunction, Trail, joined, trail_of
from cemverify.conformance.source.reading.code import OwnCode, from_plain
from cemverify.conformance.workers.answering import REACHED, STATE, Request, declared, live, whence
from cemverify.conformance.workers.limits import (
    adopt_orphans,
    end_all,
    guard_memory,
    is_stopped,
    leave_terminal,
)
from cemverify.conformance.workers.wire import Channel, Closed, Overdue, Unreadable, answered, request, requested
from cemverify.processes.forkserver import OF_A_TERMINAL
from cemverify.processes.parent_death import end_with_parent
from cemverify.processes.system import LINUX
from cemverify.processes.time_limits import TimeLimit

_ONE_CALL = Allowance()
_BEAT = 0.5  # seconds between signs of life
_LOOK = 1.0  # seconds between checks whether an answer can still come
_ABSENT = 2.0  # seconds that a call may take that uses a feature declared absent
_AT_ONCE = 0.05  # seconds in which most answers come


@dataclass(frozen=True)
class Introduction:
    """What is reported of an implementation once it is loaded; its code, if that is read."""

    kind: Kind
    absent: Mapping[str, str]
    origin: Origin = field(default_factory=Origin)
    code: OwnCode = OwnCode()


@dataclass(frozen=True)
class NotLoaded:
    """Why the implementation cannot be loaded, in a sentence."""

    reason: str


@dataclass(frozen=True)
class Alive:
    """What the judge's process sends twice a second while it works."""


@dataclass(frozen=True)
class FinishedProperty:
    """A record, whether the processes are lost with it, and which lines ran; None if that is not known."""

    record: Record
    lost: bool
    trail: Trail | None = None
    around: frozenset[float] = frozenset()  # the numbers in its code that questions were asked around
    explained: float = 0.0  # seconds of a core spent on its violation after it was found


@dataclass(frozen=True)
class FirstCalls:
    """Functions to call once before anything is asked, or a feature that is declared absent, to use."""

    functions: Sequence[str] = ()
    absent: str | None = None


@dataclass(frozen=True)
class Called:
    """The result of `FirstCalls`."""

    reason: str | None  # why it failed, or None
    answer: Answer | None = None  # an energy layer's answer, to compare between processes
    outcome: str | None = None  # of using the feature, see `absences`
    shared: tuple[SharedFunction, ...] = ()  # of its update and what it declares


@dataclass(frozen=True)
class WantedProperty:
    """A property to test."""

    # property, stated_in: its id, and the module that states it if it is not in the catalogue
    property: str
    stated_in: str | None
    explaining: float = math.inf  # seconds of a core left for work after a violation is found


@dataclass(frozen=True)
class Again:
    """A saved question to ask instead of testing a property."""

    # property, stated_in: the property's id, and the module that states it if it is not in the catalogue
    property: str
    stated_in: str | None
    # question, parameters: it, and values to set first for the layer's parameters, both pickled
    question: bytes
    parameters: bytes


@dataclass
class ChildProcess:
    """The implementation's process, as the judge sees it."""

    process: Any
    line: Channel
    timeout: float  # seconds that a call may take
    not_offered: Mapping[str, str] = field(default_factory=dict)
    question: Any = None  # what a property is about to ask, or has just asked
    number: int = 0  # the last request's
    lost: Lost | None = None  # why no more requests are sent
    origin: Origin = field(default_factory=Origin)  # where it says that its functions are written

    @property
    def processes(self) -> tuple[int, ...]:
        return os.getpid(), *([] if self.process.pid is None else [self.process.pid])

    def asking(self, question: Any) -> None:
        self.question = question
        self.line.meanwhile()

    def perform(
        self,
        experiment: str,
        caller_or_box: Any,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        allowance: Allowance,
    ) -> Any:
        caller: Caller = getattr(caller_or_box, "caller", caller_or_box)
        # only if it differs: `recording` asks as if there were no autograd
        absent = None if caller.subject.not_offered is self.not_offered else dict(caller.subject.not_offered)
        return self._ask(
            Request(
                self.number + 1,
                experiment,
                type(caller_or_box),
                caller.dtype,
                caller.device,
                absent,
                arguments,
                named,
                getattr(caller_or_box, "t", 0),
            ),
            allowance,
        )

    def replaced(self) -> list[str]:
        """The functions that its process found replaced."""
        names = self._ask(Request(self.number + 1, STATE))
        return [printable(str(name)) for name in names] if isinstance(names, tuple) else []

    def reached(self, *, finished: bool) -> Trail:
        """Which lines ran in its process since the last finished property.

        Args:
            finished: whether the current property is finished.
        """
        return trail_of(self._ask(Request(self.number + 1, REACHED, arguments=(finished,))))

    def _ask(self, message: Request, allowance: Allowance = _ONE_CALL) -> Any:
        if self.lost is not None:
            raise self.lost
        self.number = message.number
        seconds = allowance.seconds(self.timeout)
        try:
            self.line.send(request(message), time.monotonic() + seconds)
            if not self.line.arrives(time.monotonic() + _AT_ONCE):  # most answers do
                await_something(self.line, TimeLimit(seconds, lambda: self.processes[1:]))
            reply = answered(self.line.receive(time.monotonic() + seconds))
            # an honest process answers each request once
            if not isinstance(reply, dict) or reply.get("number") != self.number:
                raise Unreadable("it sent an answer that was not asked for")
        except Overdue:
            longest = f"{self.timeout + allowance.grace:g} s"
            self.lost = Lost(Hung(f"a call did not return within {longest} (--timeout allows more)"))
            raise self.lost from None
        except Unreadable as error:
            self.lost = Lost(Tampered(f"its process sent messages of its own: {error}"))
            raise self.lost from None
        except Closed:
            self.lost = Lost(Crashed(self.ending()))
            raise self.lost from None
        return _outcome(reply)

    def ending(self) -> str:
        """How the implementation's process ended, as a sentence."""
        self.process.join(1.0)
        code = self.process.exitcode
        if code is None:
            return "it closed its connection to the verifier"
        return f"it ended the interpreter ({'signal ' + str(-code) if code < 0 else 'exit code ' + str(code)})"


def await_something(line: Channel, limit: TimeLimit, *, ends: Callable[[], bool] = lambda: False) -> None:
    """Waits until bytes arrive.

    Args:
        ends: called every second: whether none can arrive any more.

    Raises:
        Overdue: none have arrived within the limit, or none can.
    """
    while not line.arrives(min(limit.until, time.monotonic() + _LOOK)):
        if limit.passed() or ends():
            raise Overdue


def _outcome(reply: Mapping[str, Any]) -> Any:
    """The answer; raises what the experiment raised."""
    if "answer" in reply:
        return reply["answer"]
    if "fault" in reply:
        raise fault_of(reply)
    raise RuntimeError(printable(str(reply.get("broke"))))


def judge(connection: Connection, name: str, effort: Effort, environment: Mapping[str, str], loading: float) -> None:
    """The main loop of the judge's process: have the implementation loaded, then test one property after another."""
    leave_terminal()
    torch.set_num_threads(1)
    ours, theirs = socket.socketpair()
    # when forked from here it shares what is imported, and its end is reported at once
    context: Any = multiprocessing.get_context("fork" if LINUX else "spawn")
    start = _forked if LINUX else live
    process = context.Process(target=start, args=(theirs, name, effort, dict(environment)))
    process.start()
    theirs.close()
    guard_memory()
    adopt_orphans()
    end_with_parent(lambda: end_all(os.getpid()))
    for number in OF_A_TERMINAL:  # signals that the implementation sends its judge have no effect
        signal.signal(number, signal.SIG_IGN)
    heart = _Heart(connection)
    try:
        _serve(heart, ChildProcess(process, Channel(ours, heart.beat), effort.timeout), name, effort, loading)
    finally:
        _leave(process)


@dataclass
class _Heart:
    """Signs of life and messages to whoever started this process, sent by one thread only, the one that works."""

    connection: Connection
    last: float = -math.inf

    def beat(self) -> None:
        """Sends a sign of life, unless one was sent just now."""
        if time.monotonic() - self.last > _BEAT:
            self.say(Alive())

    def say(self, message: Any) -> None:
        """Sends a message to whoever started this process."""
        self.last = time.monotonic()
        with contextlib.suppress(OSError):  # nobody is listening any more
            self.connection.send(message)


def _serve(heart: _Heart, layer_process: ChildProcess, name: str, effort: Effort, loading: float) -> None:
    """Introduces the implementation and tests properties, as long as requests come and the processes are sound."""
    introduced = _introduced(layer_process, name, loading)
    if isinstance(introduced, NotLoaded):
        heart.say(introduced)
        return
    subject, code = introduced
    layer_process.not_offered = subject.not_offered
    heart.say(Introduction(kind_of(subject), dict(subject.not_offered), layer_process.origin, code))
    while True:
        try:
            wanted = heart.connection.recv()
        except (EOFError, OSError):
            return
        if isinstance(wanted, FirstCalls):
            heart.say(_called(subject, wanted, effort, layer_process, code))
            if layer_process.lost is not None:
                return
            continue
        finished = _judged(subject, wanted, effort, layer_process, code)
        heart.say(finished)
        if finished.lost:
            return


def _forked(end: socket.socket, *arguments: Any, **named: Any) -> None:
    """Closes everything that the implementation's process inherited, except its end of the socket."""
    keep = end.fileno()
    os.closerange(3, keep)
    os.closerange(keep + 1, os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else 1024)
    live(end, *arguments, **named)


def _leave(process: Any) -> NoReturn:
    """Ends this process and the implementation's at once; no exit handlers run."""
    end_all(os.getpid())
    with contextlib.suppress(Exception):
        process.kill()
    os._exit(0)


def _introduced(layer_process: ChildProcess, name: str, loading: float) -> tuple[Subject, OwnCode] | NotLoaded:
    try:
        limit = TimeLimit(loading, lambda: layer_process.processes[1:])
        await_something(layer_process.line, limit, ends=lambda: any(map(is_stopped, layer_process.processes[1:])))
        description = answered(layer_process.line.receive(time.monotonic() + loading))
        if "unloaded" in description:
            return NotLoaded(printable(str(description["unloaded"])))
        layer_process.origin = whence(description)
        return declared(description), from_plain(description["code"])
    except Overdue:
        if any(map(is_stopped, layer_process.processes[1:])):
            return NotLoaded(f"loading {name!r}: it stopped its own process, as SIGSTOP does")
        return NotLoaded(f"loading {name!r} did not finish within {loading:.0f} s")
    except Closed:
        return NotLoaded(f"loading {name!r}: {layer_process.ending()}")
    except Exception as error:
        return NotLoaded(f"loading {name!r}: its process answered for it ({type(error).__name__})")


def _called(
    subject: Subject, wanted: FirstCalls, effort: Effort, layer_process: ChildProcess, code: OwnCode
) -> Called:
    try:
        caller = Caller(subject, effort.dtype, effort.device, layer_process)
        if wanted.absent is not None:
            layer_process.timeout = min(layer_process.timeout, _ABSENT)
            return Called(None, outcome=outcome(subject, wanted.absent, effort, layer_process))
        # before anything is compiled: what is compiled does not run again
        shared = shared_functions(caller, code, lambda: layer_process.reached(finished=True))
        reason = first_calls(caller, wanted.functions)
        called = Called(reason, None if reason is not None else shown_twice(caller), shared=shared)
        layer_process.reached(finished=True)  # what comes next belongs to a property
        return called
    except Lost as lost:
        return Called(str(lost.fault))
    except MemoryError as error:
        return Called(f"the sizes that it declares need more memory than there is: {printable(words(error))}")
    except Exception as error:  # otherwise this process would end without a word
        return Called(f"the suite itself failed: {printable(words(error))}")


def _judged(
    subject: Subject, wanted: WantedProperty | Again, effort: Effort, layer_process: ChildProcess, code: OwnCode
) -> FinishedProperty:
    """The engine's record, or one about a fault that the engine cannot see."""
    property_ = by_id(wanted.property, wanted.stated_in)
    layer_process.question = None
    explaining = Explaining(wanted.explaining if isinstance(wanted, WantedProperty) else math.inf)
    trail, aiming, trails = None, Aiming(code, partial(layer_process.reached, finished=False)), list[Trail]()

    def ran() -> Trail:
        trails.append(layer_process.reached(finished=True))
        return trails[-1]

    try:
        if isinstance(wanted, WantedProperty):
            numbers, lines = aiming if code.numbers else None, ran if code.files else None
            record = judge_property(subject, property_, effort, layer_process, numbers, explaining, lines, code)
        else:
            question = requested(wanted.question)
            if parameters := requested(wanted.parameters):
                restore_parameters(Caller(subject, effort.dtype, effort.device, layer_process), parameters)
            record = judge_again(subject, property_, question, effort.dtype, effort.device, layer_process)
        if layer_process.lost is None and (replaced := layer_process.replaced()):
            reason = f"it replaced functions that the whole process uses: {', '.join(replaced)}"
            record = replace(by_fault(unanswered(property_), Tampered(reason)), seconds=record.seconds)
        if layer_process.lost is None and effort.reads_code:
            ran()
            trail = joined(trails)
    except Lost as lost:
        record = by_fault(unanswered(property_), lost.fault)
        if layer_process.question is not None:
            dtype = property_.dtype or effort.dtype
            record = replace(
                record,
                counterexample={"case": layer_process.question.describe()},
                saved=_case_of(property_, layer_process.question, dtype, effort, subject.arrays),
            )
        return FinishedProperty(record, lost=True, around=frozenset(aiming.around))
    # the next property deserves a sound process
    lost_with_it = layer_process.lost is not None or record.cause in (OutOfMemory.cause, Tampered.cause)
    explained = 0.0 if isinstance(wanted, Again) else wanted.explaining - explaining.left
    return FinishedProperty(record, lost_with_it, trail, frozenset(aiming.around), explained)


def _case_of(property_: Property, question: Any, dtype: torch.dtype, effort: Effort, arrays: str) -> Saved | None:
    """The question as a case to save, with the calls that the reference makes on it in place of the lost process."""
    try:
        if property_.kind != "CEM implementation":  # there is no reference to ask
            packing = Packing()
            tree, word = packing.tree(question), str(dtype).removeprefix("torch.")
            return Saved(tree, word, effort.device, arrays, packing.arrays, [], within=effort.timeout)
        saved = recorded(Caller(load("reference"), dtype, effort.device), property_, question)
    except Exception:  # the verdict stands regardless
        return None
    return None if saved is None else replace(saved, kind=arrays, within=effort.timeout)

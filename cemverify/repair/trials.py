"""The process that tries edits: it imports the implementation with each in turn, and asks it a few questions.

An edited implementation may do anything, so this process may be lost with it. Then another one is started, which
continues after the edit that did this (see `search`). This process decides nothing: an edit that is offered has been
judged by every property, in the processes that always judge implementations.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.contract import Subject, load
from cemverify.conformance.implementations.edited import forget, modules_of, use
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.faults import Discard, Fault, words
from cemverify.conformance.implementations.features import WEIGHTS
from cemverify.conformance.implementations.naming import LoadError, parts
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.oracle.remembering import remembering
from cemverify.conformance.properties import Offer, Property, by_id
from cemverify.conformance.source.reading.own import own_files
from cemverify.conformance.workers.limits import die_with_parent, leave_terminal, limit
from cemverify.conformance.workers.wire import requested
from cemverify.repair.edits import Edit, Vocabulary, edits

_SCATTERED = 3  # questions of a property drawn in addition to the saved one
_SLOW = 0.5  # seconds that one question may take, once the implementation is warm
LONGEST = 10.0  # seconds that an edit may take, however long the implementation takes without it
_SLOWER = 10  # times as long as the implementation takes without it, but at least a second
_NUMBERS = 1024  # of an answer, by which edits that answer the same are recognised

VOCABULARY = Vocabulary(
    keys=tuple(WEIGHTS),
    attributes={
        "config": sorted(
            {"steps", "step_size", "temperature", "head_dim", "heads", "dim"}
            & (set(AttentionConfig.__dataclass_fields__) | set(MLPConfig.__dataclass_fields__))
        )
    },
)


@dataclass(frozen=True)
class RepairTask:
    """What a process is to try."""

    name: str  # the implementation's
    texts: Mapping[str, str]  # contents of its files before any of these edits, if they differ from the files
    # by a property's id, the smallest case that violates it, pickled as for a worker
    violated: Mapping[str, bytes]
    held: Sequence[str]  # ids of properties that hold and must still hold
    stated_in: Mapping[str, str]  # by the id of a property of the user's own, the module that states it
    effort: Effort
    # first, every: the process tries the edits number first, first + every, first + 2 every
    first: int = 0
    every: int = 1
    # whether every edit is asked every question; otherwise it is given up at its first wrong answer
    score: bool = False


@dataclass(frozen=True)
class Ready:
    """The process is about to begin."""

    questions: int  # how many questions each edit is asked
    edits: int  # how many edits there are
    files: Mapping[str, str]  # the texts that the edits change
    wrong: int  # how many of the questions are answered wrongly without any edit
    unseen: Sequence[str]  # a sentence each: which of its code cannot be read, and so not be edited


class Answer(NamedTuple):
    """An answer's first numbers, and how far roundoff may move each: (n,)."""

    numbers: NDArray[np.float64]
    budget: NDArray[np.float64]


@dataclass(frozen=True)
class Tried:
    """The result of an edit."""

    number: int
    file: str  # the absolute path of the file that it changes
    edit: Edit
    wrong: int  # how many questions it leaves wrong
    residual: float  # the sum of log(1 + margin) over the questions that it leaves wrong
    broken: bool  # whether it makes a right answer wrong
    mended: int = 0  # how many wrong answers it makes right, as far as it was asked
    # if it mends, its answer to each question of the violated properties; the others may compare exactly
    answers: tuple[Answer | None, ...] = field(default=(), repr=False, compare=False)

    @property
    def mends(self) -> bool:
        """Whether it answers every question correctly."""
        return self.wrong == 0

    def agrees(self, other: Tried) -> bool:
        """Whether no answer differs from the other edit's by more than the error budgets of both."""
        return all(
            a is b
            or (
                (a is not None and b is not None and a.numbers.shape == b.numbers.shape)
                and bool((np.abs(a.numbers - b.numbers) <= a.budget + b.budget).all())
            )
            for a, b in zip(self.answers, other.answers, strict=True)
        )


# a process's messages: why nothing can be tried, in a sentence; that it is about to begin; the number of the next
# edit; its result; and finally None, when it has tried all of its edits
Message = str | Ready | int | Tried | None


class _TooLong(BaseException):
    """An edit took too long."""


def attempt(connection: Connection, task: RepairTask, environment: Mapping[str, str]) -> None:
    """The main loop: load the implementation, choose questions, then try one edit after another."""
    leave_terminal()
    die_with_parent()
    limit(task.effort.memory)
    torch.set_num_threads(1)
    os.environ.clear()
    os.environ.update(environment)
    with contextlib.suppress(OSError), open(os.devnull, "w") as nothing:  # an edited layer may print
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    with contextlib.suppress(OSError, BrokenPipeError, EOFError), remembering():
        for message in _messages(task):
            connection.send(message)


def _messages(task: RepairTask) -> Iterator[Message]:
    module = parts(task.name)[0]
    try:
        use(task.texts)
        subject = load(task.name)
        if (jax := sys.modules.get("jax")) is not None:
            jax.config.update("jax_disable_jit", True)  # compiling each edit takes longer than asking it
        bench = _Bench.of(subject, task)
        own = own_files(module, subject)
        if not own.files:
            yield "; ".join(own.problems) or f"the source of {task.name!r} cannot be found"
            return
        # exactly as in the file, with its line ends
        judges = {getattr(sys.modules.get(name), "__file__", None) for name in task.stated_in.values()}
        paths = [file.path for file in own.files if file.path not in judges]
        texts = {path: task.texts.get(path) or Path(path).read_bytes().decode() for path in paths}
        modules = modules_of(texts)
        reached = bench.reached(texts, modules)
        offered = [
            (path, edit)
            for path, text in texts.items()
            if (lines := reached.get(path))
            for edit in edits(text, VOCABULARY, lines)
        ]
    except LoadError as error:
        yield str(error)
        return
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        yield f"the source of {task.name!r} cannot be read: {words(error)}"
        return
    if not offered:
        yield "none of the lines that ran are in its own files"
        return
    if not bench.questions:
        yield "none of the violations can be asked again in a process that tries edits"
        return
    yield Ready(len(bench.questions), len(offered), texts, bench.wrong, own.problems)
    for number in range(task.first, len(offered), task.every):
        yield number
        path, edit = offered[number]
        yield bench.tried(number, path, edit, texts, modules)
    yield None


@dataclass
class _Bench:
    """The questions that every edit is asked."""

    task: RepairTask
    # a property, its question, and whether the answer is right without an edit
    questions: Sequence[tuple[Property, Any, bool]]
    order: Sequence[int]  # the order of asking: what soonest rejects an edit that does not mend comes first
    telling: int  # how many are answered rightly without an edit, and could have been answered wrongly
    seconds: float  # for all of them, with one edit

    @classmethod
    def of(cls, subject: Subject, task: RepairTask) -> _Bench:
        """The saved cases, and a few more of the same properties and of some that hold."""
        rows: list[tuple[float, Property, Any, bool]] = []
        telling = 0
        offer = Offer(frozenset(subject.not_offered), subject if isinstance(subject, EnergyLayer) else None)
        for id_ in (*task.violated, *task.held):
            property_ = by_id(id_, task.stated_in.get(id_))
            saved = [requested(task.violated[id_])] if id_ in task.violated else []
            drawn = (property_.questions.scattered(offer, task.effort.seed + i) for i in range(_SCATTERED))
            for question in [*saved, *(q for q in drawn if q is not None)]:
                started = time.process_time()
                judgement = _judged(subject, property_, question, task)
                took = time.process_time() - started
                if judgement is not None and took < _SLOW:
                    rows.append((took, property_, question, judgement.margin <= 1))
                    telling += judgement.margin <= 1 and judgement.telling
        # those that are wrong today first, then the quickest
        order = sorted(range(len(rows)), key=lambda i: (rows[i][3], rows[i][0]))
        most = min(max(1.0, _SLOWER * sum(took for took, *_ in rows)), LONGEST)
        questions = [(property_, question, right) for _, property_, question, right in rows]
        return cls(task, questions, order, telling, most)

    @property
    def wrong(self) -> int:
        """How many are answered wrongly without an edit."""
        return sum(not right for _, _, right in self.questions)

    def reached(self, files: Mapping[str, str], modules: Sequence[str]) -> dict[str, set[int]]:
        """The lines of each of these files, by path, in which an edit may help.

        They are the lines that every wrongly answered question runs: an edit of a line that one of them does not run
        leaves its answer unchanged. If an edit need not mend everything, they are those that any of them runs.

        Args:
            modules: the names of the files' modules.
        """
        wrong = [self._run(each, question, files, modules) for each, question, right in self.questions if not right]
        together = set.union if self.task.score or self.task.texts else set.intersection
        return {path: together(*(lines.get(path, set()) for lines in wrong)) for path in files if wrong}

    def _run(
        self, property_: Property, question: Any, files: Mapping[str, str], modules: Sequence[str]
    ) -> dict[str, set[int]]:
        """The lines of each of these files, by path, that run for a question, including the making of the layer."""
        forget(modules)  # otherwise, what was traced and compiled for this question would not run again
        lines: dict[str, set[int]] = {}

        def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
            path = os.path.abspath(frame.f_code.co_filename)
            if path not in files:
                return None
            if event in ("line", "call"):
                lines.setdefault(path, set()).add(frame.f_lineno)
            return trace

        sys.settrace(trace)
        try:
            subject = load(self.task.name)
            _judged(subject, property_, question, self.task)
        finally:
            sys.settrace(None)
        return lines

    def tried(self, number: int, path: str, edit: Edit, texts: Mapping[str, str], modules: Sequence[str]) -> Tried:
        """Imports the implementation with one file edited, and asks it the questions.

        Args:
            texts: its files', by path. modules: their modules' names.
        """
        wrong, residual, broken, telling, mended = 0, 0.0, False, 0, 0
        answers: dict[int, Answer | None] = {}
        hopeless = Tried(number, path, edit, len(self.questions), math.inf, broken=True)
        try:
            with _within(self.seconds) as late:
                forget(modules)
                use({**self.task.texts, path: edit.applied(texts[path])})
                subject = load(self.task.name)
                for i in self.order:
                    property_, question, was_right = self.questions[i]
                    judgement = _judged(subject, property_, question, self.task)
                    if late:
                        return hopeless
                    if judgement is None or judgement.margin <= 1:
                        if property_.id in self.task.violated:
                            answers[i] = None if judgement is None else judgement.answer
                        telling += judgement is not None and judgement.telling
                        mended += not was_right
                        continue
                    wrong += 1
                    broken = broken or was_right
                    residual += math.log1p(min(judgement.margin, 1e300))
                    if not self.task.score:
                        break
        except (Exception, SystemExit, _TooLong):
            return hopeless
        if wrong == 0 and telling < max(1, self.telling):  # a layer that now does nothing violates nothing
            return hopeless
        done = () if wrong else tuple(answers[i] for i in sorted(answers))
        return Tried(number, path, edit, wrong, residual, broken, mended, done)


@dataclass(frozen=True)
class _Judgement:
    """What a question showed: the worst residual divided by its budget, and the answer."""

    margin: float
    telling: bool = True
    answer: Answer | None = None


def _judged(subject: Subject, property_: Property, question: Any, task: RepairTask) -> _Judgement | None:
    """What a question shows; None if it cannot be judged."""
    caller = Caller(subject, property_.dtype or task.effort.dtype, task.effort.device)
    try:
        evidence = property_.check(caller, question)
    except Discard:
        return None
    except Fault:
        return _Judgement(math.inf)
    worst = evidence.worst
    sides = [(c.got, c.budget.expand_as(c.got)) for c in evidence.comparisons]
    numbers, budget = (
        torch.cat([a.flatten() for a in side])[:_NUMBERS].double().numpy() for side in zip(*sides, strict=True)
    )
    answer = Answer(numbers, budget)
    return _Judgement(math.inf if math.isnan(worst.margin) else worst.margin, evidence.telling, answer)


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[list[bool]]:
    """Interrupts Python code that computes for longer, if the platform can; the list is empty until it does.

    It counts this process's own seconds, so a busy machine changes nothing. Whoever waits ends a process that sleeps.
    """
    late: list[bool] = []
    if not hasattr(signal, "setitimer"):
        yield late
        return

    def interrupt(*_: Any) -> None:
        late.append(True)
        raise _TooLong

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield late
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)

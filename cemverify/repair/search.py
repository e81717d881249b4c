"""The search for an edit: processes try all of them on a few questions, and what passes is judged by every property.

A run that is made for a search ends as soon as it has violated enough (see `enough`), and so does the judging of an
edit that some property refuses. Where no single edit mends everything, the best ones are taken and a second one is
sought behind each.

The time of the search is that which each process takes for itself, on a core or asleep: a busy machine tries as many
edits as a quiet one.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from typing import Any

from cemverify.conformance.implementations.origin import Place
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.ending import TO_THE_END, Ending
from cemverify.conformance.judging.events import RunFinished, SuggestedEdit
from cemverify.conformance.judging.verdicts import Record, Verdict, violations
from cemverify.conformance.properties import Property
from cemverify.conformance.questions.saving import restored
from cemverify.conformance.source.reading.own import source_lines
from cemverify.conformance.workers import isolation, nursery
from cemverify.conformance.workers.wire import request
from cemverify.processes.cores import one_thread
from cemverify.processes.time_limits import CoreBudget
from cemverify.repair.edits import KINDS, Edit
from cemverify.repair.trials import LONGEST, Ready, RepairTask, Tried, attempt

_PROPERTIES = 4  # violated properties whose cases every edit is asked
_HELD = 3  # properties that hold, and are asked too
_STARTED = 3  # single edits behind which a second one is sought
_JUDGED = 12  # different edits of which that is asked, until so many as are offered hold
_OFFERED = 4
_LOADING = 120.0  # seconds that a process may take before it has begun
# What takes long, or asks the process rather than the formula, by the beginnings and by parts of ids.
_COSTLY = ("contexts", "modes", "sizes", "precision", "rejection", "contract", "extremes")
_LARGE = ("long-rows", "/wide")


@dataclass(frozen=True)
class Repair:
    """An edit, or two, with what all properties say of the implementation that has it."""

    edits: Sequence[tuple[str, Edit]]  # each with the file whose text it changes, by absolute path
    texts: Mapping[str, str] = field(repr=False)  # of the changed files with it
    originals: Mapping[str, str] = field(repr=False)  # of all files, without it
    records: Sequence[Record] = field(repr=False)  # of the properties that were run, with it
    # more edits, which give the same answers
    alike: Sequence[Sequence[tuple[str, Edit]]] = field(default=(), repr=False)

    @property
    def violated(self) -> list[Record]:
        """The properties that are still violated, the most fundamental first."""
        return violations(self.records)

    @property
    def mends(self) -> bool:
        """Whether every property that was run holds."""
        return all(record.verdict in (Verdict.HOLDS, Verdict.NOT_OFFERED) for record in self.records)

    @property
    def holding(self) -> int:
        """The number of properties that hold with the edit."""
        return sum(record.verdict == Verdict.HOLDS for record in self.records)

    @property
    def run(self) -> int:
        """How many properties were run."""
        return sum(record.verdict != Verdict.NOT_OFFERED for record in self.records)

    @property
    def edit(self) -> SuggestedEdit:
        """The change as a diagnosis tells it: the lines of the first file that differ."""
        path = self.edits[0][0]
        before, after = source_lines(self.originals[path]), source_lines(self.texts[path])
        changed = [code for code in difflib.SequenceMatcher(None, before, after).get_opcodes() if code[0] != "equal"]
        a, b = changed[0][1], changed[-1][2]
        c, d = changed[0][3], changed[-1][4]
        place = Place(os.path.relpath(path), a + 1)
        return SuggestedEdit(place, "\n".join(before[a:b]), "\n".join(after[c:d]))

    @property
    def diff(self) -> str:
        """A unified diff of the files, by their names from the current folder."""
        lines = []
        for path, text in self.texts.items():
            name = os.path.relpath(path)
            before, after = (source_lines(each, with_ends=True) for each in (self.originals[path], text))
            lines += list(difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"))
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


@dataclass(frozen=True)
class RepairOutcome:
    """What the search came to."""

    # those that differ in what they answer, the likely ones first; complete ones before others
    repairs: Sequence[Repair] = ()
    tried: int = 0  # how many edits
    questions: int = 0  # how many each was asked
    seconds: float = 0.0  # of the whole search
    # the lines that edits change which make the violation smaller, "mylayer.py:17", the best first
    near: Sequence[str] = ()
    refusal: str | None = None  # why nothing could be tried
    cut_short: bool = False  # whether time ran out before all had been tried
    interrupted: bool = False  # whether the user ended it
    candidates: Sequence[Repair] = ()  # where it did not end: the best edits so far, not judged
    unseen: Sequence[str] = ()  # in a sentence each, which of its code cannot be read, and so not be edited


@dataclass(frozen=True)
class RepairProgress:
    """How far the search is."""

    doing: str  # "trying" single edits, "scoring" them, trying "second" edits, or "judging" one by every property
    done: int
    of: int


Listener = Callable[[RepairProgress], None]


def _is_costly(id_: str) -> bool:
    return id_.startswith(_COSTLY) or any(word in id_ for word in _LARGE)


def enough(properties: Sequence[Property]) -> Ending:
    """Ends a run once it has so many violations that a search would ask edits no more. What is costly comes last."""
    violated: list[Record] = []

    def ends(record: Record) -> bool:
        if record.verdict == Verdict.VIOLATED and record.saved is not None and not _is_costly(record.id):
            violated.append(record)
        return len(violated) == _PROPERTIES

    return Ending(ends, before={property_.id for property_ in properties if not _is_costly(property_.id)})


def search(
    name: str,
    properties: Sequence[Property],
    records: Sequence[Record],
    effort: Effort,
    *,
    seconds: float = 60.0,
    workers: int = 1,
    listener: Listener = lambda _: None,
) -> RepairOutcome:
    """Edits that mend the violations of a run.

    Args:
        name: of the implementation. properties: of the run.
        records: of the run, with the saved cases of its violations. effort: of that run.
        seconds: of each process, after which it tries no further edit. workers: processes that try edits.
    """
    started = time.monotonic()
    task = _task(name, records, effort)
    if not task.violated:
        return RepairOutcome(refusal="none of the violations has a case that can be asked again")
    run = _Run(seconds, workers, listener)
    try:
        outcome = _searched(name, properties, records, effort, task, run)
    except KeyboardInterrupt:
        outcome = RepairOutcome(tried=run.count, interrupted=True)
    candidates: list[Repair] = []
    if not outcome.repairs and (outcome.cut_short or outcome.interrupted):
        # the single edits that answered most of the wrong questions rightly, the best first
        best = [each for each in run.first if each.mends] or [each for each in run.first if each.mended]
        best.sort(key=lambda each: (-each.mended, each.residual, _unlikely([each])))
        originals = {} if run.ready is None else run.ready.files
        candidates = [Repair([(e.file, e.edit)], _texts([e], originals), originals, ()) for e in best[:_OFFERED]]
    return replace(outcome, seconds=time.monotonic() - started, candidates=candidates)


def _searched(
    name: str, properties: Sequence[Property], records: Sequence[Record], effort: Effort, task: RepairTask, run: _Run
) -> RepairOutcome:
    tried = run.all_of(task, "trying")
    if run.refusal is not None or run.ready is None:
        late = "time ran out before the implementation was loaded (--search allows more)"
        unready = late if run.cut_short else "the process that tries edits could not be started"
        return RepairOutcome(refusal=run.refusal or unready)
    originals = run.ready.files
    groups = [[each] for each in tried if each.mends]
    near: list[str] = []
    if not groups:
        scored = _better(run.all_of(replace(task, score=True), "scoring"), run.ready.wrong)
        near = list(dict.fromkeys(f"{os.path.relpath(each.file)}:{each.edit.line}" for each in scored[:20]))
        for first in scored[:_STARTED]:
            behind = replace(task, texts=_texts([first], originals))
            groups += [[first, second] for second in run.all_of(behind, "second") if second.mends]
            if groups:
                break
    repairs = _settled(name, properties, records, effort, _alike(groups), originals, run.workers, run.listener)
    unseen = run.ready.unseen
    return RepairOutcome(repairs, run.count, run.ready.questions, 0.0, near, cut_short=run.cut_short, unseen=unseen)


def _task(name: str, records: Sequence[Record], effort: Effort) -> RepairTask:
    """The cases that every edit is asked: of fundamental violations, and of properties that must go on to hold."""
    cases = [record for record in violations(records) if record.saved is not None]
    cheap = [record for record in cases if not _is_costly(record.id)] or cases
    violated = {}
    for record in cheap[:_PROPERTIES]:
        assert record.saved is not None
        violated[record.id] = request(restored(record.saved.question, record.saved.arrays))
    held = [record.id for record in records if record.verdict == Verdict.HOLDS and not _is_costly(record.id)]
    stated_in = {record.id: record.stated_in for record in records if record.stated_in is not None}
    return RepairTask(name, {}, violated, held[:_HELD], stated_in, effort)


def _better(scored: Sequence[Tried], wrong: int) -> list[Tried]:
    """The edits that leave fewer questions wrong or make the residuals smaller, and break nothing; the best first."""
    useful = [each for each in scored if not each.broken and each.wrong <= wrong]
    useful.sort(key=lambda each: (each.wrong, each.residual, KINDS.index(each.edit.kind), each.edit.line))
    if useful:
        usual = sorted(each.residual for each in useful)[len(useful) // 2]  # what an edit without effect leaves
        useful = [each for each in useful if each.wrong < wrong or each.residual < 0.9 * usual]
    return useful


def _alike(repairs: Sequence[Sequence[Tried]]) -> list[list[Sequence[Tried]]]:
    """Edits that answer the same are one group, its likeliest first; likely groups first."""
    ordered = sorted(repairs, key=_unlikely)
    groups: dict[Any, list[Sequence[Tried]]] = {}
    for edits in ordered:
        groups.setdefault(edits[-1].answers, []).append(edits)
    return list(groups.values())


def _unlikely(edits: Sequence[Tried]) -> tuple[int, ...]:
    """What makes an edit less likely than another: its kind, and how many characters it changes."""
    last = edits[-1].edit
    size = max(len(last.before), len(last.after)) + abs(len(last.before) - len(last.after))
    return (sum(KINDS.index(each.edit.kind) for each in edits), size, last.line)


def _texts(edits: Sequence[Tried], originals: Mapping[str, str]) -> dict[str, str]:
    """The texts of the files that the edits change, one edit after the other."""
    texts: dict[str, str] = {}
    for each in edits:
        texts[each.file] = each.edit.applied(texts.get(each.file, originals[each.file]))
    return texts


def _settled(
    name: str,
    properties: Sequence[Property],
    records: Sequence[Record],
    effort: Effort,
    groups: Sequence[Sequence[Sequence[Tried]]],
    originals: Mapping[str, str],
    workers: int,
    listener: Listener,
) -> list[Repair]:
    """The repairs with which every property holds; if there is none, the likeliest edit with what is still violated.

    What was violated is asked first, and the first refusal is enough where another edit may hold.
    """
    wrong = {record.id for record in records if record.verdict == Verdict.VIOLATED}
    whole: list[Repair] = []
    for i, group in enumerate(groups[:_JUDGED]):
        listener(RepairProgress("judging", i, min(len(groups), _JUDGED)))
        repair = _judged(
            name,
            properties,
            effort,
            group,
            originals,
            workers,
            Ending(lambda record: record.verdict not in (Verdict.HOLDS, Verdict.NOT_OFFERED), before=wrong),
        )
        whole += [repair] if repair.mends else []
        if len(whole) == _OFFERED:
            break
    if whole or not groups:
        return whole
    return [_judged(name, properties, effort, groups[0], originals, workers, TO_THE_END)]


def _judged(
    name: str,
    properties: Sequence[Property],
    effort: Effort,
    group: Sequence[Sequence[Tried]],
    originals: Mapping[str, str],
    workers: int,
    ending: Ending,
) -> Repair:
    """The likeliest edit of a group with what every property says of it, or those that were asked until the end."""
    best = group[0]
    texts = _texts(best, originals)
    after: Sequence[Record] = ()
    for event in isolation.run(name, properties, replace(effort, shrink=False, edited=texts), workers, ending=ending):
        if isinstance(event, RunFinished):
            after = event.records
    chains = [[(each.file, each.edit) for each in edits] for edits in group]
    return Repair(chains[0], texts, originals, after, chains[1:])


# --- processes that try edits -------------------------------------------------------------------------------


@dataclass
class _Run:
    """The processes of one search."""

    seconds: float  # that each may take
    workers: int
    listener: Listener
    ready: Ready | None = None
    refusal: str | None = None
    count: int = 0
    spent: float = 0.0  # what the one that took most has taken so far
    cut_short: bool = False
    first: list[Tried] = field(default_factory=list)  # what has come of single edits so far

    def all_of(self, task: RepairTask, doing: str) -> list[Tried]:
        """What came of every edit, in their order."""
        left = self.seconds - self.spent
        if left <= 0:
            self.cut_short = True
            return []
        crew = [_Trier(replace(task, first=i, every=self.workers), left) for i in range(self.workers)]
        tried: list[Tried] = []
        try:
            while any(trier.alive for trier in crew):
                for trier in crew:
                    if trier.alive and trier.spent > left:
                        self.cut_short = True
                        trier.end()
                    for message in trier.heard():
                        if isinstance(message, str):
                            self.refusal = message
                            return []
                        if isinstance(message, Ready) and self.ready is None:
                            self.ready = message
                        if isinstance(message, Tried):
                            tried.append(message)
                            self.first += [message] if doing == "trying" else []
                            self.count += 1
                            if trier.ready is not None and self.count % 20 == 0:
                                self.listener(RepairProgress(doing, len(tried), trier.ready.edits))
                wait([trier.connection for trier in crew if trier.alive], timeout=0.1)
        finally:
            for trier in crew:
                trier.end()
            self.spent += max(trier.spent for trier in crew)
        return sorted(tried, key=lambda each: each.number)


class _Trier:
    """A process that tries edits. One that is lost is replaced, and goes on behind the edit that it was at.

    Args:
        seconds: that it may take for itself.
    """

    def __init__(self, task: RepairTask, seconds: float) -> None:
        self.task, self.seconds = task, seconds
        self.spent = 0.0  # what it has taken, as far as that was looked at
        self.ready: Ready | None = None
        self.losses = 0
        self._start()

    def _start(self) -> None:
        with one_thread():
            self.process, self.connection = nursery.start(attempt, self.task, dict(os.environ))
        self.alive = True
        self.at: int | None = None
        self.before = self.since = self.spent
        self.budget = CoreBudget(self.seconds, lambda: [self.process.pid or 0])

    def heard(self) -> Iterator[Ready | str | Tried]:
        """What it has said since, without waiting."""
        if self.alive and self.process.is_alive():  # of one that is gone nobody can tell
            self.spent = self.before + self.budget.spent()
        try:
            while self.alive and self.connection.poll():
                message = self.connection.recv()
                self.since = self.spent
                if message is None:
                    self.end()
                elif isinstance(message, int):
                    self.at = message
                else:
                    if isinstance(message, Ready):
                        self.ready = message
                    yield message
        except (EOFError, OSError):
            yield from self._lost()
        if self.alive and self.spent - self.since > (_LOADING if self.at is None else 3 * LONGEST):
            yield from self._lost()

    def _lost(self) -> Iterator[str]:
        at = self.at
        self.end()
        self.losses += 1
        if at is None:
            yield "the process that tries edits ended while it loaded the implementation"
        elif self.losses < 20:
            self.task = replace(self.task, first=at + self.task.every)
            self._start()

    def end(self) -> None:
        """Ends the process; a second time does nothing."""
        self.alive = False
        nursery.end(self.process, self.connection)

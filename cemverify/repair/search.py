"""The search for an edit: processes try all of them on a few questions, and every property judges those that pass.

A run made for a search ends once it has found enough violations (see `enough`), and the judging of an edit ends once
a property refuses it. If no single edit mends everything, second edits are tried on top of the
best ones.

The time of the search is what each process itself uses, on a core or asleep: a busy machine tries as many
edits as an idle one.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait

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

_PROPERTIES = 4  # violated properties whose cases every edit is tried on
_HELD = 3  # properties that hold, and are tried too
_STARTED = 3  # first edits on top of which a second is tried
_JUDGED = 12  # most different edits to judge until enough hold
_OFFERED = 4
_LOADING = 120.0  # seconds that a process may take to load
# Questions that are slow, or about the process rather than the formula, by the beginnings and by parts of ids.
_COSTLY = ("contexts", "modes", "sizes", "precision", "rejection", "contract", "extremes")
_LARGE = ("long-rows", "/wide")


@dataclass(frozen=True)
class Repair:
    """An edit, or two, with what all properties show of the implementation that has it."""

    edits: Sequence[tuple[str, Edit]]  # each with the absolute path of the file that it changes
    texts: Mapping[str, str] = field(repr=False)  # the changed files, with the edit
    originals: Mapping[str, str] = field(repr=False)  # all files, without it
    records: Sequence[Record] = field(repr=False)  # the properties that were run, with it
    # other edits that give the same answers
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
        """The change as a diagnosis shows it: the lines of the first file that differ."""
        path = self.edits[0][0]
        before, after = source_lines(self.originals[path]), source_lines(self.texts[path])
        changed = [code for code in difflib.SequenceMatcher(None, before, after).get_opcodes() if code[0] != "equal"]
        a, b = changed[0][1], changed[-1][2]
        c, d = changed[0][3], changed[-1][4]
        place = Place(os.path.relpath(path), a + 1)
        return SuggestedEdit(place, "\n".join(before[a:b]), "\n".join(after[c:d]))

    @property
    def diff(self) -> str:
        """A unified diff of the files, named relative to the current folder."""
        lines = []
        for path, text in self.texts.items():
            name = os.path.relpath(path)
            before, after = (source_lines(each, with_ends=True) for each in (self.originals[path], text))
            lines += list(difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"))
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


@dataclass(frozen=True)
class RepairOutcome:
    """The outcome of a search."""

    # edits that differ in their answers, the likeliest first; complete ones before others
    repairs: Sequence[Repair] = ()
    tried: int = 0  # how many edits were tried
    questions: int = 0  # how many questions each was asked
    seconds: float = 0.0  # the whole search's
    # lines whose edits make the violation smaller, "mylayer.py:17", the best first
    near: Sequence[str] = ()
    refusal: str | None = None  # why nothing could be tried
    declare: str | None = None  # if nothing was tried because the code may be right: what to declare
    cut_short: bool = False  # whether time ran out before all had been tried
    interrupted: bool = False  # whether the user ended it
    candidates: Sequence[Repair] = ()  # if it did not end: the best edits so far, not judged
    unseen: Sequence[str] = ()  # a sentence each: which of its code cannot be read, and so not be edited


@dataclass(frozen=True)
class RepairProgress:
    """How far the search has come."""

    doing: str  # "trying" single edits, "scoring" them, trying "second" edits, or "judging" one by every property
    done: int
    of: int


Listener = Callable[[RepairProgress], None]


def _is_costly(id_: str) -> bool:
    return id_.startswith(_COSTLY) or any(word in id_ for word in _LARGE)


def enough(properties: Sequence[Property]) -> Ending:
    """Ends a run once it has as many violations as a search asks edits about. Costly properties come last."""
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
        name: the implementation's. properties: the run's.
        records: the run's, with the saved cases of its violations. effort: that run's.
        seconds: for each process, after which it tries no further edit. workers: processes that try edits.
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
    near = outcome.near
    if not outcome.repairs and (outcome.cut_short or outcome.interrupted):
        # the single edits that mended most questions, the best first; one that leaves some wrong is only a hint
        best = [each for each in run.first if each.mended]
        best.sort(key=lambda each: (not each.mends, -each.mended, each.residual, _unlikely([each])))
        whole, originals = [each for each in best if each.mends], {} if run.ready is None else run.ready.files
        candidates = [Repair([(e.file, e.edit)], _texts([e], originals), originals, ()) for e in whole[:_OFFERED]]
        near = near or _lines(best)
    return replace(outcome, seconds=time.monotonic() - started, candidates=candidates, near=near)


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
        near = _lines(scored)
        for first in scored[:_STARTED]:
            behind = replace(task, texts=_texts([first], originals))
            groups += [[first, second] for second in run.all_of(behind, "second") if second.mends]
            if groups:
                break
    repairs = _settled(name, properties, records, effort, _alike(groups), originals, run.workers, run.listener)
    unseen = run.ready.unseen
    return RepairOutcome(repairs, run.count, run.ready.questions, 0.0, near, cut_short=run.cut_short, unseen=unseen)


def _task(name: str, records: Sequence[Record], effort: Effort) -> RepairTask:
    """The cases that every edit is asked: of fundamental violations, and of properties that must still hold."""
    cases = [record for record in violations(records) if record.saved is not None]
    cheap = [record for record in cases if not _is_costly(record.id)] or cases
    violated = {}
    for record in cheap[:_PROPERTIES]:
        assert record.saved is not None
        violated[record.id] = request(restored(record.saved.question, record.saved.arrays))
    held = [record.id for record in records if record.verdict == Verdict.HOLDS and not _is_costly(record.id)]
    stated_in = {record.id: record.stated_in for record in records if record.stated_in is not None}
    return RepairTask(name, {}, violated, held[:_HELD], stated_in, effort)


def _lines(tried: Sequence[Tried]) -> list[str]:
    """Where the first of these edits are, "mylayer.py:17"."""
    return list(dict.fromkeys(f"{os.path.relpath(each.file)}:{each.edit.line}" for each in tried[:20]))


def _better(scored: Sequence[Tried], wrong: int) -> list[Tried]:
    """The edits that leave fewer questions wrong or smaller residuals, and break nothing; the best first."""
    useful = [each for each in scored if not each.broken and each.wrong <= wrong]
    useful.sort(key=lambda each: (each.wrong, each.residual, KINDS.index(each.edit.kind), each.edit.line))
    if useful:
        usual = sorted(each.residual for each in useful)[len(useful) // 2]  # the residual of an edit without effect
        useful = [each for each in useful if each.wrong < wrong or each.residual < 0.9 * usual]
    return useful


def _alike(repairs: Sequence[Sequence[Tried]]) -> list[list[Sequence[Tried]]]:
    """Groups of edits that answer the same, the one that leaves the shortest code first; likely groups first."""
    groups: list[list[Sequence[Tried]]] = []
    for edits in sorted(repairs, key=_unlikely):
        same = (group for group in groups if group[0][-1].agrees(edits[-1]))
        if (group := next(same, None)) is None:
            groups.append(group := [])
        group.append(edits)
    return [sorted(group, key=lambda edits: (_growth(edits), _unlikely(edits))) for group in groups]


def _unlikely(edits: Sequence[Tried]) -> tuple[int, ...]:
    """What makes an edit less likely than another: its kind, and how many characters it changes."""
    last = edits[-1].edit
    size = max(len(last.before), len(last.after)) + abs(len(last.before) - len(last.after))
    return (sum(KINDS.index(each.edit.kind) for each in edits), size, last.line)


def _growth(edits: Sequence[Tried]) -> int:
    """How many characters the edits add."""
    return sum(len(each.edit.after) - len(each.edit.before) for each in edits)


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

    Violated properties are tested first, and one refusal is enough if another edit may hold.
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
    """A group's likeliest edit, with the records of every property, or of those tested before the end."""
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

    seconds: float  # for each of them
    workers: int
    listener: Listener
    ready: Ready | None = None
    refusal: str | None = None
    count: int = 0
    spent: float = 0.0  # the most that any one of them has used so far
    cut_short: bool = False
    first: list[Tried] = field(default_factory=list)  # the results of single edits so far

    def all_of(self, task: RepairTask, doing: str) -> list[Tried]:
        """The results of all edits, in their order."""
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
    """A process that tries edits. If it is lost, another one continues after the edit that it was at.

    Args:
        seconds: how much it may use itself.
    """

    def __init__(self, task: RepairTask, seconds: float) -> None:
        self.task, self.seconds = task, seconds
        self.spent = 0.0  # what it had used when last checked
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
        """Its messages since the last call, without waiting."""
        if self.alive and self.process.is_alive():  # if it is gone, nobody can tell
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
        """Ends the process; repeating it does nothing."""
        self.alive = False
        nursery.end(self.process, self.connection)

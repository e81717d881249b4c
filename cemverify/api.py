"""The verifier as a library: `check_implementation(obj)`, and a decorator for other people's test suites."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from cemverify.catalogue.versions import check_version
from cemverify.conformance.counterexamples.files import save_all
from cemverify.conformance.gate import known_violations
from cemverify.conformance.gate.known_violations import KnownViolation, read_known, settle
from cemverify.conformance.implementations.contract import Subject, as_subject, kind_of, load
from cemverify.conformance.implementations.origin import origin_of
from cemverify.conformance.judging.diagnosis import Diagnosis, diagnose
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.ending import TO_THE_END, Ending
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.offered import applicable, not_offered
from cemverify.conformance.judging.run import run as run_here
from cemverify.conformance.judging.verdicts import Record, Verdict, pin, violations
from cemverify.conformance.listeners import terminal
from cemverify.conformance.listeners.diagnosis import failure
from cemverify.conformance.listeners.terminal import too_new
from cemverify.conformance.properties import Property, own_properties, select
from cemverify.conformance.workers import isolation
from cemverify.console.errors import Refusal
from cemverify.processes.cores import as_a_worker, cores
from cemverify.processes.devices import check_device
from cemverify.results.envelope import ResultError
from cemverify.results.provenance import Maker


def check_implementation(
    implementation: Any,
    *,
    properties: Sequence[str] = (),
    properties_from: Sequence[str | Path] = (),
    examples: int = 60,
    seed: int = 0,
    device: str = "cpu",
    timeout: float = 20.0,
    catalogue: str | None = None,
    first: bool = False,
) -> Results:
    """Tests an implementation and returns one record per property, in catalogue order.

    `print` shows the results as the report of the run, and one record as its case.

    Args:
        implementation: one, or an object with its functions as attributes: it runs in this process. Or a name,
            "module:attribute": it runs in worker processes, where it may hang or crash.
        properties: ids, prefixes or patterns; all properties if empty.
        properties_from: files or modules with properties of your own, which are tested too (see `layer_property`).
        examples, seed, device: as for `cemverify check`.
        timeout: seconds after which a call counts as hung; used only if `implementation` is a name.
        catalogue: a version of the catalogue, "2026.11"; records of properties that came later have `newer_than`
            set.
        first: end at the first violation; `Results.finished.unasked` has the ids of the properties not tested.

    Raises:
        LoadError: the implementation is invalid or cannot be loaded, or a file of properties cannot be loaded.
        ValueError: a pattern matches nothing, or examples is less than 1.
        UsageError: this installation does not know the catalogue.
    """
    pinned = None if catalogue is None else check_version(catalogue)
    effort = Effort(examples, seed, timeout=timeout, device=device)
    chosen = select(properties, own_properties(properties_from))

    def fails(record: Record) -> bool:
        return bool(violations(pin([record], pinned)))

    ending = Ending(fails) if first else TO_THE_END
    if isinstance(implementation, str):
        events = isolation.run(implementation, chosen, effort, workers=cores(), ending=ending)
    else:
        events = run_here(as_subject(implementation), type(implementation).__name__, chosen, effort, ending)
    with as_a_worker():
        *_, end = events
    assert isinstance(end, RunFinished)
    return Results(replace(end, records=pin(end.records, pinned)))


class Results(list[Record]):
    """The records of a run, in catalogue order; `print` shows them as its report.

    Attributes:
        finished: the run. diagnosis: why something is violated; None if nothing is.
    """

    def __init__(self, finished: RunFinished) -> None:
        super().__init__(finished.records)
        self.finished = finished

    @property
    def diagnosis(self) -> Diagnosis | None:
        """Violations grouped by cause, the most fundamental first."""
        return diagnose(self.finished)

    def __repr__(self) -> str:
        diagnosis = self.diagnosis
        summary = diagnosis.sentence if diagnosis is not None else terminal.holding(self)
        return f"Results({self.finished.implementation}: {summary})"

    def __str__(self) -> str:
        return terminal.report(self.finished)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


@contextmanager
def _in_a_sentence() -> Iterator[None]:
    """Turns a refusal into an error that pytest prints without a traceback, and once for all xdist workers."""
    import pytest

    try:
        yield
    except (Refusal, ValueError) as error:
        kind = type(error) if isinstance(error, Refusal) else ValueError
        raise type(kind.__name__, (kind, pytest.Collector.CollectError), {})(str(error)) from None


@_in_a_sentence()
def parametrize_with_properties(
    implementation: Any,
    *,
    properties: Sequence[str] = (),
    properties_from: Sequence[str | Path] = (),
    examples: int = 60,
    seed: int = 0,
    device: str = "cpu",
    known: str | Path | None = None,
    catalogue: str | None = None,
    save_counterexamples: str | Path | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Turns a pytest function into one test per property:

        @parametrize_with_properties(my_implementation)
        def test_cem(check): check()

    A violation fails with the smallest counterexample, the place and the command that repeats it. If several have
    one cause, only the first in a process prints all of this. A property that could not be judged fails too;
    `pytest -x` ends at the first failure.
    A property that needs an absent feature is skipped with its reason. A known violation is an expected failure
    (xfail) with its reason, and so is a violation of a property that is newer than the pinned catalogue.
    An entry that has expired, or whose property holds again, fails.

    Args:
        implementation: as for `check_implementation`, but it always runs in the process of the test.
        properties, properties_from, examples, seed, device: as for `cemverify check`.
        known: a file of known violations; `implementation` must then be a name, as in the file.
        catalogue: the version of the catalogue to enforce, "2026.11"; None enforces every property.
        save_counterexamples: a folder, as for `cemverify check`; `implementation` must then be a name.

    Raises:
        LoadError: the implementation is invalid or cannot be loaded, or a file of properties cannot be loaded.
        ValueError: a pattern matches nothing, the file of known violations is invalid, or a name is needed.
        ResultError: that file cannot be read. UsageError: this installation does not know the catalogue.
    """
    import pytest

    pinned = None if catalogue is None else check_version(catalogue)
    name = implementation if isinstance(implementation, str) else ""
    if known is not None and not name:
        raise ValueError('known violations are listed by name: give the implementation as "module:attribute"')
    if save_counterexamples is not None and not name:
        raise ValueError('a saved case names its implementation: give it as "module:attribute"')
    subject = load(name) if name else as_subject(implementation)
    check_device(device)
    effort = Effort(examples, seed, device=device)
    chosen = applicable(kind_of(subject), select(properties, own_properties(properties_from)))
    excuses = None
    if known is not None:
        command = ["cemverify", "check", name, *effort.options, "--known", str(known), "--update-known"]
        excuses = Excuses(name, Path(known), read_known(Path(known), f'`{shlex.join(command)} --reason "..."`'))
    folder = None if save_counterexamples is None else Path(save_counterexamples)
    tested = UnderTest(subject, effort, name, excuses, pinned, folder)
    checks = [pytest.param(Check(p, tested), id=p.id) for p in chosen]
    return pytest.mark.parametrize("check", checks)


@dataclass(frozen=True)
class Excuses:
    """A file of known violations, and the implementation's name in it."""

    name: str
    path: Path
    entries: Sequence[KnownViolation]

    def settle(self, record: Record) -> Record:
        """Returns the record, marked if its violation is known. Fails the test if an entry about it is stale."""
        import pytest

        about = [entry for entry in self.entries if entry.property == record.id]
        (record,), settled = settle(self.name, [record], about, str(self.path), known_violations.today())
        for outcome in settled.outcomes:
            if outcome.stale:
                pytest.fail(f"{self.path}: {outcome.sentence}", pytrace=False)
        return record


@dataclass(frozen=True)
class UnderTest:
    """What the tests of one implementation share in a process."""

    subject: Subject
    effort: Effort
    name: str = ""  # empty if it is an object
    excuses: Excuses | None = None
    pinned: str | None = None
    folder: Path | None = None  # for counterexamples
    violated: dict[str, Record] = field(default_factory=dict)  # what has failed in this process, by id

    def failure(self, record: Record) -> str:
        """What the test of a violated property prints; its case is saved."""
        self.violated[record.id] = record
        options = self.effort.options if self.name else None
        records = list(self.violated.values())
        event = RunFinished(self.name, records, 0.0, origin_of(self.subject), options=options)
        saved = ""
        if self.folder is not None:
            maker = Maker.now("pytest", {"examples": self.effort.examples}, self.effort.seed, self.effort.device)
            try:
                files = save_all(replace(event, records=[record]), self.folder, maker)
                saved = "".join(shlex.join(["cemverify", "replay", str(file)]) for file in files)
            except ResultError as error:
                saved = f"no, {error}"
        return failure(event, record, saved)


@dataclass(frozen=True)
class Check:
    """One property of one implementation, to be called in a pytest function."""

    property: Property
    tested: UnderTest

    def __repr__(self) -> str:
        return f"Check({self.property.id!r})"

    def __call__(self) -> Record:
        """Returns the record if the property holds; otherwise fails or skips the test."""
        import pytest

        tested = self.tested
        absent = not_offered(self.property, tested.subject.not_offered, tested.effort.dtype)
        with as_a_worker():
            judged = absent or judge_property(tested.subject, self.property, tested.effort)
        (record,) = pin([judged], tested.pinned)
        if tested.excuses is not None:
            record = tested.excuses.settle(record)
        if record.verdict == Verdict.NOT_OFFERED:
            pytest.skip(f"not offered: {record.reason}")
        if record.known is not None:
            pytest.xfail(f"known violation, accepted: {record.known}")
        if record.not_enforced:
            pytest.xfail(f"{record.verdict}, but {too_new(record)}")
        if record.verdict == Verdict.VIOLATED:
            pytest.fail(tested.failure(record), pytrace=False)
        if record.verdict != Verdict.HOLDS:
            command = ["cemverify", "check", tested.name, *record.options, *tested.effort.options]
            again = f"\nagain: {shlex.join(command)}" if tested.name else ""
            pytest.fail(f"{record.verdict}: {record.id}: {record.reason}{again}", pytrace=False)
        return record

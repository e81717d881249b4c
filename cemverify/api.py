"""The verifier as a library: `check_implementation(obj)`, and a decorator for other people's test suites."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from cemverify.catalogue.versions import check_version
from cemverify.conformance.gate import known_violations
from cemverify.conformance.gate.known_violations import KnownViolation, read_known, settle
from cemverify.conformance.implementations.contract import Subject, as_subject, kind_of, load
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.judging import engine
from cemverify.conformance.judging.diagnosis import Diagnosis, diagnose
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.ending import TO_THE_END, Ending
from cemverify.conformance.judging.engine import applicable, judge_property, not_offered
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict, headline, pin, violation, violations
from cemverify.conformance.listeners import terminal
from cemverify.conformance.listeners.terminal import too_new
from cemverify.conformance.properties import Property, own_properties, select
from cemverify.conformance.workers import isolation
from cemverify.processes.cores import as_a_worker, cores
from cemverify.processes.devices import check_device


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

    Print the results for the report of a run, or one of the records for its case.

    Args:
        implementation: one, or an object with its functions as attributes, which runs in this process; or a
            "module:attribute" name, which runs in worker processes, where it may hang or crash.
        properties: ids, prefixes or patterns; all properties if empty.
        properties_from: files or modules with properties of your own, which are tested too (see `layer_property`).
        examples, seed, device: as for `cemverify check`.
        timeout: seconds after which a call counts as hung; used for a name only.
        catalogue: a version of the catalogue, "2026.11"; records of properties that came later are marked by
            `newer_than`.
        first: end at the first violation; `Results.finished.unasked` has the ids of what was not asked.

    Raises:
        LoadError: it is not an implementation, or cannot be loaded; or a file of properties cannot.
        ValueError: a pattern matches nothing, or examples is less than 1.
        UsageError: there is no such catalogue here.
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
        events = engine.run(as_subject(implementation), type(implementation).__name__, chosen, effort, ending)
    with as_a_worker():
        *_, end = events
    assert isinstance(end, RunFinished)
    return Results(replace(end, records=pin(end.records, pinned)))


class Results(list[Record]):
    """The records of a run, in catalogue order; printed, they are its report.

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
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Turns a pytest function into one test per property:

        @parametrize_with_properties(my_implementation)
        def test_cem(check): check()

    A violation fails with the smallest counterexample, and a property that could not be judged fails too; `pytest -x`
    ends at the first of them. A feature that is declared absent skips with its reason. A known violation is an
    expected failure (xfail) with its reason, and so is a violation of a property that is newer than the pinned
    catalogue.
    An entry that has expired, or whose property holds again, fails.

    Args:
        implementation: as for `check_implementation`; it always runs in the process of the test.
        properties, properties_from, examples, seed, device: as for `cemverify check`.
        known: a file of known violations; `implementation` must then be a name, as in the file.
        catalogue: the version of the catalogue to enforce, "2026.11"; all of it if None.

    Raises:
        LoadError: it is not an implementation, or cannot be loaded; or a file of properties cannot.
        ValueError: a pattern matches nothing, or the file of known violations is invalid.
        ResultError: that file cannot be read. UsageError: there is no such catalogue here.
    """
    import pytest

    pinned = None if catalogue is None else check_version(catalogue)

    try:
        subject = load(implementation) if isinstance(implementation, str) else as_subject(implementation)
    except LoadError as error:
        raise LoadError(str(error)) from None
    check_device(device)
    effort = Effort(examples, seed, device=device)
    chosen = applicable(kind_of(subject), select(properties, own_properties(properties_from)))
    excuses = None
    if known is not None:
        if not isinstance(implementation, str):
            raise ValueError('known violations are listed by name: give the implementation as "module:attribute"')
        excuses = Excuses(implementation, Path(known), read_known(Path(known)))
    checks = [pytest.param(Check(subject, p, effort, excuses, pinned), id=p.id) for p in chosen]
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


class Check:
    """One property of one implementation, to be called in a pytest function."""

    def __init__(
        self,
        subject: Subject,
        property_: Property,
        effort: Effort,
        excuses: Excuses | None = None,
        pinned: str | None = None,
    ) -> None:
        self.subject = subject
        self.property = property_
        self.effort = effort
        self.excuses = excuses
        self.pinned = pinned

    def __repr__(self) -> str:
        return f"Check({self.property.id!r})"

    def __call__(self) -> Record:
        """Returns the record if the property holds; otherwise fails or skips the test."""
        import pytest

        absent = not_offered(self.property, self.subject.not_offered, self.effort.dtype)
        with as_a_worker():
            judged = absent or judge_property(self.subject, self.property, self.effort)
        (record,) = pin([judged], self.pinned)
        if self.excuses is not None:
            record = self.excuses.settle(record)
        if record.verdict == Verdict.NOT_OFFERED:
            pytest.skip(f"not offered: {record.reason}")
        if record.known is not None:
            pytest.xfail(f"known violation, accepted: {record.known}")
        if record.not_enforced:
            pytest.xfail(f"{record.verdict}, but {too_new(record)}")
        if record.verdict == Verdict.VIOLATED:
            pytest.fail(f"{headline(record)}\n{violation(record)}", pytrace=False)
        if record.verdict != Verdict.HOLDS:
            pytest.fail(f"{record.verdict}: {record.id}: {record.reason}", pytrace=False)
        return record

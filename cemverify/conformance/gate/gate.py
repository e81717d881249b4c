"""What a run is compared with, besides being tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from cemverify._version import VERSION
from cemverify.conformance.gate.accepting import Acceptance, update_known
from cemverify.conformance.gate.baselines import Baseline, BaselineComparison, compare
from cemverify.conformance.gate.known_violations import KnownViolation, Settled, read_known, settle
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, pin, violations


@dataclass(frozen=True)
class Gate:
    """What a run is compared with; read before the run, so that a bad file costs none."""

    implementation: str  # the implementation's name
    pinned: str | None  # the version of the catalogue that is enforced; None enforces all of it
    today: date  # entries expire after their last day
    known_file: Path | None  # see `known_violations`
    entries: Sequence[KnownViolation]  # what that file holds
    acceptance: Acceptance | None  # given if violations are to be accepted
    baseline: Baseline | None  # the stored run
    strict: bool  # whether a regression fails

    def fails(self, record: Record) -> bool:
        """Whether the record is a violation that fails the run: neither known nor too new."""
        return bool(violations([self.marked(record)]))

    def marked(self, record: Record) -> Record:
        """The record, marked if it is known or too new to be enforced."""
        (marked,), _ = settle(self.implementation, pin([record], self.pinned), self.entries, "", self.today)
        return marked

    def accepting(self, finished: RunFinished) -> Gate:
        """The gate after the run's violations were written to the file of known ones, if they are to be accepted.

        Raises:
            ValueError: the file has become invalid. ResultError: it cannot be written.
        """
        if self.known_file is None or self.acceptance is None:
            return self
        enforced = [record for record in pin(finished.records, self.pinned) if record.newer_than is None]
        update_known(self.known_file, self.implementation, enforced, self.acceptance, self.today)
        return replace(self, entries=read_known(self.known_file) if self.known_file.exists() else ())

    def measure(
        self, finished: RunFinished, properties: Sequence[str]
    ) -> tuple[RunFinished, Settled | None, BaselineComparison | None]:
        """The run, with marks on what is known or not enforced; the entries; and the comparison with the baseline.

        Args:
            properties: the patterns that selected properties.
        """
        settled = compared = None
        finished = replace(finished, records=pin(finished.records, self.pinned))
        if self.known_file is not None:
            records, settled = settle(
                self.implementation, finished.records, self.entries, str(self.known_file), self.today
            )
            finished = replace(finished, records=records)
        if self.baseline is not None:
            differences = compare(self.baseline, finished.records, properties, VERSION, finished.unasked)
            compared = BaselineComparison(self.baseline.path, differences, self.strict)
        return finished, settled, compared

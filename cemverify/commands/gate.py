"""What `cemverify check` compares a run with besides the properties: known violations and a baseline."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from cemverify._version import VERSION
from cemverify.catalogue import versions
from cemverify.conformance.gate import known_violations
from cemverify.conformance.gate.accepting import Acceptance, update_known
from cemverify.conformance.gate.baselines import (
    Baseline,
    Compared,
    Conditions,
    check_comparable,
    compare,
    read_baseline,
)
from cemverify.conformance.gate.known_violations import KnownViolation, Settled, read_known, settle
from cemverify.conformance.gate.pinning import pin
from cemverify.conformance.judging.events import RunFinished
from cemverify.options.gate import ACCEPTED_FOR
from cemverify.results.envelope import check_outputs


@dataclass(frozen=True)
class Gate:
    """What a run is measured against; read before the work, so that a bad file costs no run.

    Attributes:
        implementation: its name.
        pinned: the version of the catalogue that is enforced; None enforces all of it.
        today: entries expire after their day.
        known: the file. entries: what it holds. acceptance: if it is to be written.
        baseline: the stored run. strict: whether a regression fails.
    """

    implementation: str
    pinned: str | None
    today: date
    known: Path | None
    entries: Sequence[KnownViolation]
    acceptance: Acceptance | None
    baseline: Baseline | None
    strict: bool

    def measure(
        self, finished: RunFinished, properties: Sequence[str]
    ) -> tuple[RunFinished, Settled | None, Compared | None]:
        """The run with marks on what is not enforced and on what is known; the entries; and how it compares.

        Args:
            properties: the patterns that were asked about.
        """
        settled = compared = None
        finished = replace(finished, records=pin(finished.records, self.pinned))
        if self.known is not None:
            entries = self.entries
            if self.acceptance is not None:
                enforced = [record for record in finished.records if record.newer_than is None]
                update_known(self.known, self.implementation, enforced, self.acceptance, self.today)
                entries = read_known(self.known) if self.known.exists() else ()
            records, settled = settle(self.implementation, finished.records, entries, str(self.known), self.today)
            finished = replace(finished, records=records)
        if self.baseline is not None:
            differences = compare(self.baseline, finished.records, properties, VERSION)
            compared = Compared(self.baseline.path, differences, self.strict)
        return finished, settled, compared


def read_gate(options: argparse.Namespace) -> Gate:
    """The gate that the options name.

    Raises:
        ValueError: options that do not go together, a bad file, or a baseline that does not compare.
        ResultError: a file cannot be read, or will not be writable.
    """
    pinned = None if options.catalogue is None else versions.check_version(options.catalogue)
    today = known_violations.today()
    acceptance = _acceptance(options, today)
    entries: Sequence[KnownViolation] = ()
    if acceptance is not None:
        check_outputs(options.known)
    if options.known is not None and (acceptance is None or options.known.exists()):
        entries = read_known(options.known)
    if options.on_regression and options.baseline is None:
        raise ValueError("--on-regression needs --baseline FILE, the result to compare with")
    baseline = None
    if options.baseline is not None:
        baseline = read_baseline(options.baseline)
        device = options.device.partition(":")[0]
        now = Conditions(options.implementation, options.dtype, device, options.examples, options.seed)
        check_comparable(baseline, now)
    strict = options.on_regression == "fail"
    return Gate(options.implementation, pinned, today, options.known, entries, acceptance, baseline, strict)


def _acceptance(options: argparse.Namespace, today: date) -> Acceptance | None:
    if not options.update_known:
        if options.reason is not None or options.expires is not None:
            raise ValueError("--reason and --expires have an effect only with --update-known")
        return None
    if options.known is None:
        raise ValueError("--update-known needs --known FILE, the file to write")
    if not (options.reason or "").strip():
        raise ValueError('--update-known needs --reason "...": why these violations are accepted')
    expires = options.expires or today + ACCEPTED_FOR
    if expires < today:
        raise ValueError(f"--expires {expires} is in the past; give {today} or a later date")
    return Acceptance(options.reason.strip(), expires)

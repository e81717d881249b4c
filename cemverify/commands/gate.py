"""What `cemverify check` compares a run with, besides testing it: known violations and a baseline."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING

from cemverify.catalogue import versions
from cemverify.commands import completers
from cemverify.console.parsing import path

if TYPE_CHECKING:
    from cemverify.conformance.gate.accepting import Acceptance
    from cemverify.conformance.gate.gate import Gate
    from cemverify.conformance.gate.known_violations import KnownViolation

ACCEPTED_FOR = timedelta(days=90)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for CI: known violations, a baseline, a pinned catalogue."""

    def day(text: str) -> date:
        try:
            return date.fromisoformat(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a date like 2027-02-19") from None

    group = parser.add_argument_group("in CI")
    pin = group.add_argument(
        "--catalogue",
        metavar="VERSION",
        help="enforce the properties up to this version of the catalogue (one of "
        f"{', '.join(versions.versions())}); newer ones are tested and reported, but never fail the run",
    )
    completers.complete_with(pin, completers.versions)
    group.add_argument(
        "--known", type=path, metavar="FILE", help="TOML file of accepted violations; any other violation fails"
    )
    group.add_argument(
        "--update-known", action="store_true", help="write the violations of this run to the --known file"
    )
    group.add_argument("--reason", metavar="TEXT", help="with --update-known: why the violations are accepted")
    group.add_argument(
        "--expires",
        type=day,
        metavar="DATE",
        help=f"with --update-known: the last day on which they are accepted (default: {ACCEPTED_FOR.days} "
        "days from today)",
    )
    group.add_argument(
        "--baseline",
        type=path,
        metavar="FILE",
        help="compare with this stored --json file of the same implementation",
    )
    group.add_argument(
        "--on-regression", choices=("warn", "fail"), help="what to do if the baseline was better (default warn)"
    )


def read_gate(options: argparse.Namespace) -> Gate:
    """The gate that the options name.

    Raises:
        ValueError: options that do not go together, a bad file, or a baseline from other conditions.
    """
    from cemverify.conformance.gate import known_violations
    from cemverify.conformance.gate.baselines import Conditions, check_comparable, read_baseline
    from cemverify.conformance.gate.gate import Gate

    pinned = None if options.catalogue is None else versions.check_version(options.catalogue)
    today = known_violations.today()
    acceptance = _acceptance(options, today)
    entries: Sequence[KnownViolation] = ()
    if options.known is not None and (acceptance is None or options.known.exists()):
        entries = known_violations.read_known(options.known)
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
    from cemverify.conformance.gate.accepting import Acceptance

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

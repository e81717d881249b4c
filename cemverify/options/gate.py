"""The options of `cemverify check` that are for CI."""

from __future__ import annotations

import argparse
from datetime import date, timedelta
from pathlib import Path

from cemverify.catalogue import versions
from cemverify.options import completers

ACCEPTED_FOR = timedelta(days=90)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of CI."""
    group = parser.add_argument_group("in CI")
    pin = group.add_argument(
        "--catalogue",
        metavar="VERSION",
        help="enforce the properties up to this version of the catalogue (here: "
        f"{', '.join(versions.versions())}); newer ones are tested and reported, and fail no run",
    )
    completers.complete_with(pin, completers.versions)
    group.add_argument(
        "--known", type=Path, metavar="FILE", help="TOML file of accepted violations; any other violation fails"
    )
    group.add_argument(
        "--update-known", action="store_true", help="write the violations of this run to the --known file"
    )
    group.add_argument("--reason", metavar="TEXT", help="with --update-known: why the violations are accepted")
    group.add_argument(
        "--expires",
        type=_day,
        metavar="DATE",
        help=f"with --update-known: the last day on which they are accepted (default: {ACCEPTED_FOR.days} "
        "days from today)",
    )
    group.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="compare with this stored --json file of the same implementation",
    )
    group.add_argument(
        "--on-regression", choices=("warn", "fail"), help="what to do if the baseline was better (default warn)"
    )


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date like 2027-02-19") from None

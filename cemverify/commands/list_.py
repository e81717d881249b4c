"""`cemverify list`: explains the properties, and the features that they need."""

from __future__ import annotations

import argparse
import textwrap

from cemverify.commands import contract_page
from cemverify.conformance.implementations.contract import FEATURES
from cemverify.conformance.properties import select
from cemverify.results import Table, show
from cemverify.tables import grid

DESCRIPTION = (
    "Lists the properties with their sources, the features that an implementation can have, or the contract."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cemverify list`."""
    parser.add_argument("properties", nargs="*", metavar="ID", help="ids, prefixes or patterns; all if none")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--features", action="store_true", help="list the features that can be named in not_offered")
    instead.add_argument(
        "--contract", action="store_true", help="print what an implementation must do and must not do, as Markdown"
    )


def run(options: argparse.Namespace) -> int:
    """`cemverify list`."""
    if options.contract:
        show(contract_page.as_markdown())
        return 0
    if options.features:
        show(grid(Table("Features", ("feature", "meaning"), list(FEATURES.items())), "terminal"))
        show(
            "\nThe word before a colon stands for the whole group: not_offered=('diagonal',) declares both diagonals."
        )
        return 0
    properties = select(options.properties)
    rows = [
        (p.id, textwrap.fill(p.claim, 52), textwrap.fill(p.source, 28), textwrap.fill(", ".join(sorted(p.needs)), 30))
        for p in properties
    ]
    show(grid(Table("Properties", ("property", "claim", "source", "needs"), rows), "terminal"))
    show(f"\n{len(properties)} properties. `cemverify list --features` explains the last column.")
    return 0

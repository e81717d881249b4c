"""`cemverify list`: explains the properties, and the features that they need."""

from __future__ import annotations

import argparse
import textwrap

from cemverify.commands import contract_page
from cemverify.commands.arguments import check_outputs
from cemverify.conformance.implementations.contract import FEATURES
from cemverify.conformance.judging.verdicts import largest
from cemverify.conformance.properties import Property, select
from cemverify.results import Maker, Table, result, show, write
from cemverify.tables import grid


def run(options: argparse.Namespace) -> int:
    """`cemverify list`."""
    if options.json is not None and (options.features or options.contract):
        raise ValueError(f"--json writes properties; leave out --{'features' if options.features else 'contract'}")
    if options.contract:
        show(contract_page.as_markdown())
        return 0
    if options.features:
        show(grid(Table("Features", ("feature", "meaning"), list(FEATURES.items())), "terminal"))
        show(
            "\nThe word before a colon stands for the whole group: not_offered=('diagonal',) declares both diagonals."
        )
        return 0
    check_outputs(options.json)
    properties = select(options.properties)
    rows = [
        (
            p.id,
            textwrap.fill(p.claim, 52),
            textwrap.fill(p.source, 28),
            textwrap.fill(", ".join(sorted(p.needs)), 30),
            textwrap.fill(_reach(p), 14),
        )
        for p in properties
    ]
    table = Table("Properties", ("property", "claim", "source", "needs", "asked up to"), rows)
    show(grid(table, "terminal"))
    reach = ", ".join(f"{a} = {n}" for a, n in largest(p.questions.reach() for p in properties).items())
    upto = f" They are asked up to {reach}." if reach else ""
    show(f"\n{len(properties)} properties.{upto} `cemverify list --features` explains what they need.")
    if options.json is not None:
        maker = Maker.now(options.command, {"properties": options.properties}, 0, "cpu")
        write(options.json, result("list", maker, [table], {"properties": [_described(p) for p in properties]}))
    return 0


def _reach(property_: Property) -> str:
    return ", ".join(f"{letter} {size}" for letter, size in largest([property_.questions.reach()]).items())


def _described(property_: Property) -> dict[str, object]:
    return {
        "id": property_.id,
        "claim": property_.claim,
        "source": property_.source,
        "needs": sorted(property_.needs),
        "asked_up_to": largest([property_.questions.reach()]),
    }

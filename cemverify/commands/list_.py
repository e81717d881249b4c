"""`cemverify list`: explains the properties, and the features that they need."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence

from cemverify import catalogue
from cemverify.commands import contract_page, explaining
from cemverify.commands.arguments import check_outputs
from cemverify.conformance.implementations.contract import FEATURES
from cemverify.conformance.judging.verdicts import largest
from cemverify.conformance.listeners.colours import show_coloured
from cemverify.conformance.listeners.terminal import wrapped
from cemverify.conformance.properties import Property, select
from cemverify.conformance.properties.explanations import explain
from cemverify.errors import UsageError
from cemverify.results import Maker, Table, result, show, write
from cemverify.screen import columns, is_live
from cemverify.tables import fitted, grid

_FOR_SOURCES = 120  # columns from which on there is room for them


def run(options: argparse.Namespace) -> int:
    """`cemverify list`."""
    if options.json is not None and (options.features or options.contract):
        raise ValueError(f"--json writes properties; leave out --{'features' if options.features else 'contract'}")
    if options.contract:
        show(contract_page.as_markdown())
        return 0
    width = columns(sys.stdout)
    if options.features:
        table = Table("Features", ("feature", "meaning"), list(FEATURES.items()))
        show(grid(table, "terminal") if width is None else fitted(table, width))
        words = (
            "The word before a colon stands for the whole group: not_offered=('diagonal',) declares both diagonals."
        )
        show(f"\n{wrapped(words, width)}")
        return 0
    check_outputs(options.json)
    properties = select(options.properties)
    if options.newer_than is not None:
        pinned = catalogue.check_version(options.newer_than)
        properties = tuple(p for p in properties if catalogue.is_newer(p.id, pinned))
        if not properties:
            raise UsageError(f"none of these properties is newer than catalogue {pinned}")
    if [p.id for p in properties] == options.properties:
        _explain(properties[0], width)
    else:
        _list(properties, width)
    if options.json is not None:
        maker = Maker.now(options.command, {"properties": options.properties}, 0, "cpu")
        content = {"properties": [_described(p) for p in properties]}
        write(options.json, result("list", maker, [_table(properties)], content))
    return 0


def _explain(property_: Property, width: int | None) -> None:
    """Everything about one property; the violation takes a few seconds to find."""
    show_coloured(explaining.explanation(property_, width))
    if is_live(sys.stderr):
        print("\nasking a mutant ...", end="\r", file=sys.stderr, flush=True)
    show_coloured(f"\n{explaining.violation(property_, width)}")


def _table(properties: Sequence[Property]) -> Table:
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
    return Table("Properties", ("property", "claim", "source", "needs", "asked up to"), rows)


def _list(properties: Sequence[Property], width: int | None) -> None:
    if width is None:
        show(grid(_table(properties), "terminal"))
    else:
        rows = [(p.id, p.claim, *((p.source,) if width >= _FOR_SOURCES else ())) for p in properties]
        show(fitted(Table("", ("property", "claim", "source")[: len(rows[0])], rows), width))
    reach = ", ".join(f"{a} = {n}" for a, n in largest(p.questions.reach() for p in properties).items())
    upto = f" They are asked up to {reach}." if reach else ""
    number = f"{len(properties)} {'property' if len(properties) == 1 else 'properties'}"
    words = (
        f"{number}, catalogue {catalogue.current()}.{upto} `cemverify list ID` explains one in full, "
        "`cemverify list --features` what they need."
    )
    show(f"\n{wrapped(words, width)}")


def _reach(property_: Property) -> str:
    return ", ".join(f"{letter} {size}" for letter, size in largest([property_.questions.reach()]).items())


def _described(property_: Property) -> dict[str, object]:
    return {
        "id": property_.id,
        "claim": property_.claim,
        "source": property_.source,
        "needs": sorted(property_.needs),
        "asked_up_to": largest([property_.questions.reach()]),
        "introduced": catalogue.introduced()[property_.id],
        "formula": explain(property_.id).formula,
        "why": explain(property_.id).why,
        "kills": [mutant.id for mutant in explaining.killers(property_)],
    }

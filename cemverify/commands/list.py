"""`cemverify list`: the properties, explained, and the features that they need.

Its tables need no torch, which takes seconds to import. The parts that need torch import it themselves: the
full description of one property, the contract, and the result file.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from cemverify.catalogue import versions
from cemverify.catalogue.index import Listed, by_claim, chosen, largest, listed, patterns, retired_by
from cemverify.commands import completers
from cemverify.commands.slow_imports import slow_imports
from cemverify.conformance.implementations.features import FEATURES
from cemverify.console.errors import UsageError
from cemverify.console.parsing import path
from cemverify.console.streams import columns, is_live, note, wrapped
from cemverify.results.envelope import Table, check_outputs, result, show, write
from cemverify.results.provenance import Maker
from cemverify.results.tables import fitted, grid

_FOR_SOURCES = 120  # columns from which there is room for them

DESCRIPTION = """\
Lists the properties with their sources, the features that an implementation can have, or the contract. With the full
id of one property, explains it: its claim and formula, why it matters, how it is tested, which mutants (layers with a
known fault) it kills, and what a violation looks like, which takes a few seconds. Your own properties are not listed:
their files say what they are, and `cemverify check --properties-from FILE` tests them.
"""

EPILOG = """\
examples:
  cemverify list                                 the families
  cemverify list '*'                             every claim
  cemverify list gradient 'structure/*/caus*'    some of them
  cemverify list gradient/attention/alibi        one in full
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cemverify list`."""
    chosen = parser.add_argument(
        "properties", nargs="*", metavar="ID", help="ids, prefixes or patterns; the families if none"
    )
    completers.complete_with(chosen, completers.property_ids)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--features", action="store_true", help="list the features that can be named in not_offered")
    instead.add_argument(
        "--contract", action="store_true", help="print what an implementation must do and must not do, as Markdown"
    )
    newer = parser.add_argument(
        "--newer-than",
        metavar="VERSION",
        help="only what is newer than this version of the catalogue, which CI may pin",
    )
    completers.complete_with(newer, completers.versions)
    parser.add_argument("--json", type=path, metavar="PATH", help="write the properties as a result file")


def run(options: argparse.Namespace) -> int:
    """Runs `cemverify list` with parsed arguments; returns the exit code."""
    if options.json is not None and (options.features or options.contract):
        raise ValueError(f"--json writes properties; leave out --{'features' if options.features else 'contract'}")
    if options.contract:
        from cemverify.commands import contract_page

        show(contract_page.as_markdown())
        return 0
    width = columns(sys.stdout)
    if options.features:
        table = Table("Features", ("feature", "meaning"), list(FEATURES.items()))
        show(grid(table, "terminal") if width is None else fitted(table, width))
        words = (
            "The word before a colon stands for the whole group: not_offered=('diagonal',) declares both diagonals "
            "absent."
        )
        show(f"\n{wrapped(words, width)}")
        return 0
    properties = _chosen(options)
    if options.json is not None:
        check_outputs(options.json)
    if [p.id for p in properties] == options.properties:
        _explain(properties[0].id, width)
    elif not options.properties and options.newer_than is None:
        _families(properties, width)
    else:
        _list(properties, width)
    if options.json is not None:
        _write(options.json, options, properties)
    return 0


def _chosen(options: argparse.Namespace) -> Sequence[Listed]:
    every = {p.id: p for p in listed()}
    for row in retired_by(options.properties, every):
        note(str(row))
    properties = [every[id_] for id_ in chosen(options.properties, every)]
    if options.newer_than is not None:
        pinned = versions.check_version(options.newer_than)
        properties = [p for p in properties if versions.is_newer(p.id, pinned)]
        if not properties:
            raise UsageError(f"none of these properties is newer than catalogue {pinned}")
    return properties


def _explain(id_: str, width: int | None) -> None:
    """Everything about one property; the violation takes a few seconds to find."""
    with slow_imports():
        from cemverify.commands import property_page
        from cemverify.conformance.listeners.colours import show_coloured
        from cemverify.conformance.properties import by_id

    show_coloured(property_page.explanation(by_id(id_), width))
    if is_live(sys.stderr):
        print("\ntesting a mutant ...", end="\r", file=sys.stderr, flush=True)
    show_coloured(f"\n{property_page.violation(by_id(id_), width)}")


def _table(properties: Sequence[Listed]) -> Table:
    rows = [
        (
            p.id,
            textwrap.fill(p.claim, 52),
            textwrap.fill(p.source, 28),
            textwrap.fill(", ".join(p.needs), 30),
            textwrap.fill(", ".join(f"{letter} {size}" for letter, size in p.asked_up_to.items()), 14),
        )
        for p in properties
    ]
    return Table("Properties", ("property", "claim", "source", "needs", "tested up to"), rows)


def _families(properties: Sequence[Listed], width: int | None) -> None:
    """One row per family: how many properties it has, of what, and one of them as an example."""
    families: dict[str, list[Listed]] = {}
    for p in properties:
        families.setdefault(p.id.partition("/")[0], []).append(p)
    rows = [
        (family, len(members), ", ".join(dict.fromkeys(p.id.split("/")[1] for p in members)), members[0].claim)
        for family, members in families.items()
    ]
    columns = ("family", "properties", "of", "for example")
    if width is None:
        show(grid(Table("", columns, rows), "terminal"))
    else:  # a narrow terminal has one screen, with no room for the examples
        count = len(columns) - (width < _FOR_SOURCES)
        show(fitted(Table("", columns[:count], [row[:count] for row in rows]), width))
    words = (
        f"{len(properties)} properties, catalogue {versions.current()}: `cemverify list FAMILY` and "
        "`cemverify list '*'` list them, `cemverify list --features` explains the features that they need."
    )
    show(f"\n{wrapped(words, width)}")


def _list(properties: Sequence[Listed], width: int | None) -> None:
    claims = by_claim(properties)
    if width is None:
        show(grid(_table(properties), "terminal"))
    else:
        rows = [
            (
                "\n".join(patterns(p.id for p in alike)),
                alike[0].claim,
                ", ".join(dict.fromkeys(p.id.split("/")[1] for p in alike)),
                alike[0].source,
            )
            for alike in claims
        ]
        columns = ("property", "claim", "of", "source")[: 4 if width >= _FOR_SOURCES else 3]
        show(fitted(Table("", columns, [row[: len(columns)] for row in rows]), width))
    reach = ", ".join(f"{a} = {n}" for a, n in largest(p.asked_up_to for p in properties).items())
    upto = f" They are tested up to {reach}." if reach else ""
    counts = ((len(claims), "claim", "claims"), (len(properties), "property", "properties"))
    number = ", ".join(f"{count} {one if count == 1 else more}" for count, one, more in counts)
    words = (
        f"{number}, catalogue {versions.current()}.{upto} `cemverify list ID` explains one in full, and "
        "`cemverify list --features` explains the features that they need."
    )
    show(f"\n{wrapped(words, width)}")


def _write(path: Path, options: argparse.Namespace, properties: Sequence[Listed]) -> None:
    from cemverify.commands.property_page import described

    maker = Maker.now(options.command, {"properties": options.properties}, 0, "cpu")
    content = {"properties": [described(p) for p in properties]}
    write(path, result("list", maker, [_table(properties)], content))

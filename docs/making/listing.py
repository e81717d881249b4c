"""Writes `cemverify/catalogue/listing.jsonl`, the description of every property, from the declarations.

    python -m docs.making.listing

The file in git records earlier versions: no id may leave it unless `retired.jsonl` names its replacement, none may
move to another version, and none may be added to a version that has a successor.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from cemverify.catalogue import index
from cemverify.catalogue.index import TRAINED, Listed, Retired, largest
from cemverify.catalogue.versions import RELEASED
from cemverify.conformance.properties import Property, catalogue
from cemverify.conformance.trained.claims import CLAIMS
from cemverify.console.errors import UsageError
from cemverify.console.guard import Run, enter
from cemverify.processes.atomic_files import replacing


def text() -> str:
    """The file's content, from the declarations."""
    return "".join(f"{json.dumps(asdict(row), ensure_ascii=False)}\n" for row in rows())


def rows() -> Sequence[Listed]:
    """The declarations as rows, in the order of the catalogue."""
    trained = (
        Listed(
            claim.id,
            claim.claim.format(dtype="the dtype of the weights"),
            claim.source,
            claim.explanation["formula"],
            claim.explanation["why"],
            needs=[],
            asked_up_to={},
            kind=TRAINED,
            since=claim.since,
        )
        for claim in CLAIMS
    )
    return (*map(_listed, catalogue()), *trained)


def _listed(property_: Property) -> Listed:
    return Listed(
        property_.id,
        property_.claim,
        property_.source,
        property_.formula,
        property_.why,
        sorted(property_.needs),
        largest([property_.questions.reach()]),
        property_.kind,
        property_.since,
    )


def before() -> Mapping[str, str]:
    """The version of each id in the file."""
    try:
        records = [json.loads(line) for line in index.FILE.read_text(encoding="utf-8").splitlines()]
        return {row["id"]: row["since"] for row in records}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{index.FILE.name} cannot be read ({error!r}); restore it as the branch has it that you merge into "
            f"(`git checkout BRANCH -- {index.FILE.name}`), since it says which ids there were"
        ) from error


def check(old: Mapping[str, str], now: Sequence[Listed], retired: Mapping[str, Retired]) -> None:
    """Compares the ids and versions in the file with the new ones."""
    new = {row.id: row.since for row in now}
    if twice := [id_ for id_, count in Counter(row.id for row in now).items() if count > 1]:
        raise UsageError(f"two properties have the id {twice[0]}; give one of them another")
    if gone := [id_ for id_ in old if id_ not in new and id_ not in retired]:
        raise UsageError(
            f"no property is declared with the id {', '.join(gone)}, which the catalogue has; "
            f"declare it again, or write into {index.RETIRED.name} what is asked in its place"
        )
    if wrong := [row for row in retired.values() if row.id in new or row.instead not in new]:
        raise UsageError(f"{wrong[0].id} is retired for {wrong[0].instead}, and there is the one or not the other")
    if moved := [id_ for id_ in old if id_ in new and old[id_] != new[id_]]:
        raise UsageError(f"{moved[0]} came with catalogue {old[moved[0]]}, but says since={new[moved[0]]!r}")
    if final := [id_ for id_ in new if id_ not in old and new[id_] in RELEASED]:
        raise UsageError(
            f"{final[0]} is new and says since={new[final[0]]!r}, a catalogue that is released and so final; "
            "write the present year and month beside its claim, as in since='2027.01'"
        )
    latest = max(old.values(), default="")
    if late := [id_ for id_ in new if id_ not in old and new[id_] < latest]:
        raise UsageError(
            f"{late[0]} is new and says since={new[late[0]]!r}, but there is a catalogue {latest} already; "
            f"write since={latest!r} beside its claim, or a later month"
        )


def _chosen(arguments: list[str]) -> Run:
    parser = argparse.ArgumentParser(
        prog="python -m docs.making.listing",
        description="Writes what `cemverify list` reads, from the declarations of all properties.",
    )
    parser.parse_args(arguments)

    def run() -> int:
        check(before(), rows(), index.retired())
        with replacing(index.FILE) as aside:
            aside.write_text(text(), encoding="utf-8")
        return 0

    return run


if __name__ == "__main__":
    raise SystemExit(enter(_chosen))

"""How many faults die by questions around the numbers in their code: the same check with its code read and without.

Whatever is asked without the code is asked with it, too, and first. So a fault that survives with its code survives
without, and one that dies with it has its last property asked again alone, before everything is asked without.
"""

from __future__ import annotations

import json
from pathlib import Path

from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.ending import Ending
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import Property, catalogue
from cemverify.conformance.workers import isolation
from suites.apart import Row, apart
from suites.blind.asking import order
from suites.blind.rounds import Round

PAIRS = Path(__file__).with_name("pairs.jsonl")
_NAME = "asked"
_SECONDS = 600.0  # for each property, as the machine may be busy


def pairs() -> list[Row]:
    """The pairs of faults that were asked so far, from the file that keeps them."""
    return [json.loads(line) for line in PAIRS.read_text().splitlines()] if PAIRS.exists() else []


def paired(round_: Round, name: str, workers: int) -> Row:
    """By which property the fault dies when its code is read, and when it is not; None where it survives."""
    ordered = sorted(catalogue(), key=lambda property_: order(property_, round_.area(name)))
    files = {f"{_NAME}.py": round_.module(name)}
    return {"round": round_.number, "fault": name, **apart(_paired, files, ordered, workers)}


def _paired(properties: list[Property], workers: int) -> Row:
    read = _killer(properties, workers, reads_code=True)
    if read is None:
        return {"read": None, "unread": None}
    alone = [property_ for property_ in properties if property_.id == read]
    unread = _killer(alone, 1, reads_code=False) or _killer(properties, workers, reads_code=False)
    return {"read": read, "unread": unread}


def _killer(properties: list[Property], workers: int, *, reads_code: bool) -> str | None:
    effort = Effort(shrink=False, seconds=_SECONDS, reads_code=reads_code)
    *_, finished = isolation.run(f"{_NAME}:mine", properties, effort, workers, ending=Ending(_violated))
    assert isinstance(finished, RunFinished)
    return next((record.id for record in finished.records if _violated(record)), None)


def _violated(record: Record) -> bool:
    return record.verdict == Verdict.VIOLATED

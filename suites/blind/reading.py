"""Which faults die only when their code is read: what survived first contact is checked once more, with its code.

Whatever is asked without the code is asked with it, too, so what died without dies with it as well. What dies only
now is then asked everything without its code, since something else is different as well: a check asks in processes of
its own, and a round does not.
"""

from __future__ import annotations

from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.ending import Ending
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import Property
from cemverify.conformance.workers import isolation
from suites.apart import Row, apart
from suites.blind.asking import in_order
from suites.blind.rounds import Round

_NAME = "asked"
_SECONDS = 600.0  # for each property, as the machine may be busy


def read(round_: Round, name: str, workers: int) -> Row:
    """By which property a fault dies when its code is read, and by which without; None where it survives."""
    return apart(_read, {f"{_NAME}.py": round_.module(name)}, in_order(round_.implementation(name)), workers)


def _read(properties: list[Property], workers: int) -> Row:
    by = _killer(properties, workers, reads_code=True)
    if by is None:
        return {"by": None, "unread": None}
    alone = [property_ for property_ in properties if property_.id == by]
    return {"by": by, "unread": _killer(alone, 1, reads_code=False) or _killer(properties, workers, reads_code=False)}


def _killer(properties: list[Property], workers: int, *, reads_code: bool) -> str | None:
    effort = Effort(shrink=False, seconds=_SECONDS, reads_code=reads_code)
    *_, finished = isolation.run(f"{_NAME}:mine", properties, effort, workers, ending=Ending(_violated))
    assert isinstance(finished, RunFinished)
    return next((record.id for record in finished.records if _violated(record)), None)


def _violated(record: Record) -> bool:
    return record.verdict == Verdict.VIOLATED

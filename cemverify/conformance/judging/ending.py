"""When a run ends before everything is tested, what is then tested first, and what such a run is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from cemverify.catalogue.detection import KilledShare, most_telling_first, share
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import Property

GRACE = 20.0  # seconds
_TELLING = 12  # properties that are tested before those that mix options; together they take a second


def never(_: Record) -> bool:
    """The rule by which no record ends a run: everything is tested."""
    return False


@dataclass(frozen=True)
class Ending:
    """When a run ends before everything is tested."""

    at: Callable[[Record], bool] = never  # whether a record ends it at once
    # seconds of testing after which nothing more is begun; what has begun gets as long again, and at least GRACE
    after: float = math.inf
    before: Collection[str] = ()  # ids of properties that are tested before the others

    @property
    def latest(self) -> float:
        """Seconds of testing after which what is not finished counts as not tested."""
        return self.after + max(self.after, GRACE)

    def ordered(self, offered: Sequence[Property], absent: Collection[str]) -> list[Property]:
        """The properties in the order in which they are tested: first those that find most for their time.

        Args:
            offered: those that the implementation offers, in the order of the catalogue.
            absent: features that it lacks.
        """
        by_id, limited, whole = {p.id: p for p in offered}, not math.isinf(self.after), self.at is never
        ids = most_telling_first(list(by_id), absent)
        if not limited:  # mixed options show faults that others wrote more often than our own mutants
            mixed = [id_ for id_ in ids if by_id[id_].family == "gradient" and by_id[id_].name == "any-options"]
            others = [id_ for id_ in ids if id_ not in mixed]
            ids = [*others[:_TELLING], *mixed, *others[_TELLING:]]
        # A property that needs a process of its own ends another, in which JAX may have compiled much. So a whole run
        # begins with such properties, and a limited run leaves them to its end. All else presupposes the shape and
        # dtype of answers, which take a tenth of a second for each function.
        return sorted(
            (by_id[id_] for id_ in ids),
            key=lambda p: (
                p.first and limited,
                p.id not in self.before,
                whole and not p.first,
                limited or p.name != "shape-and-dtype",
            ),
        )


TO_THE_END = Ending()


def interrupted(
    name: str, properties: Sequence[Property], records: Collection[Record], seconds: float
) -> RunFinished:
    """The result of a run that a signal ended.

    Args:
        properties: to be tested, for any kind of implementation. records: of what is not offered or finished.
    """
    by_id = {record.id: record for record in records}
    kinds = {p.kind for p in properties if p.id in by_id}
    ids = [p.id for p in properties if p.kind in kinds]
    unasked = [id_ for id_ in ids if id_ not in by_id]
    return RunFinished(name, [by_id[id_] for id_ in ids if id_ in by_id], seconds, unasked=unasked, interrupted=True)


def worth(records: Iterable[Record], unasked: Collection[str], absent: Collection[str]) -> KilledShare | None:
    """How many mutants the tested properties kill; None if all were tested, or nothing is known of the mutants."""
    if not unasked:
        return None
    tested = [record.id for record in records if record.verdict != Verdict.NOT_OFFERED]
    killed = share(tested, [*tested, *unasked], absent)
    return killed if killed.of else None

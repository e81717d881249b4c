"""When to give up: an implementation that costs one worker after another is not tested any further, so that the
run ends."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

from cemverify.conformance.implementations.features import FUNCTIONS
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import Property

IN_A_ROW, IN_ALL = 5, 25  # workers that may be lost: in a row by properties that call the same functions; in all


@dataclass
class LostWorkers:
    """Counts the workers that an implementation has cost."""

    # causes of the losses since the last success, by the functions that were called
    in_a_row: defaultdict[frozenset[str], list[str]] = field(default_factory=lambda: defaultdict(list))
    altogether: int = 0  # how many workers were lost

    def note(self, property_: Property, record: Record, *, lost: bool) -> None:
        """Records a finished property, and whether its worker was lost."""
        if not lost:
            self.in_a_row.pop(_functions(property_), None)
            return
        self.in_a_row[_functions(property_)].append(record.cause or "blocked")
        self.altogether += 1

    def give_up(self, queue: deque[Property]) -> list[Record]:
        """Removes the properties that are not worth another worker from the queue and returns their records."""
        records = [
            Record(p.id, p.claim, p.source, Verdict.INCONCLUSIVE, stated_in=p.stated_in, reason=reason)
            for p in queue
            if (reason := self._reason(p)) is not None
        ]
        gone = {record.id for record in records}
        waiting = [p for p in queue if p.id not in gone]
        queue.clear()
        queue.extend(waiting)
        return records

    def _reason(self, property_: Property) -> str | None:
        if self.altogether >= IN_ALL:
            return f"not run: the implementation has already cost {self.altogether} worker processes"
        befell = self.in_a_row[_functions(property_)]
        if len(befell) < IN_A_ROW:
            return None
        causes = ", ".join(f"{cause} {n} times" for cause, n in Counter(befell).items())
        asking = ", ".join(sorted(_functions(property_))) or "it"
        return f"not run: {len(befell)} properties in a row that call {asking} each cost a worker process ({causes})"


def _functions(property_: Property) -> frozenset[str]:
    return property_.needs & frozenset(FUNCTIONS)

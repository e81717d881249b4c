"""Where a search looks closer: around the numbers in the code, first where a branch was not taken.

The seed decides which questions are asked, and in what order; the branches reached only decide which come first and
which are varied. Two runs on the same code ask the same, unless the code keeps results from one call for the next
and several workers divide the properties differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cemverify.conformance.questions.aims import Aim, in_order
from cemverify.conformance.source.reach.summary import Trail
from cemverify.conformance.source.reading.code import OwnCode
from cemverify.conformance.source.reading.numbers import Number

VARIED = 3  # further questions with the aim of one that reached something new
_MOST_NUMBERS = 48


@dataclass
class Aiming:
    """What is known about the code of the implementation under test."""

    code: OwnCode  # what was read of it
    reached: Callable[[], Trail]  # what ran since the property began
    around: set[float] = field(default_factory=set)  # the numbers that a question was asked around
    _seen: set[tuple[str, int, int]] = field(default_factory=set)

    @property
    def numbers(self) -> Sequence[Number]:
        """The numbers that are asked about: the most telling ones, up to a limit."""
        return self.code.numbers[:_MOST_NUMBERS]

    def ordered(self, aims: Sequence[Aim], seed: int) -> list[Aim]:
        """Aims in the order in which they are tried, after the usual questions."""
        self._seen = self._ran()
        return in_order(aims, seed, self._unreached())

    def reached_more(self) -> bool:
        """Whether the question that was just asked reached a branch for the first time.

        It is not checked once every branch has been taken.
        """
        if not self._unreached():
            return False
        now = self._ran()
        more = bool(now - self._seen)
        self._seen |= now
        return more

    def _ran(self) -> set[tuple[str, int, int]]:
        trail = self.reached()
        return {(path, a, b) for path, taken in trail.branches.items() for a, b in taken}

    def _unreached(self) -> frozenset[tuple[str, int]]:
        """The tests (`if`, say) of which some branch was not taken."""
        return frozenset(
            (file.path, line)
            for file in self.code.files
            for line, to in file.lines.branches.items()
            if any((file.path, line, b) not in self._seen for b in to)
        )

"""A right layer beside a faulty twin: what holds of one is violated by the other, for its cause."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from cemverify.conformance.judging.verdicts import Verdict
from suites.kit.judging import judged


@dataclass(frozen=True)
class Twin:
    """A row of a table.

    Attributes:
        properties: ids, apart by spaces. right: holds of all of them; None: only the faulty layer is of interest.
        wrong: violates the first of them, or all if `everywhere`; None: only the right layer is.
        cause, part, because, reason: what the record of the violation says: its cause begins with the pattern
            `cause`, its part is `part`, and the others are in it. examples, seed: of the search.
        arrays: "jax" if it needs that library.
    """

    properties: str
    right: Callable[[], Any] | None = None
    wrong: Callable[[], Any] | None = None
    cause: str = ""
    part: str = ""
    because: str = ""
    reason: str = ""
    examples: int = 30
    seed: int = 0
    everywhere: bool = False
    arrays: str = "torch"

    def judge(self) -> None:
        """Asserts all that the row says."""
        if self.arrays == "jax":
            pytest.importorskip("jax", reason="the extra `jax` is not installed")
        first, *further = self.properties.split()
        if self.right is not None:
            for id_ in (first, *further):
                record = judged(self.right(), id_, examples=self.examples, seed=self.seed)
                assert record.verdict == Verdict.HOLDS, (id_, record.reason)
        if self.wrong is None:
            return
        # a part is found on the smallest case
        shrink = bool(self.part or self.because or self.reason)
        for id_ in (first, *(further if self.everywhere else ())):
            record = judged(self.wrong(), id_, examples=self.examples, seed=self.seed, shrink=shrink)
            assert record.verdict == Verdict.VIOLATED, id_
            assert re.match(self.cause, str(record.cause)), record.cause
            assert record.part == self.part or not self.part
            assert self.because in str(record.because)
            assert self.reason in str(record.reason)

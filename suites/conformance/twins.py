"""A right layer and a faulty twin: properties that hold for one are violated by the other, for the given cause."""

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
    """A row of a table."""

    properties: str  # ids, separated by spaces
    right: Callable[[], Any] | None = None  # satisfies all of them; None tests only the faulty layer
    wrong: Callable[[], Any] | None = None  # violates the first, or all if `everywhere`; None tests only `right`
    # about the record of the violation: the pattern with which its cause begins, its part, and words in other fields
    cause: str = ""
    part: str = ""
    because: str = ""
    reason: str = ""
    # of the search
    examples: int = 30
    everywhere: bool = False
    arrays: str = "torch"  # or "jax", if the layers need that library

    def judge(self) -> None:
        """Asserts everything in the row."""
        if self.arrays == "jax":
            pytest.importorskip("jax", reason="the extra `jax` is not installed")
        first, *further = self.properties.split()
        if self.right is not None:
            for id_ in (first, *further):
                record = judged(self.right(), id_, examples=self.examples)
                assert record.verdict == Verdict.HOLDS, (id_, record.reason)
        if self.wrong is None:
            return
        # a part is located on the smallest case
        shrink = bool(self.part or self.because or self.reason)
        for id_ in (first, *(further if self.everywhere else ())):
            record = judged(self.wrong(), id_, examples=self.examples, shrink=shrink)
            assert record.verdict == Verdict.VIOLATED, id_
            assert re.match(self.cause, str(record.cause)), record.cause
            assert record.part == self.part or not self.part
            assert self.because in str(record.because)
            assert self.reason in str(record.reason)

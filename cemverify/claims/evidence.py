"""Evidence for or against a statement, gathered anew each time the ledger runs.

For a statement speak properties of the catalogue that the reference satisfies, and derivations that a computer
algebra system or exact arithmetic confirms. Against it speaks a counterexample, evaluated exactly, and a search
that finds one of the same size unaided.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, Protocol

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import SearchStrategy

from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties import catalogue

Side = Literal["for", "against"]


@dataclass(frozen=True)
class Finding:
    """What a piece of evidence came to.

    Attributes:
        side: whether it speaks for the statement or against it, if it stands.
        stands: whether it does.
        summary: one line. lines: the working, by hand-sized numbers.
    """

    side: Side
    stands: bool
    summary: str
    lines: tuple[str, ...] = ()


class Evidence(Protocol):
    """A piece of evidence."""

    def gather(self) -> Finding:
        """Evaluates it now."""
        ...


@dataclass(frozen=True)
class Properties:
    """Properties of the catalogue that the reference must satisfy.

    Attributes:
        ids: of the properties. examples: for each.
    """

    ids: tuple[str, ...]
    examples: int = 40

    def gather(self) -> Finding:
        known = {p.id: p for p in catalogue()}
        records = [judge_property(reference, known[id_], Effort(examples=self.examples)) for id_ in self.ids]
        # without the margin, whose last digits depend on the processor: these lines stand in the documentation
        lines = tuple(f"{r.id}: {r.verdict}, {r.examples} examples" for r in records)
        stands = bool(records) and all(r.verdict == Verdict.HOLDS for r in records)
        return Finding("for", stands, f"the reference satisfies {', '.join(self.ids)}", lines)


@dataclass(frozen=True)
class Derivation:
    """A computation that confirms the statement, symbolic or exact.

    Attributes:
        words: what is confirmed, one line.
        working: lines that show it, and whether it came out.
    """

    words: str
    working: Callable[[], Working] = field(repr=False)

    def gather(self) -> Finding:
        working = self.working()
        return Finding("for", working.comes_out, self.words, working.lines)


@dataclass(frozen=True)
class Counterexample:
    """Numbers for which the statement is false, evaluated exactly.

    Attributes:
        words: the example, one line.
        working: lines that show it, and whether the statement came out *true*.
    """

    words: str
    working: Callable[[], Working] = field(repr=False)

    def gather(self) -> Finding:
        working = self.working()
        return Finding("against", not working.comes_out, self.words, working.lines)


@dataclass(frozen=True)
class Search:
    """Hypothesis finds a counterexample unaided, no larger than the one that is shown.

    Attributes:
        words: what is searched, one line.
        cases: where. violates: whether the statement is false there. size: of a case; largest: of the one shown.
        examples: how many cases it may try.
    """

    words: str
    cases: SearchStrategy[Any] = field(repr=False)
    violates: Callable[[Any], bool] = field(repr=False)
    size: Callable[[Any], float] = field(repr=False)
    largest: float
    examples: int = 5000

    def gather(self) -> Finding:
        quiet = settings(
            max_examples=self.examples,
            database=None,
            deadline=None,
            derandomize=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        try:
            found = hypothesis.find(self.cases, self.violates, settings=quiet, random=_seeded(self.words))
        except NoSuchExample:
            return Finding("against", False, f"{self.words}: none found in {self.examples} cases")
        size = self.size(found)
        lines = (f"found {found!r}, size {size:g}; the one shown has {self.largest:g}",)
        return Finding("against", size <= self.largest, f"{self.words}: found unaided", lines)


@dataclass(frozen=True)
class Working:
    """A computation worked through.

    Attributes:
        lines: each step with its numbers. comes_out: whether the relation that it ends with is true.
    """

    lines: tuple[str, ...]
    comes_out: bool


def working(*lines: str, comes_out: bool) -> Working:
    """A working from its lines."""
    return Working(lines, comes_out)


def _seeded(words: str) -> Random:
    return Random(zlib.crc32(words.encode()))  # noqa: S311  (no secret)

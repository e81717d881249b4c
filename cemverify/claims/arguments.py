"""Arguments for and against a statement, gathered anew each time the ledger runs.

A statement is one predicate: given a case, a `Working` that ends in true or false. Every argument puts cases to that
same predicate and reports what came out, so that none of them knows beforehand which side it speaks for:

    Instance    one case in numbers; can refute a statement, cannot prove it
    Figures     the very numbers that the statement is about: arithmetic, and it settles the matter
    Symbols     a case that stands for all: weights that are letters, a layer whose shapes alone count
    Sample      many cases, listed or counted through
    Search      Hypothesis looks for a case that makes the statement false

Two kinds of support come from elsewhere. A `Lemma` is a step of the proof, confirmed by algebra; `Properties` are
those of the catalogue that the reference satisfies.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, ClassVar, Literal, Protocol

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import SearchStrategy

from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import by_id
from cemverify.conformance.questions.hypothesis_draws import from_the_seed_alone

Side = Literal["for", "against", "finding", "neither"]
# a search or a sample with fewer cases within the condition than this says nothing
FEWEST_CASES = 20


@dataclass(frozen=True)
class Working:
    """A computation worked through."""

    lines: tuple[str, ...]  # each step with its numbers
    comes_out: bool  # whether the statement is true there


def working(*lines: str, comes_out: Any) -> Working:
    """A working from its lines; `comes_out` may be a number's own kind of truth (sympy's, mpmath's)."""
    return Working(lines, bool(comes_out))


Predicate = Callable[[Any], Working]
Condition = Callable[[Any], bool]


@dataclass(frozen=True)
class Statement:
    """What arguments are put to."""

    holds_for: Predicate  # whether it is true of a case, worked through
    # whether a case fulfils the condition under which it is said to hold; None if it has none
    within: Condition | None = None

    def covers(self, case: Any) -> bool:
        """Whether the case is within the condition."""
        return self.within is None or bool(self.within(case))


@dataclass(frozen=True)
class Finding:
    """What an argument came to."""

    # what it speaks for: the statement or its contrary; or, as a lemma does, for the proof of what was found;
    # "neither" if it decides nothing, which leaves the claim undecided
    side: Side
    summary: str  # one line
    lines: tuple[str, ...] = ()  # the working, in hand-sized numbers
    general: bool = False  # whether it speaks for all cases, and not for one
    within: bool = True  # whether the cases it speaks of fulfil the condition
    kind: str = ""  # of argument, as "instance"
    scale: str = ""  # of a training that was measured, in words


class Argument(Protocol):
    """Something that speaks for or against a statement."""

    def gather(self, statement: Statement) -> Finding:
        """Evaluates the argument now, and returns what it found."""
        ...


@dataclass(frozen=True)
class Instance:
    """One case in numbers."""

    words: str  # the case, one line
    case: Any = None
    general: ClassVar[bool] = False
    kind: ClassVar[str] = "instance"

    def gather(self, statement: Statement) -> Finding:
        working = statement.holds_for(self.case)
        side: Side = "for" if working.comes_out else "against"
        words = f"arithmetic: {self.words}" if self.kind == "figures" else self.words
        return Finding(side, words, working.lines, self.general, statement.covers(self.case), self.kind)


class Figures(Instance):
    """The numbers that the statement is about, so that arithmetic settles it."""

    general, kind = True, "figures"


class Symbols(Instance):
    """A case that stands for all."""

    general, kind = True, "symbols"


@dataclass(frozen=True)
class Sample:
    """Many cases; with a condition, those that fulfil it."""

    words: str  # what they are, one line
    cases: Callable[[], Iterable[Any]] = field(repr=False)  # listed, or counted through by a function

    def gather(self, statement: Statement) -> Finding:
        covered = [case for case in self.cases() if statement.covers(case)]
        for case in covered:
            working = statement.holds_for(case)
            if not working.comes_out:
                return Finding("against", f"{self.words}: false of one", working.lines, kind="sample")
        if len(covered) < FEWEST_CASES:
            return Finding("neither", f"{self.words}: only {len(covered)} cases, too few to say", kind="sample")
        return Finding("for", f"{self.words}: true of all {len(covered):,} cases", (), general=True, kind="sample")


@dataclass(frozen=True)
class Search:
    """Hypothesis looks for the smallest case that makes the statement false, and finds one or does not."""

    words: str  # what is searched, one line
    cases: SearchStrategy[Any] = field(repr=False)  # where
    outside: bool = False  # look beyond the condition, for a sign that it is needed, and not within it
    examples: int = 400  # how many cases it may try

    def gather(self, statement: Statement) -> Finding:
        within, tried = not self.outside, 0

        def is_false(case: Any) -> bool:
            nonlocal tried
            if statement.covers(case) != within:
                return False
            tried += 1
            return not statement.holds_for(case).comes_out

        quiet = settings(
            max_examples=self.examples,
            database=None,
            deadline=None,
            derandomize=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        try:
            with from_the_seed_alone():
                example = hypothesis.find(self.cases, is_false, settings=quiet, random=_seeded(self.words))
        except NoSuchExample:
            if tried < FEWEST_CASES:
                return Finding("neither", f"{self.words}: only {tried} cases asked", within=within, kind="search")
            return Finding("for", f"{self.words}: none found", general=not self.outside, within=within, kind="search")
        lines = (f"found unaided: {example!r}", *statement.holds_for(example).lines)
        return Finding("against", f"{self.words}: found", lines, within=within, kind="search")


@dataclass(frozen=True)
class Lemma:
    """A step of the proof that algebra confirms."""

    words: str  # what is confirmed, one line
    working: Callable[[], Working] = field(repr=False)  # lines that show it, and whether it came out

    def gather(self, statement: Statement) -> Finding:  # noqa: ARG002  (it belongs to the proof)
        working = self.working()
        side: Side = "finding" if working.comes_out else "neither"
        return Finding(side, self.words, working.lines, general=True, kind="lemma")


@dataclass(frozen=True)
class Properties:
    """Properties of the catalogue, put to the reference."""

    ids: tuple[str, ...]  # of the properties
    examples: int = 20  # for each

    def gather(self, statement: Statement) -> Finding:  # noqa: ARG002  (it belongs to the proof)
        records = [_of_the_reference(id_, self.examples) for id_ in self.ids]
        verdicts = {r.verdict for r in records}
        side: Side = "neither"
        if verdicts == {Verdict.HOLDS}:
            side = "for"
        elif Verdict.VIOLATED in verdicts:
            side = "against"
        # without the margin, whose last digits depend on the processor: these lines stand in the documentation
        lines = tuple(f"{r.id}: {r.verdict}, {r.examples} examples" for r in records)
        words = f"{len(records)} propert{'y' if len(records) == 1 else 'ies'} of the reference"
        return Finding(side, words, lines, general=True, kind="properties")


def properties(*ids: str) -> Properties:
    """Properties of the catalogue, put to the reference."""
    return Properties(ids)


@cache
def _of_the_reference(id_: str, examples: int) -> Record:
    """What a property finds; several claims rest on the same one, and it finds the same each time."""
    return judge_property(reference, by_id(id_), Effort(examples=examples))


def _seeded(words: str) -> Random:
    return Random(zlib.crc32(words.encode()))  # noqa: S311  (no secret)

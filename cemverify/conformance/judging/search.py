"""The search for a counterexample to one property.

Questions come from three sources in turn: a few small integer cases, whose violations are readable; scattered cases
from a plain random generator, which are the rows of a covering array (see `questions.spaces`); and, for some
properties, cases around the numbers that stand in the code under test (see `questions.aims`). The first violation
ends the search. It is then shrunk as long as it still fails in the same way. If a scattered case violates, many small
cases are tried first, because one of them shows the same in fewer numbers.
"""

from __future__ import annotations

import math
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky, Unsatisfiable

from cemverify.catalogue.index import largest
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.contract import Subject
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.faults import (
    Discard,
    Fault,
    NotFinite,
    OutOfMemory,
    Raised,
    ran_out,
    words,
)
from cemverify.conformance.judging.aiming import VARIED, Aiming
from cemverify.conformance.judging.effort import Effort, Explaining
from cemverify.conformance.judging.localisation.layers import undefined
from cemverify.conformance.oracle.evidence import Evidence
from cemverify.conformance.oracle.golden import leaves_range
from cemverify.conformance.oracle.remembering import remembering
from cemverify.conformance.properties import Offer, Property
from cemverify.conformance.questions.black_boxes import Question
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.hypothesis_draws import from_the_seed_alone
from cemverify.processes.time_limits import CoreBudget

_USUAL = 60  # `Effort.examples` by default
_WHERE_COMPILED = 4  # times fewer questions around numbers, if each has a size of its own to be compiled for
_TRIES = 400  # smaller forms of a violation that are tried
_SMALLER = 3 / 4  # the share of the time after a violation for making it smaller; the rest is for finding its cause
_LATEST = 32  # telling examples that are kept for the trivial controls


class SuiteBroke(Exception):
    """The verifier itself raised an exception, which is not the implementation's fault."""


class _Violated(Exception):
    """A comparison failed. Raised in one place, so that Hypothesis shrinks within one kind of failure."""


class _Faulted(Exception):
    """A call returned nothing that could be compared."""


class _TimeUp(Exception):
    """The property's time budget is spent."""


@dataclass(frozen=True)
class Violation:
    """A question that an implementation answered wrongly.

    Attributes:
        evidence: the comparison that failed. fault: what happened instead of an output. Exactly one of them is given.
    """

    question: Any
    evidence: Evidence | None
    fault: Fault | None

    @property
    def margin(self) -> float:
        """The largest error divided by its budget; infinite if that is NaN or there was no output."""
        margin = math.inf if self.evidence is None else self.evidence.worst.margin
        return math.inf if math.isnan(margin) else margin

    @property
    def tested(self) -> Any:
        """The case that the implementation was given."""
        case = getattr(self.evidence or self.fault, "case", None)
        return self.question if case is None else case


@dataclass
class SearchTally:
    """The results of a property's examples so far.

    Attributes:
        examples: valid examples. telling: those that could have exposed a wrong layer. discarded: those not judged.
        margin: the largest of the examples that held.
        violation: the smallest so far. largest: the one with the largest margin, among those with an output.
        flaky: whether a case failed once and then passed. cut_short: whether time ran out.
        planned: about how many examples there will be; 0 before that is known.
        source: where the latest questions came from: "small", "row" (scattered), or "around" a number in the code.
        number: how many came from there, with the discarded ones and the first violation.
        undefined: the first violation where the declared energy is undefined; it counts if there is no other.
        latest: the last telling examples that held. sizes: the largest of each size among all that held.
    """

    examples: int = 0
    telling: int = 0
    discarded: int = 0
    margin: float = 0.0
    violation: Violation | None = None
    largest: Violation | None = None
    flaky: bool = False
    cut_short: bool = False
    planned: int = 0
    source: str = ""
    number: int = 0
    discard_reasons: list[str] = field(default_factory=list)
    undefined: Violation | None = None
    undefined_counts: bool = False
    latest: deque[Any] = field(default_factory=lambda: deque(maxlen=_LATEST))
    sizes: dict[str, int] = field(default_factory=dict)

    def turn_to(self, source: str) -> None:
        """Counts the next questions as that source's."""
        self.source, self.number = source, 0

    def held(self, question: Any, margin: float, *, telling: bool, tested: Any = None) -> None:
        """Counts an example, unless a violation has been found already.

        Args:
            tested: the case that was given, if that is not the question.
        """
        if self.violation is not None:
            return
        self.examples += 1
        self.telling += telling
        if telling:
            self.latest.append(question)
            self.sizes = largest((self.sizes, getattr(tested or question, "sizes", {})))
        self.margin = max(self.margin, margin)

    def discard(self, reason: str) -> None:
        """Counts a question outside the premise."""
        if self.violation is None:
            self.discarded += 1
            self.discard_reasons.append(reason)

    def violated(self, violation: Violation) -> None:
        """Records a violation. The first counts as a telling example; later ones are smaller forms of it."""
        if self.violation is None:
            self.examples += 1
            self.telling += 1
        self.violation = violation
        if violation.evidence is not None and (self.largest is None or violation.margin > self.largest.margin):
            self.largest = violation


@dataclass
class PropertySearch:
    """One property, the implementation under test, and the results so far.

    Attributes:
        budget: its time budget. aiming: what is known about the implementation's code, if anything.
        explaining: the run's time for explaining violations. after: this property's part of it, once it has one.
    """

    caller: Caller
    property: Property
    budget: CoreBudget
    aiming: Aiming | None = None
    explaining: Explaining = field(default_factory=Explaining)
    after: CoreBudget | None = None
    tally: SearchTally = field(default_factory=SearchTally)

    def look(self, effort: Effort) -> None:
        """Asks questions until one violates the property or all have been asked; the tally holds the result.

        Raises:
            SuiteBroke: the check itself failed.
        """
        subject = self.caller.subject
        layer = subject if isinstance(subject, EnergyLayer) else None
        offer = Offer(frozenset(subject.not_offered), layer, self.caller.kind)
        asked = self.property.asked
        each, rows = self._number(effort, asked.most), self._number(effort, asked.rows)
        if (listed := self.property.questions.rows(offer)) is not None:
            rows = max(1, round(effort.examples * listed / _USUAL))
        compiles = offer.kind.compiles or "compile" in self.property.needs
        if compiles:
            rows = min(rows, self._number(effort, asked.compiled))
        strategy = self.property.questions.search(offer) if asked.small else None
        # more if options mix; if each is compiled, only the simplest, all zeros
        few = 1 if compiles else min(each, self._number(effort, asked.small))
        self.tally.planned = rows + (0 if strategy is None else few)
        if strategy is not None:
            self.tally.turn_to("small")
            self._explore(strategy, self._seeded(effort, "small", few))
        if self.tally.violation is None:
            self.tally.turn_to("row")
            self._ask_each(self._scattered(offer, self._seeded(effort, "scattered", rows)))
        by_row = self.tally.violation is not None and self.tally.source == "row"
        if by_row and strategy is not None and effort.shrink and not self.tally.flaky:  # a small case is readable
            self._explore(strategy, self._seeded(effort, "readable", each))
        if self.tally.violation is None and self.aiming is not None and self.property.looks_around:
            self.tally.turn_to("around")
            most = max(1, each // _WHERE_COMPILED) if offer.kind.compiles else each
            self._ask_each(self._around(self.aiming, offer, self._seeded(effort, "around", most)))
        if self.tally.violation is None and self.tally.undefined is not None and not self.tally.flaky:
            self.tally.undefined_counts = True
            self.tally.violated(self.tally.undefined)
            self._settle()
        if effort.shrink and not self.tally.flaky:
            self._reduce(offer)

    def _number(self, effort: Effort, usual: float) -> int:
        """The number of questions, `usual` for every `_USUAL` examples requested; at least two."""
        return max(2, round(effort.examples * usual / _USUAL))

    def _seeded(self, effort: Effort, source: str, examples: int) -> Effort:
        """The effort for so many examples of a source, with a seed of its own."""
        seed = zlib.crc32(f"{effort.seed}/{self.property.id}/{source}".encode())
        return replace(effort, examples=examples, seed=seed)

    def look_at(self, question: Any) -> None:
        """Asks one question.

        Raises:
            SuiteBroke: the check itself failed.
        """
        with suppress(_Violated, _Faulted, Discard):
            self._ask(question)

    def may_explain(self, share: float = 1.0) -> bool:
        """Whether, of the time for making a violation smaller and finding its cause, this share is not yet spent."""
        if self.tally.violation is not None and self.after is None:
            self.after = CoreBudget(self.explaining.left / 2, lambda: self.caller.processes)
        return self.after is None or not self.after.passed(share)

    def _ask(self, question: Any) -> float:
        """Judges one question in time, counts it, raises on a violation, and returns the margin."""
        if self.budget.passed() or not self.may_explain(_SMALLER):
            self.tally.cut_short = True
            if self.tally.violation is None:
                raise _TimeUp
            return 0.0  # while shrinking: what was found so far is enough
        return self._judge(question)

    def _judge(self, question: Any) -> float:
        tally = self.tally
        tally.number += tally.violation is None
        if self.caller.layer_process is not None:
            self.caller.layer_process.asking(question)
        try:
            evidence = self.property.check(self.caller, question)
            margin = evidence.worst.margin
        except Discard as discard:
            tally.discard(str(discard))
            raise
        except Fault as fault:
            violation = Violation(question, None, fault)
            if isinstance(fault, NotFinite | Raised):  # no numbers excuse a crash or a changed array
                self._refuse(question, violation)
            tally.violated(violation)
            raise _Faulted from fault
        except Exception as error:
            if ran_out(error):  # the suite needs little memory, so an earlier call holds what is missing
                shortage = OutOfMemory("it uses so much memory that none is left for the verifier")
                tally.violated(Violation(question, None, shortage))
                raise _Faulted from None
            where = traceback.extract_tb(error.__traceback__)[-1]
            at = f"{words(error)} (line {where.lineno} of {where.name})"
            own = self.property.stated_in
            whose = "the suite itself" if own is None else f"the property in {own}"
            raise SuiteBroke(f"{whose} failed: {at}") from error
        if not margin <= 1:
            violation = Violation(question, evidence, None)
            self._refuse(evidence.case or question, violation)
            tally.violated(violation)
            raise _Violated
        tally.held(question, margin, telling=evidence.telling, tested=evidence.case)
        return margin

    def _refuse(self, question: Any, violation: Violation) -> None:
        """Refuses a case whose right answer, or something on the way to it, overflows: any result is then right.

        A case at which an energy layer is undefined is a violation only if there is no other.

        Raises:
            Discard: it is refused.
        """
        case, reason = getattr(question, "case", question), ""  # a question in a context has a case
        if isinstance(case, Case) and leaves_range(case, self.caller.dtype):
            reason = "the right answer, or what leads to it, is so large that its square overflows"
        elif isinstance(case, Question) and not self.tally.undefined_counts:
            part = undefined(self.caller, case)
            if part is not None:
                reason = part.because
                self.tally.undefined = self.tally.undefined or violation
        if reason:
            self.tally.discard(reason)
            raise Discard(reason)

    def _explore(self, strategy: Any, effort: Effort) -> None:
        """Runs Hypothesis, which shrinks what it finds; its last failure is the smallest."""
        phases = (Phase.generate, Phase.target, *((Phase.shrink,) if effort.shrink else ()))

        # every field is set, because under CI Hypothesis loads a profile that would decide otherwise
        @hypothesis.seed(effort.seed)
        @settings(
            max_examples=effort.examples,
            database=None,
            deadline=None,
            derandomize=False,
            report_multiple_bugs=False,
            print_blob=False,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(strategy)
        def test(question: Any) -> None:
            try:
                margin = self._ask(question)
            except Discard:
                hypothesis.reject()
            hypothesis.target(min(margin, 1e300))

        quiet: Callable[[], None] = test
        try:
            with from_the_seed_alone():
                quiet()
        except (_Violated, _Faulted, _TimeUp, Unsatisfiable):
            return
        except Flaky:
            if self.tally.cut_short:  # after the time is up nothing fails any more, which is not flaky
                self._settle()
            else:
                self.tally.flaky = True

    def _ask_each(self, questions: Iterable[Any]) -> None:
        """Asks one question after the other, until one is violated or the time is up."""
        with suppress(_Violated, _Faulted, _TimeUp):
            for question in questions:
                with suppress(Discard):
                    self._ask(question)
        self._settle()

    def _scattered(self, offer: Offer, effort: Effort) -> Iterator[Any]:
        """Questions from a plain random generator, as many as requested."""
        for seed in range(effort.seed, effort.seed + effort.examples):
            if (question := self.property.questions.scattered(offer, seed)) is None:
                return
            yield question

    def _around(self, aiming: Aiming, offer: Offer, effort: Effort) -> Iterator[Any]:
        """Questions around the numbers in the code. The next one depends on what the one before reached."""
        questions, seed, left = self.property.questions, effort.seed, effort.examples
        numbers = list(questions.aims(offer, aiming.numbers))
        aims = deque(aiming.ordered(numbers, seed) if numbers else ())
        while aims and left and self.budget.spent() < self.budget.seconds / 2:
            aim, seed = aims.popleft(), seed + 1
            if (question := questions.aimed(offer, aim, seed)) is None:
                continue
            left, discarded = left - 1, self.tally.discarded
            aiming.around.add(aim.number.value)
            yield question
            if self.tally.discarded == discarded and aiming.reached_more():
                aims.extendleft([aim] * VARIED)

    def _settle(self) -> None:
        """Asks the violating question once more: Hypothesis replays what it finds, and so do the other searches."""
        if (violation := self.tally.violation) is not None:
            # a question that cannot be judged again, because it would now take too long, has not passed
            self.tally.flaky = self._still_fails(violation.question, violation, self._judge) is False

    def _reduce(self, offer: Offer) -> None:
        """Shrinks the violation as long as it still fails, within a number of tries."""
        tries = _TRIES
        while (
            tries > 0
            and (violation := self.tally.violation)
            and self.may_explain(_SMALLER)
            and not self.budget.passed()
        ):
            for question in self.property.questions.smaller(offer, violation.question):
                tries -= 1
                if self._still_fails(question, violation) or tries <= 0:
                    break
            else:
                return

    def _still_fails(
        self, question: Any, violation: Violation, ask: Callable[[Any], float] | None = None
    ) -> bool | None:
        """Whether a question fails in the same way as the violation; if so, it replaces the violation.

        None if it is discarded, and so neither fails nor passes.
        """
        try:
            (ask or self._ask)(question)
        except (_Violated, _Faulted):
            now = self.tally.violation
            if now is not None and type(now.fault) is type(violation.fault):
                return True
        except Discard:  # outside the premise after all
            self.tally.violation = violation
            return None
        except SuiteBroke:
            pass
        self.tally.violation = violation
        return False


def search_alone(subject: Subject, property_: Property, effort: Effort) -> PropertySearch:
    """Searches in this process, without the controls and explanations of `judge_property`."""
    caller = Caller(subject, property_.dtype or effort.dtype, effort.device)
    search = PropertySearch(caller, property_, CoreBudget(effort.seconds, lambda: caller.processes))
    with remembering(), suppress(Exception):  # if the suite itself fails, the tally holds no violation
        search.look(effort)
    return search

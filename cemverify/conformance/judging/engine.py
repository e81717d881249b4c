"""The engine: asks an implementation about properties, and emits events. Rendering is the listeners' business."""

from __future__ import annotations

import math
import time
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky, Unsatisfiable

from cemverify.conformance.asking.calls import NOBODY, Caller, Watch
from cemverify.conformance.implementations.contract import FUNCTIONS, EnergyLayer, Subject
from cemverify.conformance.implementations.faults import Discard, Fault, OutOfMemory, ran_out, words
from cemverify.conformance.judging.controls import CONTROLS, control
from cemverify.conformance.judging.localisation import Part, localise
from cemverify.conformance.judging.recording import save
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.oracle.evidence import Evidence
from cemverify.conformance.properties import Asked, Property
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.spaces import Source
from cemverify.devices import check_device

# The small source goes first: what it finds is readable. The scattered one goes last, see `spaces`.
_SOURCES: tuple[Source, ...] = ("small", "dense")
_TRIES = 400  # smaller forms of a violation that are looked at
_KEPT = 12  # telling examples that trivial controls are put to


@dataclass(frozen=True)
class Effort:
    """How hard to look.

    Attributes:
        examples: about so many for each property, more where options mix. seed: all that is drawn follows from it.
        seconds: the time budget of one property; one cut short is inconclusive.
        timeout: seconds that a single call may take before it counts as hung (isolated runs only).
        dtype: what properties are asked in, unless they name their own. device: where torch arrays live.
        memory: MB that a worker may hold (isolated runs only); None is no limit.
        shrink: whether to look for the smallest counterexample, or stop at the first.
    """

    examples: int = 60
    seed: int = 0
    seconds: float = 60.0
    timeout: float = 20.0
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    shrink: bool = True
    memory: int | None = None

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ValueError(f"at least one example, not {self.examples}")
        if not (0 < self.seconds < math.inf and 0 < self.timeout < math.inf):
            raise ValueError(f"time budgets must be positive and finite, not {self.seconds} and {self.timeout}")
        check_device(self.device)


@dataclass(frozen=True)
class RunStarted:
    """Before the first property: what is applicable, and what will be asked."""

    implementation: str
    applicable: int
    asked: int


@dataclass(frozen=True)
class PropertyFinished:
    """After each property, in the order in which they finish."""

    record: Record


@dataclass(frozen=True)
class RunFinished:
    """After the last: every record in catalogue order."""

    implementation: str
    records: Sequence[Record]
    seconds: float


Event = RunStarted | PropertyFinished | RunFinished


def applicable(subject: Subject, properties: Sequence[Property]) -> list[Property]:
    """The properties for the subject's door.

    Raises:
        ValueError: none of them is.
    """
    door = "energy layer" if isinstance(subject, EnergyLayer) else "cem"
    chosen = [p for p in properties if p.door == door]
    if not chosen:
        raise ValueError(
            f"none of these properties is for this kind of implementation ({door}); see `cemverify list`"
        )
    return chosen


def not_offered(property_: Property, absent: Mapping[str, str], dtype: torch.dtype) -> Record | None:
    """The record of a property that needs an absent feature; None if nothing is missing.

    Args:
        dtype: of the run; a dtype is a feature too.
    """
    asked_in = str(property_.dtype or dtype).removeprefix("torch.")
    missing = sorted((property_.needs | {f"dtype:{asked_in}"}) & absent.keys())
    if missing:
        reason = _missing(missing, absent)
    elif (group := property_.questions.emptied(absent)) is not None:
        reason = f"{group}: none is offered"
    else:
        return None
    return replace(_blank(property_), verdict=Verdict.NOT_OFFERED, reason=reason)


def _blank(property_: Property) -> Record:
    """A record that says what is asked, and nothing yet of the answer."""
    p = property_
    return Record(p.id, p.claim, p.source, Verdict.SUITE_ERROR, premise=p.premise, floor=p.floor)


def _missing(features: Sequence[str], absent: Mapping[str, str]) -> str:
    """A missing function explains all else; otherwise every missing feature is named."""
    functions = [name for name in features if name in FUNCTIONS]
    return "; ".join(f"{name}: {absent[name]}" for name in functions or features)


def run(subject: Subject, name: str, properties: Sequence[Property], effort: Effort) -> Iterator[Event]:
    """Asks in this process. A call that hangs or crashes takes the run with it; `isolation.run` survives both."""
    started = time.monotonic()
    asked = applicable(subject, properties)
    records = []
    yield RunStarted(name, len(asked), sum(not_offered(p, subject.not_offered, effort.dtype) is None for p in asked))
    for property_ in asked:
        record = not_offered(property_, subject.not_offered, effort.dtype) or judge_property(
            subject, property_, effort
        )
        records.append(record)
        yield PropertyFinished(record)
    yield RunFinished(name, records, time.monotonic() - started)


def judge_again(
    subject: Subject, property_: Property, question: Any, dtype: torch.dtype, device: str, watch: Watch = NOBODY
) -> Record:
    """Asks a property one question that was saved: violated or not, or, where it cannot be said, inconclusive."""
    started = time.monotonic()
    tally = _Tally()
    search = _Search(Caller(subject, dtype, device, watch), property_, tally, math.inf)
    record = _blank(property_)
    try:
        search.ask(question)
    except (_Violated, _Faulted):
        pass
    except Discard as discard:
        tally.discarded += 1
        tally.discard_reasons.append(str(discard))
    except _SuiteBroke as broke:
        return replace(record, reason=str(broke))
    tally.telling = tally.examples  # it was violated once, which is as telling as can be
    record = _conclude(record, tally, once=property_.once)
    return replace(record, seconds=time.monotonic() - started)


def judge_property(subject: Subject, property_: Property, effort: Effort, watch: Watch = NOBODY) -> Record:
    """Asks one property of small integer cases, of dense ones and of scattered ones, until one violates it."""
    started = time.monotonic()
    caller = Caller(subject, property_.dtype or effort.dtype, effort.device, watch)
    dim = subject.dim if isinstance(subject, EnergyLayer) else 1
    asked = Asked(frozenset(subject.not_offered), dim)
    each = max(2, round(effort.examples * property_.share / (len(_SOURCES) + 1)))
    tally = _Tally()
    search = _Search(caller, property_, tally, started + effort.seconds)
    record = _blank(property_)
    try:
        for source in _SOURCES:
            if tally.found is None:
                strategy = property_.questions.search(source, asked)
                _explore(search, strategy, replace(effort, examples=each, seed=_seed(effort, property_, source)))
        if tally.found is None:
            _scatter(search, asked, replace(effort, examples=each, seed=_seed(effort, property_, "scattered")))
        if tally.found is not None and effort.shrink and not tally.flaky:
            _reduce(search, asked)
        record = _conclude(record, tally, once=property_.once)
        if record.verdict == Verdict.HOLDS:
            record = _against_controls(record, search)
        elif record.verdict == Verdict.VIOLATED and effort.shrink and tally.found is not None:
            record = _explained(record, search, tally.found)
    except _SuiteBroke as broke:
        record = replace(record, reason=str(broke))
    except Exception as error:  # while drawing or shrinking: the suite's doing, whatever it is
        record = replace(record, reason=f"the suite itself failed: {words(error)}")
    return replace(record, seconds=time.monotonic() - started)


# --- the search for a counterexample --------------------------------------------------------------


class _Violated(Exception):
    """A comparison failed; raised in one place, so that shrinking keeps to one kind of failure."""


class _Faulted(Exception):
    """A call gave no answer to compare."""


class _SuiteBroke(Exception):
    """The suite itself raised: its fault, not the implementation's."""


class _TimeUp(Exception):
    """The property's time budget is spent."""


@dataclass(frozen=True)
class _Finding:
    question: Any
    evidence: Evidence | None
    fault: Fault | None

    @property
    def margin(self) -> float:
        """The worst of its comparisons; a NaN is worse than any other."""
        margin = math.inf if self.evidence is None else self.evidence.worst.margin
        return math.inf if math.isnan(margin) else margin

    @property
    def asked(self) -> Any:
        """The case as it was asked."""
        return self.question if self.evidence is None or self.evidence.asked is None else self.evidence.asked


@dataclass
class _Tally:
    """What a property's examples amount to so far."""

    examples: int = 0
    telling: int = 0
    discarded: int = 0
    margin: float = 0.0
    found: _Finding | None = None
    worst: _Finding | None = None
    flaky: bool = False
    cut_short: bool = False
    discard_reasons: list[str] = field(default_factory=list)
    told: deque[Any] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def note(self, finding: _Finding) -> None:
        """A violation; the first is an example that told, later ones are smaller forms of it."""
        if self.found is None:
            self.examples += 1
            self.telling += 1
        self.found = finding
        if finding.evidence is not None and (self.worst is None or finding.margin > self.worst.margin):
            self.worst = finding


@dataclass(frozen=True)
class _Search:
    caller: Caller
    property: Property
    tally: _Tally
    until: float

    def ask(self, question: Any) -> float:
        """Judges one question, counts it, raises on a violation, and returns the margin."""
        tally = self.tally
        if time.monotonic() > self.until:
            tally.cut_short = True
            if tally.found is None:
                raise _TimeUp
            return 0.0  # while shrinking: what was found so far will do
        self.caller.watch.asking(question)
        try:
            evidence = self.property.check(self.caller, question)
            margin = evidence.worst.margin
        except Discard as discard:
            if tally.found is None:
                tally.discarded += 1
                tally.discard_reasons.append(str(discard))
            raise
        except Fault as fault:
            tally.note(_Finding(question, None, fault))
            raise _Faulted from fault
        except Exception as error:
            if ran_out(error):  # the suite needs little: an earlier call holds what is missing
                shortage = OutOfMemory("it holds so much memory that the suite has none left")
                tally.note(_Finding(question, None, shortage))
                raise _Faulted from None
            where = traceback.extract_tb(error.__traceback__)[-1]
            at = f"{words(error)} (line {where.lineno} of {where.name})"
            raise _SuiteBroke(f"the suite itself failed: {at}") from error
        if not margin <= 1:
            tally.note(_Finding(question, evidence, None))
            raise _Violated
        if tally.found is None:  # while shrinking nothing counts any more
            tally.examples += 1
            tally.telling += evidence.telling
            if evidence.telling:
                tally.told.append(question)
            tally.margin = max(tally.margin, margin)
        return margin


def _explore(search: _Search, strategy: Any, effort: Effort) -> None:
    """Runs Hypothesis, which shrinks whatever it finds; the last failure it runs is the smallest."""
    phases = (Phase.generate, Phase.target, *((Phase.shrink,) if effort.shrink else ()))

    # every field is stated: under CI Hypothesis loads a profile that would decide otherwise
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
            margin = search.ask(question)
        except Discard:
            hypothesis.reject()
        hypothesis.target(min(margin, 1e300))

    quiet: Callable[[], None] = test
    try:
        quiet()
    except (_Violated, _Faulted, _TimeUp, Unsatisfiable):
        return
    except Flaky:
        # after the time is up nothing fails any more, which is not the implementation's doing
        search.tally.flaky = not search.tally.cut_short


def _scatter(search: _Search, asked: Asked, effort: Effort) -> None:
    """Questions by a plain random generator, until one of them finds a violation."""
    for i in range(effort.examples):
        question = search.property.questions.scattered(asked, effort.seed + i)
        if question is None:
            return
        try:
            search.ask(question)
        except Discard:
            continue
        except _TimeUp:
            return
        except (_Violated, _Faulted):
            found = search.tally.found
            assert found is not None
            # Hypothesis replays what it finds, and so does this
            search.tally.flaky = not _still_fails(search, question, found)
            return


def _reduce(search: _Search, asked: Asked) -> None:
    """Makes what was found smaller for as long as it still fails, within a number of tries."""
    tries = _TRIES
    while tries > 0 and time.monotonic() < search.until:
        found = search.tally.found
        assert found is not None
        for question in search.property.questions.smaller(asked, found.question):
            tries -= 1
            if _still_fails(search, question, found) or tries <= 0:
                break
        else:
            return


def _still_fails(search: _Search, question: Any, found: _Finding) -> bool:
    """Whether a smaller question fails in the same way; anything else leaves what was found as it was."""
    try:
        search.ask(question)
    except (_Violated, _Faulted):
        now = search.tally.found
        assert now is not None
        if (now.fault is None) == (found.fault is None) and type(now.fault) is type(found.fault):
            return True
    except (Discard, _SuiteBroke):  # outside the premise after all
        pass
    search.tally.found = found
    return False


def _seed(effort: Effort, property_: Property, source: str) -> int:
    return zlib.crc32(f"{effort.seed}/{property_.id}/{source}".encode())


def _conclude(record: Record, tally: _Tally, *, once: bool) -> Record:
    record = replace(record, examples=tally.examples, telling=tally.telling, discarded=tally.discarded)
    if tally.flaky and not (once and tally.found is not None):
        reason = "non-deterministic: a case failed once and not again"
        return replace(record, verdict=Verdict.INCONCLUSIVE, reason=reason)
    if tally.found is not None:
        return _violation(record, tally.found, tally.worst)
    if tally.cut_short:
        reason = f"its time budget was spent after {tally.examples} examples"
        return replace(record, verdict=Verdict.INCONCLUSIVE, reason=reason, margin=tally.margin)
    if not tally.examples:
        reason = f"no valid example: {', '.join(sorted(set(tally.discard_reasons))) or 'none could be drawn'}"
        return replace(record, verdict=Verdict.INCONCLUSIVE, reason=reason)
    if not tally.telling:
        reason = f"none of {tally.examples} examples could have told right from wrong"
        return replace(record, verdict=Verdict.INCONCLUSIVE, reason=reason, margin=tally.margin)
    share = tally.telling / tally.examples
    if share < record.floor:
        premise = f" ({record.premise})" if record.premise else ""
        reason = (
            f"only {_percent(share)} of {tally.examples} examples could have told right from wrong{premise}; "
            f"at least {_percent(record.floor)} must"
        )
        return replace(record, verdict=Verdict.INCONCLUSIVE, reason=reason, margin=tally.margin)
    return replace(record, verdict=Verdict.HOLDS, margin=tally.margin)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _against_controls(record: Record, search: _Search) -> Record:
    """Puts trivial answers to the latest examples that told; what one of them passes proves nothing."""
    told = list(search.tally.told)[::-1]  # the scattered ones first, which are generic
    outcomes = {}
    for name in sorted(search.property.controls):
        trivial = control(name, search.caller)
        failed = any(_fails(trivial, search.property, question) for question in told)
        outcomes[name] = "failed" if failed else "passed"
    record = replace(record, controls=outcomes)
    if passed := [name for name, outcome in outcomes.items() if outcome == "passed"]:
        listed = " and ".join(f"one that {CONTROLS[name]} ({name})" for name in passed)
        reason = f"{listed} would have passed too, on {len(told)} of these examples"
        return replace(record, verdict=Verdict.INCONCLUSIVE, reason=reason)
    return record


def _fails(caller: Caller, property_: Property, question: Any) -> bool:
    try:
        return not property_.check(caller, question).worst.margin <= 1
    except Fault:
        return True
    except Discard:
        return False


def _explained(record: Record, search: _Search, found: _Finding) -> Record:
    """A violation with the part that is wrong, and with all that it takes to ask again."""
    try:
        part = _located(search, found)
    except Exception as error:  # what was found stands all the same
        part = None
        record = replace(record, because=f"looking for the part failed: {words(error)}")
    return replace(
        record,
        part=None if part is None else part.name,
        because=record.because if part is None else part.because,
        saved=save(search.caller, search.property.check, found.question),
    )


def _located(search: _Search, found: _Finding) -> Part | None:
    """From the smallest case, or from the worst one where that is too small to tell."""
    for finding in (found, search.tally.worst):
        for case in () if finding is None else (finding.asked, finding.question):
            if isinstance(case, Case) and (part := localise(search.caller, case)) is not None:
                return part
    return None


def _violation(record: Record, found: _Finding, largest: _Finding | None) -> Record:
    counterexample: dict[str, Any] = {"case": found.asked.describe()}
    if found.fault is not None:
        cause, reason, margin = found.fault.cause, str(found.fault), None
    else:
        assert found.evidence is not None
        worst = found.evidence.worst
        cause, margin = worst.what, worst.margin
        counterexample["comparison"] = worst.describe()
        there = counterexample["comparison"]
        beyond = f"{margin:.3g} times the budget of {there['budget_there']:.2g}"
        if there["budget_there"] == 0:
            beyond = "where roundoff explains nothing"
        relation = "expected" if worst.relation == "equal" else "expected at most"
        sides = "got {}, {} {}".format(*_told_apart(there["got_there"], relation, there["expected_there"]))
        reason = f"{worst.what}: {sides} at {tuple(there['worst_index'])}, {beyond}"
    return replace(
        record,
        verdict=Verdict.VIOLATED,
        cause=cause,
        reason=reason,
        margin=margin,
        counterexample=counterexample,
        worst=None if largest is None else _in_few_words(largest),
    )


def _in_few_words(finding: _Finding) -> dict[str, Any]:
    """An example without its arrays: how large it is, and how far off at its worst coordinate."""
    assert finding.evidence is not None
    case, comparison = finding.asked.describe(), finding.evidence.worst.describe()
    kept = ("got_there", "expected_there", "budget_there", "worst_index", "margin")
    sizes = {key: case[key] for key in ("tokens", "dim", "config") if key in case}
    return {**sizes, "claim": comparison["claim"], **{key: comparison[key] for key in kept}}


def _told_apart(got: float, relation: str, expected: float) -> tuple[str, str, str]:
    """Both numbers with as many digits as it takes to tell them apart."""
    for digits in (6, 10, 17):
        left, right = f"{got + 0.0:.{digits}g}", f"{expected + 0.0:.{digits}g}"
        if left != right:
            break
    return left, relation, right

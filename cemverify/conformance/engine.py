"""The engine: asks an implementation about properties, and emits events. Rendering is the listeners' business."""

from __future__ import annotations

import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky, HypothesisException, Unsatisfiable

from cemverify.conformance.calls import Caller, Watch, nobody_watches
from cemverify.conformance.cases import Source
from cemverify.conformance.contract import EnergyLayer, Subject
from cemverify.conformance.evidence import Evidence
from cemverify.conformance.faults import Discard, Fault
from cemverify.conformance.properties import Asked, Property
from cemverify.conformance.verdicts import Record, Verdict

# The small source goes first: what it finds is readable.
_SOURCES: tuple[Source, ...] = ("small", "dense")


@dataclass(frozen=True)
class Effort:
    """How hard to look.

    Attributes:
        examples: for each property, over both sources. seed: everything drawn follows from it.
        seconds: the time budget of one property; one cut short is inconclusive.
        timeout: seconds that a single call may take before it counts as hung (isolated runs only).
        dtype: what properties are asked in, unless they name their own. device: where torch arrays live.
        shrink: whether to look for the smallest counterexample, or stop at the first.
    """

    examples: int = 60
    seed: int = 0
    seconds: float = 60.0
    timeout: float = 20.0
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    shrink: bool = True

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ValueError(f"at least one example, not {self.examples}")
        if self.seconds <= 0 or self.timeout <= 0:
            raise ValueError("time budgets must be positive")


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
    """The properties for the subject's door."""
    door = "energy layer" if isinstance(subject, EnergyLayer) else "cem"
    return [p for p in properties if p.door == door]


def not_offered(property_: Property, absent: Mapping[str, str]) -> Record | None:
    """The record of a property that needs an absent feature; None if nothing is missing."""
    missing = sorted(property_.needs & absent.keys())
    if not missing:
        return None
    reason = "; ".join(f"{name}: {absent[name]}" for name in missing)
    return Record(property_.id, property_.claim, property_.source, Verdict.NOT_OFFERED, reason=reason)


def run(subject: Subject, name: str, properties: Sequence[Property], effort: Effort) -> Iterator[Event]:
    """Asks in this process. A call that hangs or crashes takes the run with it; `isolation.run` survives both."""
    started = time.monotonic()
    asked = applicable(subject, properties)
    records = []
    yield RunStarted(name, len(asked), sum(not_offered(p, subject.not_offered) is None for p in asked))
    for property_ in asked:
        record = not_offered(property_, subject.not_offered) or judge_property(subject, property_, effort)
        records.append(record)
        yield PropertyFinished(record)
    yield RunFinished(name, records, time.monotonic() - started)


def judge_property(subject: Subject, property_: Property, effort: Effort, watch: Watch = nobody_watches) -> Record:
    """Asks one property, first of small integer cases, then of dense ones; stops at a violation."""
    started = time.monotonic()
    caller = Caller(subject, property_.dtype or effort.dtype, effort.device, watch)
    dim = subject.dim if isinstance(subject, EnergyLayer) else 1
    asked = Asked(frozenset(subject.not_offered), dim)
    each = max(2, round(effort.examples * property_.share / len(_SOURCES)))
    tally = _Tally()
    record = Record(property_.id, property_.claim, property_.source, Verdict.SUITE_ERROR)
    try:
        for source in _SOURCES:
            search = _Search(caller, property_, source, tally, started + effort.seconds)
            seed = zlib.crc32(f"{effort.seed}/{property_.id}/{source}".encode())
            _explore(search, property_.questions(source, asked), replace(effort, examples=each, seed=seed))
            if tally.found is not None:
                break
        record = _conclude(record, tally)
    except _SuiteBroke as broke:
        record = replace(record, reason=str(broke))
    except HypothesisException as error:
        record = replace(record, reason=f"{type(error).__name__}: {error}")
    return replace(record, seconds=time.monotonic() - started)


# --- the search for a counterexample --------------------------------------------------------------


class _Violated(Exception):
    """A comparison failed; raised in one place, so that shrinking keeps to one kind of failure."""


class _Faulted(Exception):
    """A call gave no answer to compare."""


class _SuiteBroke(Exception):
    """The suite itself raised: its fault, not the implementation's."""


@dataclass(frozen=True)
class _Finding:
    question: Any
    evidence: Evidence | None
    fault: Fault | None


@dataclass
class _Tally:
    """What a property's examples amount to so far."""

    examples: int = 0
    telling: int = 0
    discarded: int = 0
    margin: float = 0.0
    found: _Finding | None = None
    flaky: bool = False
    cut_short: bool = False
    discard_reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Search:
    caller: Caller
    property: Property
    source: Source
    tally: _Tally
    until: float

    def ask(self, question: Any) -> None:
        """Judges one question, counts it, and raises on a violation."""
        tally = self.tally
        if time.monotonic() > self.until:
            tally.cut_short = True
            return
        try:
            evidence = self.property.check(self.caller, question)
            margin = evidence.worst.margin
        except Discard as discard:
            tally.discarded += 1
            tally.discard_reasons.append(str(discard))
            hypothesis.reject()
        except Fault as fault:
            tally.found = _Finding(question, None, fault)
            raise _Faulted from fault
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            at = f"{type(error).__name__}: {error} (line {where.lineno} of {where.name})"
            raise _SuiteBroke(f"the suite itself failed: {at}") from error
        hypothesis.target(min(margin, 1e300))
        if not margin <= 1:
            tally.found = _Finding(question, evidence, None)
            raise _Violated
        tally.examples += 1
        tally.telling += evidence.telling
        tally.margin = max(tally.margin, margin)


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
        search.ask(question)

    quiet: Callable[[], None] = test
    try:
        quiet()
    except (_Violated, _Faulted):
        return
    except Unsatisfiable:
        return
    except Flaky:
        # after the time is up nothing fails any more, which is not the implementation's doing
        search.tally.flaky = not search.tally.cut_short


def _conclude(record: Record, tally: _Tally) -> Record:
    record = replace(record, examples=tally.examples, telling=tally.telling, discarded=tally.discarded)
    if tally.flaky:
        reason = "non-deterministic: a case failed once and not again"
        return replace(record, verdict=Verdict.INCONCLUSIVE, reason=reason)
    if tally.found is not None:
        return _violation(record, tally.found)
    if tally.cut_short:
        reason = f"its time budget was spent after {tally.examples} examples"
        return replace(record, verdict=Verdict.INCONCLUSIVE, reason=reason, margin=tally.margin)
    if not tally.examples:
        reason = f"no valid example: {', '.join(sorted(set(tally.discard_reasons))) or 'none could be drawn'}"
        return replace(record, verdict=Verdict.INCONCLUSIVE, reason=reason)
    if not tally.telling:
        reason = f"none of {tally.examples} examples could have told right from wrong"
        return replace(record, verdict=Verdict.INCONCLUSIVE, reason=reason, margin=tally.margin)
    return replace(record, verdict=Verdict.HOLDS, margin=tally.margin)


def _violation(record: Record, found: _Finding) -> Record:
    counterexample: dict[str, Any] = {"case": found.question.describe()}
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
        sides = f"got {there['got_there']:.6g}, {relation} {there['expected_there']:.6g}"
        reason = f"{worst.what}: {sides} at {tuple(there['worst_index'])}, {beyond}"
    return replace(
        record, verdict=Verdict.VIOLATED, cause=cause, reason=reason, margin=margin, counterexample=counterexample
    )

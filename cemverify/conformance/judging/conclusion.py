"""Turns the result of a search into a verdict, a sentence and the numbers behind it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from cemverify.conformance.implementations.faults import Fault, Unsupported
from cemverify.conformance.judging.search import SearchTally, Violation
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.oracle.evidence import Evidence, Key
from cemverify.conformance.properties import Property

_SLOWER = 1.25  # later examples may take longer than earlier ones


def unanswered(property_: Property) -> Record:
    """The record of a property that has no verdict yet."""
    p = property_
    return Record(
        p.id, p.claim, p.source, Verdict.SUITE_ERROR, stated_in=p.stated_in, premise=p.premise, floor=p.floor
    )


def by_fault(record: Record, fault: Fault) -> Record:
    """The record of a violation because a call returned nothing to compare."""
    return replace(
        record,
        verdict=Verdict.VIOLATED,
        cause=fault.cause,
        key=Key(fault.cause, fault.of),
        reason=str(fault),
        raised_at=fault.at,
        declaration=fault.declaration,
    )


def conclude(property_: Property, tally: SearchTally, seconds: float = math.inf) -> Record:
    """The record with the verdict that follows from the tally; seconds are the time budget."""
    record = replace(unanswered(property_), examples=tally.examples, telling=tally.telling, discarded=tally.discarded)
    if tally.flaky and not (property_.once and tally.violation is not None):
        return _inconclusive(record, "non-deterministic: a case failed once and passed when it was repeated")
    if tally.violation is not None and isinstance(tally.violation.fault, Unsupported):
        return _inconclusive(record, str(tally.violation.fault))
    if tally.violation is not None:
        return _violated(record, tally.violation, tally.largest)
    if tally.cut_short:
        return _inconclusive(record, _out_of_time(tally, seconds), tally.margin)
    if not tally.examples:
        return _inconclusive(
            record, f"no valid example: {', '.join(sorted(set(tally.discard_reasons))) or 'none could be drawn'}"
        )
    premise = f" (telling: {record.premise})" if record.premise else ""
    if not tally.telling:
        reason = f"none of {tally.examples} examples was telling{premise}"
        return _inconclusive(record, reason, tally.margin)
    share = tally.telling / tally.examples
    if share < record.floor:
        reason = (
            f"only {_percent(share)} of {tally.examples} examples were telling{premise}; "
            f"at least {_percent(record.floor)} must be"
        )
        return _inconclusive(record, reason, tally.margin)
    return replace(record, verdict=Verdict.HOLDS, margin=tally.margin, asked_up_to=tally.sizes)


def _out_of_time(tally: SearchTally, seconds: float) -> str:
    """How far it came, and how much time would be enough."""
    done = tally.examples + tally.discarded
    if done and not tally.examples:
        return f"the time budget of {seconds:g} seconds ran out after {done} examples, none of which could be judged"
    reason = f"the time budget of {seconds:g} seconds ran out after {done} of about {tally.planned} examples"
    if not done:
        return f"{reason}; give more with --seconds"
    enough = math.ceil(_SLOWER * seconds * max(tally.planned / done, 1))
    return f"{reason}; --seconds {enough} would do"


def _inconclusive(record: Record, reason: str, margin: float | None = None) -> Record:
    return replace(record, verdict=Verdict.INCONCLUSIVE, reason=reason, margin=margin)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _violated(record: Record, violation: Violation, largest: Violation | None) -> Record:
    counterexample: dict[str, Any] = {"case": violation.tested.describe()}
    cause, key, reason, margin = "", Key(""), "", None
    if violation.fault is not None:
        record = by_fault(record, violation.fault)
        cause, key, reason = str(record.cause), record.key or key, str(record.reason)
    elif violation.evidence is not None:
        comparison = violation.evidence.worst
        counterexample["case"] |= {name: array.tolist() for name, array in violation.evidence.drawn.items()}
        counterexample["comparison"] = comparison.describe()
        cause, key, margin = str(comparison.claim), comparison.key, comparison.margin
        reason = sentence(violation.evidence)
    return replace(
        record,
        verdict=Verdict.VIOLATED,
        cause=cause,
        key=key,
        reason=reason,
        margin=margin,
        counterexample=counterexample,
        worst=None
        if largest is None or largest.evidence is None
        else _in_few_words(largest.tested, largest.evidence),
    )


def sentence(evidence: Evidence) -> str:
    """The actual and the expected value at the worst coordinate."""
    comparison = evidence.worst
    there = comparison.describe()
    beyond = f"{comparison.margin:.3g} times the budget of {there['budget_there']:.2g}"
    if there["budget_there"] == 0:
        beyond = "where the roundoff budget is 0"
    got, expected = _told_apart(there["got_there"], there["expected_there"])
    relation = "expected" if comparison.relation == "equal" else "expected at most"
    return f"{comparison.claim}: got {got}, {relation} {expected} at {tuple(there['worst_index'])}, {beyond}"


def _told_apart(got: float, expected: float) -> tuple[str, str]:
    """Both numbers with as many digits as are needed to tell them apart."""
    left = right = ""
    for digits in (6, 10, 17):
        left, right = f"{got + 0.0:.{digits}g}", f"{expected + 0.0:.{digits}g}"
        if left != right:
            break
    return left, right


def _in_few_words(tested: Any, evidence: Evidence) -> dict[str, Any]:
    """An example without its arrays: its size, and the error at its worst coordinate."""
    case, comparison = tested.describe(), evidence.worst.describe()
    keys = ("got_there", "expected_there", "budget_there", "worst_index", "margin")
    sizes = {key: case[key] for key in ("tokens", "dim", "config") if key in case}
    return {**sizes, "claim": comparison["claim"], **{key: comparison[key] for key in keys}}

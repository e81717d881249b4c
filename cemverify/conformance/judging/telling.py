"""A violated property in words: the claim, what happened, and the case that shows it with all its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cemverify.conformance.implementations.faults import Crashed, Hung
from cemverify.conformance.judging.verdicts import Record

_LONGEST = 240  # characters of an array that is shown in full
_SHOWN = 160  # of a longer one
# What a described case holds besides its arrays; a state or a memory may have any other name.
_NOT_ARRAYS = ("layer", "tokens", "dim", "config", "weights")
_SIDES = ("got", "expected")


def violation(record: Record) -> str:
    """A violated property: the claim, what happened, and the smallest case with all its numbers.

    Where the process was lost there was no looking for a smaller one.
    """
    lines = [f"VIOLATED {record.id}", f"  claim: {record.claim}", f"  source: {record.source}", f"  {record.reason}"]
    if record.part is not None:
        lines.append(f"  wrong part: {record.part} ({record.because})")
    if record.counterexample is not None:
        lines.append(f"  {found(record)}: {size(record.counterexample['case'])}")
        facts = list(facts_of(record.counterexample))
        wide = max((len(name) for name, _ in facts if name not in _SIDES), default=0)
        lines += [f"    {name:<{8 if name in _SIDES else max(7, wide)}} {value}" for name, value in facts]
    if record.counterexample is not None and record.worst is not None:
        lines.append(f"  worst example seen: {_worst(record.worst)}")
    return "\n".join(lines)


def headline(record: Record) -> str:
    """A violation in a few words that begin with its cause: the wrong part, or what went wrong."""
    comparison = (record.counterexample or {}).get("comparison")
    if comparison is None or record.part is None:
        return record.part if record.part is not None and record.reason is None else str(record.reason)
    got, expected = (f"{comparison[side]:.6g}" for side in ("got_there", "expected_there"))
    return f"{record.part}: got {got}, expected {expected}"


def found(record: Record) -> str:
    """What a report calls the case of a violation: the smallest found, or the one tested when a worker was lost."""
    return "case tested at that moment" if record.cause in (Hung.cause, Crashed.cause) else "smallest case found"


def facts_of(counterexample: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Everything that the layer was asked, by name, and both sides of the comparison."""
    case = counterexample["case"]
    if case.get("config"):
        yield "config", ", ".join(f"{key}={_rounded(value)}" for key, value in case["config"].items())
    for name, value in case.items():
        if name not in _NOT_ARRAYS:
            yield name, _array(value)
    for name, value in sorted(case.get("weights", {}).items()):
        yield name, _array(value)
    comparison = counterexample.get("comparison", {})
    for side in _SIDES:
        if side in comparison:
            yield side, _array(comparison[side])


def size(case: Mapping[str, Any]) -> str:
    """How large a case is, as far as its state has axes to say so."""
    axes = [number(case[key], noun) for key, noun in (("tokens", "token"), ("dim", "dimension")) if key in case]
    return ", ".join(axes) or "of unknown size"


def number(count: int, noun: str) -> str:
    """A number and what it counts, in the singular or the plural."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def _worst(worst: Mapping[str, Any]) -> str:
    """The failing example with the largest margin, in one line."""
    got, expected = (f"{worst[side]:.6g}" for side in ("got_there", "expected_there"))
    return f"{size(worst)}, got {got}, expected {expected}, margin {worst['margin']:.3g}"


def _array(values: Any) -> str:
    text = repr(_rounded(values))
    return text if len(text) <= _LONGEST else f"{text[:_SHOWN]}… (in full in --json)"


def _rounded(values: Any) -> Any:
    if isinstance(values, list):
        return [_rounded(v) for v in values]
    return float(f"{values:.6g}") + 0.0 if isinstance(values, float) else values

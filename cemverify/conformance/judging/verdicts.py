"""Verdicts, the records that carry them, and a violated property in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce
from html import escape
from operator import getitem
from typing import Any

import numpy as np

from cemverify.catalogue import versions
from cemverify.catalogue.index import largest
from cemverify.conformance.implementations.faults import FAULTS, Crashed, Hung
from cemverify.conformance.implementations.origin import Place
from cemverify.conformance.oracle.evidence import Key
from cemverify.conformance.questions.saving import Saved

_LONGEST = 240  # characters of an array that is shown in full
_CUT = "… (cut)"  # ends the text of an array that is too long
# What a case's description holds besides its arrays; a state or a memory may have any other name.
_NOT_ARRAYS = ("layer", "tokens", "dim", "config", "weights")
_SIDES = ("got", "expected")


class Verdict(StrEnum):
    """What a run concludes about one property."""

    HOLDS = "holds"
    VIOLATED = "violated"
    INCONCLUSIVE = "inconclusive"
    NOT_OFFERED = "not offered"
    SUITE_ERROR = "suite error"


@dataclass(frozen=True, repr=False)
class Record:
    """One property's verdict and the evidence for it.

    Attributes:
        id, claim, source: of the property.
        verdict: see `Verdict`.
        examples: valid examples. telling: those that could have exposed a wrong layer. discarded: those not judged.
        premise: what makes an example telling. floor: the least share of telling examples for a verdict.
        controls: for each trivial control, whether it "failed" the same examples, as it must, or "passed"; likewise
            for each mutant of a property of your own.
        asked_up_to: the largest sizes among the telling examples that held, by letter: T, J, B, M, K, D.
        margin: the largest error divided by its bound; above 1 on a violation.
        cause: for a violation, which identity failed or which kind of fault. key: the same for programs. reason: a
            sentence.
        counterexample: the smallest case found, both sides, and the worst coordinate.
        worst: a summary of the failing example with the largest margin.
        part: for a violation, which part of the layer is wrong, if it could be named. because: how this shows.
        line: the first line of its code that the smallest case runs and no passing example does, or None.
        raised_at: the file and line of its code at which a call raised; None if none did. declaration: whether the
            declaration may be wrong instead.
        ran: the functions of its files that the smallest case runs, the one that does most first, if recorded.
        saved: everything needed to repeat the smallest case; not in result files.
        known: why a violation is accepted for now, if it is (see `known_violations`).
        newer_than: the version of the catalogue that the run is pinned to, if the property came after it: then the
            record is reported but not enforced.
        stated_in: the module that states the property, if it is not in the catalogue.
        seconds: how long it took.
    """

    id: str
    claim: str
    source: str
    verdict: Verdict
    examples: int = 0
    telling: int = 0
    discarded: int = 0
    premise: str = ""
    floor: float = 0.0
    controls: Mapping[str, str] = field(default_factory=dict)
    asked_up_to: Mapping[str, int] = field(default_factory=dict)
    margin: float | None = None
    cause: str | None = None
    reason: str | None = None
    counterexample: Mapping[str, Any] | None = None
    worst: Mapping[str, Any] | None = None
    part: str | None = None
    because: str | None = None
    line: Place | None = None
    saved: Saved | None = field(default=None, repr=False)
    known: str | None = None
    newer_than: str | None = None
    stated_in: str | None = None
    seconds: float = 0.0
    # new in 1.1; they come last because the others may be given by position
    key: Key | None = None
    raised_at: tuple[str, int] | None = None
    declaration: bool = False
    ran: Sequence[Place] = ()

    @property
    def not_enforced(self) -> bool:
        """Whether it is neither green nor accepted, but does not fail the run because the property is too new."""
        green = self.verdict in (Verdict.HOLDS, Verdict.NOT_OFFERED)
        return self.newer_than is not None and self.known is None and not green

    def __repr__(self) -> str:
        """The verdict and, for a violation, its margin and the wrong part; `print` shows the case."""
        margin = "" if self.margin is None else f", margin {self.margin:.3g}"
        return f"Record({self.id}: {self.verdict}{margin}{f', {self.part}' if self.part else ''})"

    def __str__(self) -> str:
        """What a run reports of it; for a violation, the case with all its numbers."""
        if self.verdict == Verdict.VIOLATED:
            return violation(self)
        return f"{str(self.verdict).upper()} {self.id}{f': {self.reason}' if self.reason else ''}"

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        return f"<pre>{escape(str(self))}</pre>"

    @property
    def family(self) -> str:
        """The part of the id before the first slash."""
        return self.id.partition("/")[0]

    @property
    def name(self) -> str:
        """The part of the id after the last slash."""
        return self.id.rpartition("/")[2]

    @property
    def is_fault(self) -> bool:
        """Whether it is a violation because a call returned nothing to compare."""
        return self.key is not None and self.key.kind in FAULTS

    @property
    def share(self) -> float | None:
        """The share of telling examples."""
        return self.telling / self.examples if self.examples else None

    @property
    def options(self) -> list[str]:
        """The options of `cemverify check` that test only this property, as words."""
        return ["--properties", self.id, *(["--properties-from", self.stated_in] if self.stated_in else [])]

    def describe(self) -> dict[str, Any]:
        """As JSON, without the entries that do not apply."""
        share = self.share
        optional = {
            "premise": self.premise or None,
            "controls": dict(self.controls) or None,
            "asked_up_to": dict(self.asked_up_to) or None,
            "cause": self.cause,
            "key": None if self.key is None else str(self.key),
            "part": self.part,
            "because": self.because,
            "reason": self.reason,
            "worst": self.worst,
            "known": self.known,
            "introduced": versions.introduced().get(self.id),
            "newer_than": self.newer_than,
            "stated_in": self.stated_in,
            "counterexample": self.counterexample,
        }
        return {
            "id": self.id,
            "verdict": str(self.verdict),
            "claim": self.claim,
            "source": self.source,
            "examples": self.examples,
            "telling": self.telling,
            "share_telling": None if share is None else round(share, 4),
            "floor": self.floor,
            "discarded": self.discarded,
            "margin": self.margin,
            "seconds": round(self.seconds, 3),
            **{key: value for key, value in optional.items() if value is not None},
        }


def pin(records: Iterable[Record], version: str | None) -> list[Record]:
    """The records; those of properties newer than that version of the catalogue are marked. None marks nothing."""
    return [replace(r, newer_than=version if versions.is_newer(r.id, version) else None) for r in records]


def violations(records: Iterable[Record]) -> list[Record]:
    """The violations that fail a run, the most fundamental first: the first one is the headline of every report.

    If one call has two answers, as with dropout in training mode, that comes first: nothing else means much then.

    Args:
        records: in catalogue order, which is otherwise kept.
    """
    unaccepted = [
        record
        for record in records
        if record.verdict == Verdict.VIOLATED and record.known is None and not record.not_enforced
    ]
    return sorted(unaccepted, key=lambda record: 2 * (not is_random(record)) or record.name != DETERMINISM)


# wrong parts that are no part of the formula
DETERMINISM = "determinism"  # the name of properties that repeat a call
TWO_ANSWERS, EDITED, BACKWARD = "one call has two answers", "an argument that a call edits", "the backward pass"
HALVES = {"attention": "the block's attention", "mlp": "the block's MLP"}
# parts where the declaration of an energy layer, and not its update, says nothing
NO_STEP_SIZE, NO_ENERGY = UNDEFINED = "the declared step size", "the declared energy"
DECLARED_STEPS = "the declared steps"  # the update is right for other steps than the default that is declared


def is_random(record: Record) -> bool:
    """Whether the same call gave two different answers."""
    return record.part == TWO_ANSWERS or (record.name == DETERMINISM and not record.is_fault)


def asked_up_to(records: Iterable[Record]) -> dict[str, int]:
    """The largest sizes at which a property that holds was tested, by letter: a pass says nothing beyond them."""
    return largest(record.asked_up_to for record in records if record.verdict == Verdict.HOLDS)


def counts(records: Iterable[Record], unasked: int = 0) -> dict[str, int]:
    """How many properties are applicable, were run, and got each verdict.

    Also how many of the violated ones are known, and how many that are not green are not enforced.

    Args:
        unasked: properties that are offered but have no record, because the run ended first.
    """
    records = list(records)
    tally = Counter(record.verdict for record in records)
    judged = sum(tally.values())
    return {
        "applicable": judged + unasked,
        "run": judged - tally[Verdict.NOT_OFFERED],
        "holds": tally[Verdict.HOLDS],
        "violated": tally[Verdict.VIOLATED],
        "known": sum(record.known is not None for record in records),
        "not_enforced": sum(record.not_enforced for record in records),
        "inconclusive": tally[Verdict.INCONCLUSIVE],
        "not_offered": tally[Verdict.NOT_OFFERED],
        "not_asked": unasked,
        "suite_error": tally[Verdict.SUITE_ERROR],
    }


def exit_code(records: Iterable[Record]) -> int:
    """0: all hold, except known violations. 1: some are violated. 2: it could not be judged, or nothing ran.

    Records of properties that are newer than the pinned catalogue do not count.
    """
    enforced = counts(record for record in records if record.newer_than is None)
    if enforced["violated"] > enforced["known"]:
        return 1
    if not enforced["run"] or enforced["inconclusive"] or enforced["suite_error"]:
        return 2
    return 0


# --- a violation in words -------------------------------------------------------------------------------


def violation(record: Record) -> str:
    """A violated property: the claim, what happened, and the smallest case with all its numbers.

    If the process was lost, no smaller case was looked for.
    """
    lines = [f"VIOLATED {record.id}", f"  claim: {record.claim}", f"  source: {record.source}", f"  {record.reason}"]
    if record.part is not None:
        lines.append(f"  wrong part: {record.part} ({record.because})")
    if record.counterexample is not None:
        lines.append(f"  {case_heading(record)}: {size(record.counterexample['case'])}")
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


def case_heading(record: Record) -> str:
    """What a report calls the case of a violation: the smallest found, or the one tested when a worker was lost."""
    lost = record.key is not None and record.key.kind in (Hung.cause, Crashed.cause)
    return "case tested at that moment" if lost else "smallest case found"


def facts_of(counterexample: Mapping[str, Any], longest: int = _LONGEST) -> Iterator[tuple[str, str]]:
    """Everything that the layer was given, by name, and both sides of the comparison.

    Args:
        longest: characters of an array that is shown in full.
    """
    case = counterexample["case"]
    if case.get("config"):
        yield "config", ", ".join(f"{key}={_rounded(value)}" for key, value in case["config"].items())
    for name, value in case.items():
        if name not in _NOT_ARRAYS:
            yield name, _array(value, longest)
    for name, value in sorted(case.get("weights", {}).items()):
        yield name, _array(value, longest)
    comparison = counterexample.get("comparison", {})
    sides = {side: comparison[side] for side in _SIDES if side in comparison}
    *row, worst = comparison.get("worst_index") or (None,)
    # of long arrays, only the row where they differ most
    if row and any(len(repr(_rounded(array))) > longest for array in sides.values()):
        sides = {f"{side}{row}": reduce(getitem, row, array) for side, array in sides.items()}
    if worst is not None and any(_array(array, longest).endswith(_CUT) for array in sides.values()):
        # of a long row, what is around the entry where they differ most
        span = _around(worst, list(sides.values()), longest)
        where = ", ".join([*map(str, row), f"{span.start}:{span.stop}"])
        sides = {f"{side.partition('[')[0]}[{where}]": array[span] for side, array in sides.items()}
    yield from ((side, _array(array, longest)) for side, array in sides.items())


def _around(worst: int, rows: Sequence[list[float]], longest: int) -> slice:
    """The widest window around an entry of rows of equal length in which each is short enough to be shown."""

    def window(width: int) -> slice:
        start = max(0, min(worst - width // 2, len(rows[0]) - width))
        return slice(start, start + width)

    def fits(window: slice) -> bool:
        return all(len(repr(_rounded(row[window]))) <= longest for row in rows)

    return next(filter(fits, map(window, range(min(longest, len(rows[0])), 1, -1))), window(1))


def size(case: Mapping[str, Any]) -> str:
    """How large a case is: for an energy layer, the shape of its state, whose axes may be anything."""
    if "config" not in case and (arrays := [key for key in case if key not in _NOT_ARRAYS]):
        with suppress(ValueError):  # the question of an own property may be anything
            return f"{arrays[0]} {np.shape(case[arrays[0]])}"
    axes = [number(case[key], noun) for key, noun in (("tokens", "token"), ("dim", "dimension")) if key in case]
    return ", ".join(axes) or "of unknown size"


def listed(words: Iterable[object]) -> str:
    """One or more words as a list: "a", "a and b", "a, b and c"."""
    *first, last = map(str, words)
    return f"{', '.join(first)} and {last}" if first else last


def number(count: int, noun: str) -> str:
    """A number and what it counts, in the singular or the plural."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def _worst(worst: Mapping[str, Any]) -> str:
    """The failing example with the largest margin, in one line."""
    got, expected = (f"{worst[side]:.6g}" for side in ("got_there", "expected_there"))
    return f"got {got}, expected {expected}, margin {worst['margin']:.3g}"


def _array(values: Any, longest: int) -> str:
    """An array in full, or only its non-zero entries, or its beginning."""
    text = repr(_rounded(values))
    with suppress(ValueError):  # a context is a sentence, not an array
        if len(text) > longest and len(few := _entries(values)) <= longest:
            return few
    return text if len(text) <= longest else f"{text[: 2 * longest // 3]}{_CUT}"


def _entries(values: Any) -> str:
    array = np.asarray(values, dtype=float)
    places = map(tuple, np.argwhere(array).tolist())
    others = ", ".join(f"{_rounded(float(array[at]))} at {at}" for at in places)
    return f"zeros {array.shape}{f' but {others}' * bool(others)}"


def _rounded(values: Any) -> Any:
    if isinstance(values, list):
        return [_rounded(v) for v in values]
    return float(f"{values:.6g}") + 0.0 if isinstance(values, float) else values

"""The violations of a run grouped by what causes them, the most fundamental cause first.

Violations share a cause if the same part of the layer was found to be wrong (see `localisation`), or if their calls
failed in the same way. If one call has two answers, everything else follows from that. A violation that no experiment
explains is a cause of its own, unless a cause before it may explain it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from cemverify.conformance.implementations.faults import FURTHER, Crashed, Hung, OutOfMemory, Tampered
from cemverify.conformance.implementations.origin import Origin, Place, display
from cemverify.conformance.judging.events import RunFinished, SuggestedEdit
from cemverify.conformance.judging.verdicts import (
    BACKWARD,
    DECLARED_STEPS,
    EDITED,
    HALVES,
    NO_ENERGY,
    TWO_ANSWERS,
    UNDEFINED,
    Record,
    Verdict,
    is_random,
    violations,
)
from cemverify.conformance.oracle.evidence import Compared, Key

_SIZES = re.compile(r"\[[\d, ]*\]")  # shapes in a library's message, which vary for one mistake
_APART = ("structure/layer/dtype", "structure/layer/settings")  # no wrong formula violates these
# the functions that properties of energy layers call, if that is not the update
_ASKED = {
    "gradient/layer/lagrangian": "state map",
    "gradient/layer/lagrangian-rate": "Lagrangian",
    "extremes/layer/huge-lagrangian": "Lagrangian",
    "descent/layer/lagrangian-convex": "Lagrangian",
    "gradient/layer/derivatives-agree": "energy",
    "gradient/layer/proximal": "proximal map",
    "structure/layer/packed-rows": "update_packed",
    "structure/layer/left-padding": "update_padded",
    "structure/layer/right-padding": "update_padded",
    "training/layer/packed-rows": "update_packed",
    "training/layer/left-padding": "update_padded",
    "training/layer/right-padding": "update_padded",
}
_FEW = 3  # functions that are named
_IN_PLACE = "in-place operation"  # torch's words for an edit of an array whose numbers it still needs
_OF_A_RIGHT_ANSWER = (BACKWARD, "untied parameters")  # found only if the answer itself is right
_EVAL = "if dropout or another random layer is in training mode, call eval() on the module first"


@dataclass(frozen=True)
class Cause:
    """What makes properties fail."""

    name: str  # of the wrong part, or what a call does; a phrase
    because: str  # the experiment that shows it, as a sentence; empty if the name says it
    records: Sequence[Record]  # the violations that it explains, the most fundamental first
    # where it raised, or the first line that the smallest case runs and no passing case does; otherwise the function
    # of its files that does most in that case, or that was called
    place: Place | None = None
    at: str = ""  # how such a line is known, as a phrase; empty if none is
    called_from: Place | None = None  # the function that was called, if that is another
    ran: Sequence[str] = ()  # the names of the other functions that the case runs
    edit: SuggestedEdit | None = None  # a change of the source that removes it, if one was looked for and found

    @property
    def first(self) -> Record:
        """The violation to look at first."""
        return self.records[0]

    @property
    def is_recognised(self) -> bool:
        """Whether it is a wrong part or what a call does, rather than a claim that does not hold."""
        return self.first.part is not None or self.first.is_fault or is_random(self.first)

    @property
    def where(self) -> str:
        """The line, if one is known; otherwise the function that was called, even if the mistake is elsewhere."""
        if self.place is None:
            return ""
        name, line = self.place.name, f"at: {self.place}"
        by = f", called by {self.called_from}" if self.called_from is not None else ""
        if name and not self.at:
            mostly = "mostly " if by else ""  # the mistake may be in what calls it
            line, name = f"{mostly}in {name} ({self.place.lines}){by}", ""
            by = f"; also ran: {_some(self.ran)}" if self.ran else ""
        return f"{line}{f', in {name}' * bool(name)}{by}{f' ({self.at})' * bool(self.at)}"

    @property
    def may_be_mended(self) -> bool:
        """Whether an edit of its source may remove it, and none is known: not if a call ended its process, say."""
        lost = {kind.cause for kind in (Hung, OutOfMemory, Tampered, Crashed)}
        is_lost = self.first.key is not None and self.first.key.kind in lost
        likely = (
            self.name not in (TWO_ANSWERS, DECLARED_STEPS, *UNDEFINED) and not is_lost and not self.first.declaration
        )
        return likely and self.edit is None and self.place is not None


@dataclass(frozen=True)
class Diagnosis:
    """Why a run has violations."""

    implementation: str  # its name
    tested: Sequence[Record]  # of the properties that were run
    causes: Sequence[Cause]  # the most fundamental first
    unexplained: Sequence[Record] = ()  # violations that may follow from the first cause
    unasked: int = 0  # how many properties were not tested because the run ended first
    # options, command: see `RunFinished`
    options: Sequence[str] | None = ()
    command: str = ""

    @property
    def violated(self) -> int:
        """How many properties are violated and neither accepted nor too new."""
        return sum(len(cause.records) for cause in self.causes) + len(self.unexplained)

    @property
    def sentence(self) -> str:
        """How much is violated, by how many causes, and the first of them."""
        first, n = self.causes[0], len(self.causes)
        share = f"{self.violated} of {len(self.tested)} violated"
        if self.unasked:
            share += f" ({self.unasked} not asked)"
        if n > 1:
            return f"{share}, {n} causes; the most fundamental: {first.name}"
        if self.unexplained and not first.is_recognised:
            return f"{share}, no cause recognised; the most fundamental: {first.name}"
        if self.unexplained:
            return f"{share}, {len(first.records)} by one cause: {first.name}"
        return f"{share}, one cause: {first.name}" if self.violated > 1 else f"{share}: {first.name}"

    @property
    def again(self) -> str:
        """The command that repeats the first violation; empty if there is none."""
        return self.again_of(self.causes[0])

    def again_of(self, cause: Cause) -> str:
        """The command that repeats the first violation of a cause; empty if there is none."""
        if self.options is None:
            return self.command
        return shlex.join(["cemverify", "check", self.implementation, *cause.first.options, *self.options])

    @property
    def mend(self) -> str:
        """The command that looks for an edit of the source; empty if no edit may help, or one is known."""
        first = self.causes[0]
        if self.options is None or not first.may_be_mended:
            return ""
        own = first.first.stated_in
        options = [*(["--properties-from", own] if own else []), *(o for o in self.options if o != "--black-box")]
        return shlex.join(["cemverify", "repair", self.implementation, *options])


def diagnose(event: RunFinished) -> Diagnosis | None:
    """The diagnosis of a run; None if nothing is violated. An edit that was found goes to the first cause."""
    violated = violations(event.records)
    if not violated:
        return None
    groups: dict[Hashable, list[Record]] = {}
    unexplained: list[Record] = []
    edited = any(map(_is_edit, violated))
    wrong: set[str] = set()  # the layers whose answers are wrong
    for record in violated:
        follows = edited and _IN_PLACE in (record.reason or "")
        key = ("part", EDITED) if follows else _cause_of(record, next(iter(groups), None))
        if _is_wrong_answer(record):
            wrong.add(_layer(record))
        a_half = record.part in HALVES.values() and groups  # of a block, in which nothing more can be named
        if key is None or a_half or (record.part in _OF_A_RIGHT_ANSWER and _layer(record) in wrong):
            unexplained.append(record)
        else:
            groups.setdefault(key, []).append(record)
    causes = [_cause(records, event.origin) for records in groups.values()]
    causes[:1] = [replace(cause, edit=event.edit) for cause in causes[:1]]
    tested = [record for record in event.records if record.verdict != Verdict.NOT_OFFERED]
    unasked = len(event.unasked)
    return Diagnosis(event.implementation, tested, causes, unexplained, unasked, event.options, event.command)


def _cause_of(record: Record, first: Hashable | None) -> Hashable | None:
    """What records with one cause have in common; None if the first cause that was found may explain it."""
    if first == TWO_ANSWERS or is_random(record):
        return TWO_ANSWERS
    if record.part is not None or _is_edit(record):
        return "part", record.part or EDITED
    if record.is_fault:
        return "fault", record.cause, _SIZES.sub("[]", record.reason or "")
    return ("claim", record.id) if first is None or record.id in _APART else None


def _layer(record: Record) -> str:
    return record.id.split("/")[1]


def _is_wrong_answer(record: Record) -> bool:
    """Whether it shows that the update differs from that of the energy or of the declared reference."""
    compares = record.id.startswith("gradient/") or record.id == "structure/layer/reference"
    return compares and record.key is not None and record.key.kind == Compared.ANSWER


def _is_edit(record: Record) -> bool:
    """Whether a call changed the numbers of an argument: this never follows from another cause."""
    return record.key is not None and record.key.kind == Compared.KEPT


def _cause(records: Sequence[Record], origin: Origin) -> Cause:
    first = records[0]
    place, at = _place(first, origin)
    cause, begins = _named(records, origin, place, at), origin.places.get(_function(first))
    if place is None or cause.place != place:
        return cause
    others = [each.name for each in _ran(first, origin) if each != place and not (begins and _is(each, begins))]
    return replace(cause, called_from=None if begins and _is(place, begins) else begins, ran=others)


def _is(function: Place, other: Place) -> bool:
    """Whether two places are the same function, whose decorators may count as its first lines."""
    return (function.file, function.name) == (other.file, other.name)


def _some(names: Sequence[str]) -> str:
    """The first of these names, and how many more there are."""
    return ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")


def _named(records: Sequence[Record], origin: Origin, place: Place | None, at: str) -> Cause:
    first = records[0]
    if first.part in UNDEFINED:
        return Cause(first.part or "", first.because or "", records, origin.places.get(_function(first)))
    if is_random(first):
        return Cause(TWO_ANSWERS, first.because or _EVAL, records, place)
    if first.part is not None:
        because = "; ".join(filter(None, (first.because, _or_the_energy(first, origin))))
        return Cause(first.part, because, records, place, at)
    if _is_edit(first):
        return Cause(EDITED, first.reason or "", records, place, at)
    if first.is_fault:
        return Cause(first.reason or first.cause or "", "", records, place, at)
    return Cause(f'the claim of {first.id} does not hold: "{first.claim}"', first.reason or "", records, place, at)


def _or_the_energy(record: Record, origin: Origin) -> str:
    """A phrase: an energy layer's energy may be the wrong one, because it judges the update."""
    energy = None if record.part in (*UNDEFINED, DECLARED_STEPS, EDITED, BACKWARD) else origin.places.get("energy")
    return "" if energy is None or _function(record) != "update" else f"or the declared energy is wrong ({energy})"


def _place(record: Record, origin: Origin) -> tuple[Place | None, str]:
    """Where it raised, or what only failing cases run, and how that is known; else where its function begins."""
    begins = origin.places.get(_function(record))
    place, at = record.line, "cases that hold do not run it"
    if record.raised_at is not None:
        place, at = Place(display(record.raised_at[0]), record.raised_at[1]), "it raises there"
    elif record.declaration:
        return None, ""
    if place is None:
        most = next(iter(_ran(record, origin)), None)
        return begins if most is None or (begins is not None and _is(most, begins)) else most, ""
    within = [each for each in record.ran if each.holds(place)]  # the innermost is the shortest
    inside = min(within, key=lambda each: each.last - each.line, default=begins)
    return replace(place, name=inside.name if inside is not None and inside.file == place.file else ""), at


def _ran(record: Record, origin: Origin) -> Sequence[Place]:
    """The functions that its smallest case runs, without those that judge an energy layer's answer."""
    if _layer(record) != "layer":
        return record.ran
    others = [place for name, place in origin.places.items() if name != _function(record)]
    return [each for each in record.ran if not any(_is(each, other) for other in others)]


def _function(record: Record) -> str:
    """The function that a property calls, by its id and the wrong part."""
    layer = _layer(record)
    if record.part in UNDEFINED:
        return "energy" if record.part == NO_ENERGY else "step size"
    if layer == "layer":
        key = record.key or Key("")
        if record.is_fault and key.of in FURTHER:
            return key.of
        return _ASKED.get(record.id) or ("energy" if key.kind in (Compared.ENERGY, Compared.CURVATURE) else "update")
    if record.part == "cache":
        return "decode"
    if record.part == "stated energy":
        return f"{layer}_energy"
    return layer.replace("-", "_")

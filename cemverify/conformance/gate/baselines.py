"""Baselines: a run is compared with a stored one of the same implementation, to see what got worse.

A verdict that was "holds" and no longer is, is a regression, whatever the margins. A margin (worst residual over
what roundoff may explain) is the largest of some dozens of random ones, so it is noisy even if nothing changed:
a healthy rewrite rounds differently, and may double it. Two rules seldom mistake such a rewrite for a loss
(docs/ci.md says how seldom, as measured):

    one property     its margin grew more than threefold, and to more than 0.6: it is about to be violated
    all together     the median growth of at least 30 margins is more than 1.5: every result lost accuracy
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Any

from cemverify.catalogue.index import retired
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.results.envelope import ResultError, complete, read

GROWTH = 3.0
FLOOR = 0.6
MEDIAN_GROWTH = 1.5
FEWEST = 30  # with fewer margins, their median says too little


@dataclass(frozen=True)
class Conditions:
    """What two runs must have in common so that their margins can be compared."""

    implementation: str  # its name
    dtype: str  # of properties that do not have their own
    device: str  # its type, "cpu" or "cuda"
    examples: int  # per property; a margin is the largest of them all
    seed: int  # the same seed asks the same questions


@dataclass(frozen=True)
class Baseline:
    """A stored run."""

    path: Path  # where it is stored
    conditions: Conditions  # the conditions of that run
    suite_version: str  # the version of cemverify that made it
    properties: Sequence[str]  # the patterns that selected properties; none means all
    # verdicts, margins: by property id; margins only of properties that hold
    verdicts: Mapping[str, str]
    margins: Mapping[str, float]


class Change(StrEnum):
    """How a property, or all of them, changed since the baseline."""

    LOST = "no longer holds"
    MISSING = "missing"
    RETIRED = "asked no more"
    MARGIN = "margin grew"
    MARGINS = "margins grew together"
    NEW = "new"
    GAINED = "holds now"
    VERSION = "another version of cemverify"


@dataclass(frozen=True)
class Difference:
    """A difference, as a sentence; `before` and `after` are verdicts or margins."""

    property: str | None  # its id; None for a change of all of them
    change: Change
    before: str
    after: str
    regression: bool  # whether it is a regression, or only noted
    sentence: str

    def describe(self) -> dict[str, Any]:
        """The difference as JSON."""
        return {**asdict(self), "change": str(self.change)}


@dataclass(frozen=True)
class BaselineComparison:
    """A run's comparison with a baseline."""

    path: Path  # the baseline's file
    differences: Sequence[Difference]  # see `compare`
    strict: bool  # whether a regression fails the run

    @property
    def regressions(self) -> list[Difference]:
        """The differences that are regressions."""
        return [difference for difference in self.differences if difference.regression]

    @property
    def failed(self) -> bool:
        """Whether the run fails because of it."""
        return self.strict and bool(self.regressions)


def read_baseline(path: Path) -> Baseline:
    """The baseline in a result of `cemverify check --json`."""
    content = read(path)
    if content["kind"] != "check":
        raise ResultError(
            f"{path} is a result of kind {content['kind']!r}; a baseline is written by `cemverify check --json`"
        )
    with complete(path, content):
        if unasked := content.get("unasked"):
            raise ResultError(
                f"{path} is from a run that ended early, and as a baseline would leave "
                f"{len(unasked)} of {content['counts']['applicable']} properties unguarded; "
                "write one without --first, --quick and --within"
            )
        made = content["made_by"]
        how = made["configuration"]
        device = made["device"]["type"].partition(":")[0]
        conditions = Conditions(content["implementation"], how["dtype"], device, how["examples"], made["seed"])
        verdicts = {p["id"]: p["verdict"] for p in content["properties"]}
        held = (p for p in content["properties"] if p["verdict"] == Verdict.HOLDS)
        margins = {p["id"]: p["margin"] for p in held if p["margin"] is not None}
        return Baseline(path, conditions, content["suite_version"], how["properties"], verdicts, margins)


def check_comparable(baseline: Baseline, now: Conditions) -> None:
    """Raises if a baseline was made under different conditions.

    Raises:
        ValueError: a condition differs; the message names it.
    """
    for name, was in vars(baseline.conditions).items():
        if was != (is_ := getattr(now, name)):
            raise ValueError(
                f"the baseline {baseline.path} was made with {name} {was}, this run has {is_}, so their margins "
                "cannot be compared; run with the same, or write a new baseline with --json"
            )


def compare(
    baseline: Baseline,
    records: Sequence[Record],
    properties: Sequence[str],
    suite_version: str,
    unasked: Sequence[str] = (),
) -> list[Difference]:
    """The differences between a run and its baseline, regressions first.

    Args:
        records: the run's, known violations marked. A record that is known, or of a property newer than the pinned
            catalogue, is noted, but is no regression.
        properties: the patterns that selected properties. If they differ from the baseline's, untested properties
            are not missing.
        suite_version: the run's. unasked: ids that are not missing, because the run ended before them.
    """
    differences = [f for record in records if (f := _of_property(record, baseline)) is not None]
    if not properties or list(properties) == list(baseline.properties):
        there = {record.id for record in records} | set(unasked)
        held = (id_ for id_, verdict in baseline.verdicts.items() if verdict == Verdict.HOLDS)
        differences += [_missing(id_) for id_ in held if id_ not in there]
    differences += _together(baseline, records)
    if baseline.suite_version != suite_version:
        sentence = f"the baseline was made by cemverify {baseline.suite_version}, whose properties may have differed"
        differences.append(Difference(None, Change.VERSION, baseline.suite_version, suite_version, False, sentence))
    return sorted(differences, key=lambda f: not f.regression)


def _of_property(record: Record, baseline: Baseline) -> Difference | None:
    id_, now = record.id, str(record.verdict)
    before = baseline.verdicts.get(id_)
    if before is None:
        return Difference(id_, Change.NEW, "", now, False, f"{id_} is not in the baseline")
    if before == Verdict.HOLDS and now != Verdict.HOLDS:
        excuse = "known" if record.known is not None else "not enforced" if record.not_enforced else ""
        sentence = f"{id_} held and is {now}{f', which is {excuse}' if excuse else ''}"
        return Difference(id_, Change.LOST, before, now, not excuse, sentence)
    if before != Verdict.HOLDS and now == Verdict.HOLDS:
        sentence = f"{id_} was {before} and holds; write a new baseline to guard it"
        return Difference(id_, Change.GAINED, before, now, False, sentence)
    old, new = baseline.margins.get(id_), record.margin
    if now == Verdict.HOLDS and old is not None and new is not None and new > max(GROWTH * old, FLOOR):
        sentence = f"{id_}: the margin grew from {old:.3g} to {new:.3g}; it is violated above 1"
        return Difference(id_, Change.MARGIN, f"{old:.3g}", f"{new:.3g}", record.newer_than is None, sentence)
    return None


def _missing(id_: str) -> Difference:
    if (row := retired().get(id_)) is not None:
        return Difference(id_, Change.RETIRED, str(Verdict.HOLDS), "", False, str(row))
    return Difference(id_, Change.MISSING, str(Verdict.HOLDS), "", True, f"{id_} held and was not tested in this run")


def _together(baseline: Baseline, records: Sequence[Record]) -> list[Difference]:
    """The median growth, over enforced properties that hold in both and whose margins are not zero."""
    old = baseline.margins
    records = [record for record in records if record.newer_than is None]
    growths = [r.margin / old[r.id] for r in records if r.verdict == Verdict.HOLDS and r.margin and old.get(r.id)]
    if len(growths) < FEWEST or median(growths) <= MEDIAN_GROWTH:
        return []
    sentence = (
        f"{len(growths)} margins grew together, by a median factor of {median(growths):.3g}: "
        "results are less accurate than they were"
    )
    return [Difference(None, Change.MARGINS, "1", f"{median(growths):.3g}", True, sentence)]

"""The results in numbers: probabilities of detection with exact intervals, false alarms, smallest faults."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties import by_id
from cemverify.power.cells import DetectionCell, FalseAlarmCell, Measurement, SmallestFaultCell
from cemverify.power.mutants import Mutant
from cemverify.power.plan import PowerPlan
from cemverify.power.statistics import clopper_pearson, upper_bound

Payload = Mapping[str, Any]
Taken = Sequence[tuple[Measurement, Payload]]


@dataclass(frozen=True)
class Detection:
    """How often one property killed one mutant at one budget."""

    examples: int  # the budget
    # detected, seeds: in how many of how many runs
    detected: int
    seeds: int
    # low, high: 95 % interval of the probability
    low: float
    high: float
    # median, mean: examples up to the first failure, over the seeds that had one
    median: float | None
    mean: float | None

    @property
    def probability(self) -> float:
        """The share of seeds that detected it."""
        return self.detected / self.seeds


@dataclass(frozen=True)
class Measured:
    """The result for one mutant."""

    mutant: Mutant  # which
    detections: tuple[Detection, ...]  # by budget, ascending
    otherwise: str | None = None  # the outcome of the first seed that did not kill it
    inapplicable: str | None = None  # why its fault cannot be measured in this implementation

    @property
    def killed(self) -> bool:
        """Whether every seed killed it, at the largest budget."""
        return bool(self.detections) and self.detections[-1].detected == self.detections[-1].seeds

    def describe(self) -> dict[str, Any]:
        """The result for one mutant, in values that JSON can hold."""
        return {
            **{name: getattr(self.mutant, name) for name in ("id", "family", "fault", "property", "cause")},
            "killed": self.killed,
            "detection": self.detections[-1].probability,
            "budgets": [{**asdict(d), "probability": d.probability} for d in self.detections],
            **({"otherwise": self.otherwise} if self.otherwise else {}),
        }


@dataclass(frozen=True)
class Alarms:
    """How often a correct implementation was called wrong."""

    implementation: str  # its name
    properties: int  # how many were tested
    runs: int  # properties times seeds
    alarms: int  # violations
    undecided: int  # runs that ended in neither "holds" nor "violated"
    first: str | None = None  # the message of the first alarm or undecided run


@dataclass(frozen=True)
class Smallest:
    """The smallest fault that a family detects with every seed."""

    # family, dtype: of the properties
    family: str
    dtype: str
    epsilon: float | None  # relative size; None if the family detects no such fault
    # property, place: the property that detected it, in the last feature, position or batch row
    property: str | None = None
    place: str | None = None


@dataclass(frozen=True)
class Power:
    """All measurements of a run of `cemverify power`."""

    plan: PowerPlan
    mutants: Sequence[Measured]
    alarms: Sequence[Alarms]
    smallest: Sequence[Smallest]

    @property
    def applicable(self) -> list[Measured]:
        """The mutants whose faults could be measured."""
        return [m for m in self.mutants if m.inapplicable is None]

    @property
    def killed(self) -> int:
        """How many mutants every seed killed by their property, for their cause."""
        return sum(m.killed for m in self.applicable)

    @property
    def false_alarms(self) -> int:
        """How often a correct implementation was called wrong."""
        return sum(a.alarms for a in self.alarms)

    @property
    def runs_without_fault(self) -> int:
        """How many times a property was tested on a correct implementation."""
        return sum(a.runs for a in self.alarms)

    @property
    def false_alarm_bound(self) -> float | None:
        """95 % upper bound of the probability that a run of a property calls a correct implementation wrong."""
        runs = self.runs_without_fault
        return upper_bound(self.false_alarms, runs) if runs else None

    @property
    def sound(self) -> bool:
        """Whether all mutants were killed and there was no false alarm."""
        return self.killed == len(self.applicable) > 0 and not self.false_alarms

    def families(self) -> list[tuple[str, int, int]]:
        """For each family of mutants: its name, how many were killed, and how many could be run."""
        killed = Counter(m.mutant.family for m in self.applicable if m.killed)
        return [(name, killed[name], n) for name, n in Counter(m.mutant.family for m in self.applicable).items()]

    def describe(self) -> dict[str, Any]:
        """The figures of the whole run, in values that JSON can hold."""
        return {
            "killed": self.killed,
            "total": len(self.applicable),
            "false_alarms": self.false_alarms,
            "false_alarm_runs": self.runs_without_fault,
            "false_alarm_bound": self.false_alarm_bound,
            "not_applicable": [
                {"id": m.mutant.id, "reason": m.inapplicable} for m in self.mutants if m.inapplicable is not None
            ],
            "families": [{"family": f, "killed": killed, "total": total} for f, killed, total in self.families()],
            "mutants": [m.describe() for m in self.applicable],
            "correct_implementations": [asdict(a) for a in self.alarms],
            "smallest": [asdict(s) for s in self.smallest],
        }


def summarise(
    plan: PowerPlan, inapplicable: Mapping[str, str], offered: Mapping[str, Sequence[str]], taken: Taken
) -> Power:
    """All findings of a plan.

    Args:
        inapplicable: mutants whose fault cannot be measured, and why.
        offered: by correct implementation, the properties that were tested on it.
        taken: every measurement with its payload.
    """
    measured = []
    for mutant in plan.mutants():
        if (reason := inapplicable.get(mutant.id)) is not None:
            measured.append(Measured(mutant, (), inapplicable=reason))
            continue
        runs = {n: _runs(taken, DetectionCell, mutant=mutant.id, examples=n) for n in sorted(plan.budgets)}
        escaped = [run for run in runs[plan.budget] if not run["killed"]]
        measured.append(
            Measured(
                mutant,
                tuple(_detection(examples, of) for examples, of in runs.items()),
                _otherwise(escaped[0]) if escaped else None,
            )
        )
    runs_of = {name: _runs(taken, FalseAlarmCell, implementation=name) for name in plan.bank}
    alarms = [_alarms(name, len(offered[name]), runs) for name, runs in runs_of.items()]
    return Power(plan, measured, alarms, _smallest(taken))


def _runs(taken: Taken, kind: type[Measurement], **of: object) -> list[Payload]:
    """The runs of all measurements of a kind with these values."""
    measured = (payload["runs"] for m, payload in taken if isinstance(m, kind) and vars(m).items() >= of.items())
    return [run for runs in measured for run in runs]


def _detection(examples: int, runs: Sequence[Mapping[str, Any]]) -> Detection:
    until = [run["examples"] for run in runs if run["killed"]]
    low, high = clopper_pearson(len(until), len(runs))
    median, mean = (statistics.median(until), statistics.fmean(until)) if until else (None, None)
    return Detection(examples, len(until), len(runs), low, high, median, mean)


def _otherwise(run: Mapping[str, Any]) -> str:
    return f"seed {run['seed']}: {run['verdict']}, {run.get('cause') or run.get('reason') or 'no violation'}"


def _alarms(name: str, properties: int, runs: Sequence[Mapping[str, Any]]) -> Alarms:
    wrong = [run for run in runs if run["verdict"] == Verdict.VIOLATED]
    undecided = [run for run in runs if run["verdict"] not in (Verdict.VIOLATED, Verdict.HOLDS)]
    first = next((f"{run['property']}, {_otherwise(run)}" for run in (*wrong, *undecided)), None)
    return Alarms(name, properties, len(runs), len(wrong), len(undecided), first)


def _smallest(taken: Taken) -> list[Smallest]:
    """The smallest fault detected by each family in each dtype."""
    best: dict[tuple[str, str], Smallest] = {}
    for measurement, payload in taken:
        if not isinstance(measurement, SmallestFaultCell):
            continue
        family, dtype, epsilon = by_id(measurement.property_id).family, measurement.dtype, payload["epsilon"]
        before = best.setdefault((family, dtype), Smallest(family, dtype, None))
        if epsilon is not None and (before.epsilon is None or epsilon < before.epsilon):
            best[family, dtype] = Smallest(family, dtype, epsilon, measurement.property_id, measurement.place)
    return list(best.values())

"""Detection power: what a green verdict would have caught, down to which size, and how often it cries wolf.

Every mutant is put before its named property again and again, at several budgets and many seeds; every correct
implementation before every property it can be asked. What comes out are probabilities with exact intervals.
"""

from __future__ import annotations

import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any
from zlib import crc32

import torch

from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.orphans import end_with_parent
from cemverify.power.measurements import DTYPES, PLACES, Spec, by_id, chunks, introduction, measure, offered_to
from cemverify.power.mutants import Mutant, mutants
from cemverify.power.mutants.base import sound
from cemverify.power.statistics import clopper_pearson, upper_bound
from cemverify.power.store import Store, implementation_digest

# what a correct implementation is asked with, each seed: many seeds with few examples see more than few with many
BANK_EXAMPLES = 6
_CHUNK = 5  # seeds in a measurement
_PARTS = 5  # of the properties of a costly implementation, one for each seed in turn
SWEPT_SEEDS = 2
_LONG = 500  # runs of a property that are worth an estimate beforehand
_UNSWEPT = ("rejection",)  # families that look at no answer


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        seeds: how many, from 0 on. budgets: examples per property; the largest decides what counts as killed.
        implementation: whose faults; None for the mutants as they are.
        bank: correct implementations, by name; every seed asks them with `BANK_EXAMPLES`. costly: those of them of
            whose properties each seed asks a fifth, in turn.
        families: mutants of these only; empty for all. matrix: seeds for every property x every mutant, 0 for none.
        sweep: whether to look for the smallest fault.
    """

    seeds: int = 20
    budgets: tuple[int, ...] = (15, 60)
    implementation: str | None = None
    bank: tuple[str, ...] = ()
    costly: frozenset[str] = frozenset()
    families: tuple[str, ...] = ()
    matrix: int = 0
    sweep: bool = True

    @property
    def budget(self) -> int:
        """The one that decides."""
        return max(self.budgets)


@dataclass(frozen=True)
class Detection:
    """How often one property killed one mutant at one budget.

    Attributes:
        examples: the budget. detected, seeds: how often, of how many. low, high: 95 % interval of the probability.
        median, mean: examples up to the first failure, over the seeds that had one.
    """

    examples: int
    detected: int
    seeds: int
    low: float
    high: float
    median: float | None
    mean: float | None

    @property
    def probability(self) -> float:
        """The share of seeds that detected it."""
        return self.detected / self.seeds


@dataclass(frozen=True)
class Measured:
    """What became of one mutant.

    Attributes:
        mutant: which. detections: by budget, ascending.
        otherwise: what was said where it was not killed, of the first such seed.
        inapplicable: why its fault cannot be measured in this implementation.
    """

    mutant: Mutant
    detections: tuple[Detection, ...]
    otherwise: str | None = None
    inapplicable: str | None = None

    @property
    def killed(self) -> bool:
        """Whether every seed killed it, at the largest budget."""
        return bool(self.detections) and self.detections[-1].detected == self.detections[-1].seeds

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "id": self.mutant.id,
            "family": self.mutant.family,
            "fault": self.mutant.fault,
            "property": self.mutant.property,
            "cause": self.mutant.cause,
            "killed": self.killed,
            "detection": self.detections[-1].probability,
            "budgets": [{**asdict(d), "probability": d.probability} for d in self.detections],
            **({"otherwise": self.otherwise} if self.otherwise else {}),
        }


@dataclass(frozen=True)
class Alarms:
    """How often a correct implementation was called wrong.

    Attributes:
        implementation: its name. properties: how many it was asked. runs: times seeds. alarms: violations.
        undecided: runs that said neither. first: what the first of either said.
    """

    implementation: str
    properties: int
    runs: int
    alarms: int
    undecided: int
    first: str | None = None


@dataclass(frozen=True)
class Smallest:
    """The smallest fault that a family detects with every seed.

    Attributes:
        family, dtype: of the properties. epsilon: relative size; None if the family sees no such fault.
        property, place: which property saw it, in the last feature, position or batch row.
    """

    family: str
    dtype: str
    epsilon: float | None
    property: str | None = None
    place: str | None = None


@dataclass(frozen=True)
class Power:
    """All that was measured."""

    plan: Plan
    mutants: Sequence[Measured]
    alarms: Sequence[Alarms]
    smallest: Sequence[Smallest]
    matrix: Mapping[str, Mapping[str, int]]

    @property
    def applicable(self) -> list[Measured]:
        """The mutants whose faults could be measured."""
        return [m for m in self.mutants if m.inapplicable is None]

    @property
    def killed(self) -> int:
        """How many every seed killed."""
        return sum(m.killed for m in self.applicable)

    @property
    def false_alarms(self) -> int:
        """How often a correct implementation was called wrong."""
        return sum(a.alarms for a in self.alarms)

    @property
    def runs_without_fault(self) -> int:
        """Runs of correct implementations."""
        return sum(a.runs for a in self.alarms)

    @property
    def false_alarm_bound(self) -> float | None:
        """95 % upper bound of the probability that a run of a property calls a correct implementation wrong."""
        runs = self.runs_without_fault
        return upper_bound(self.false_alarms, runs) if runs else None

    @property
    def sound(self) -> bool:
        """Whether all were killed and nothing cried wolf."""
        return self.killed == len(self.applicable) > 0 and not self.false_alarms

    def families(self) -> list[tuple[str, int, int]]:
        """Family, killed, applicable."""
        names = dict.fromkeys(m.mutant.family for m in self.applicable)
        return [
            (name, sum(m.killed for m in self.applicable if m.mutant.family == name),
             sum(m.mutant.family == name for m in self.applicable))
            for name in names
        ]  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """As JSON."""
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
            **({"matrix": {"seeds": self.plan.matrix, "detected": self.matrix}} if self.matrix else {}),
        }


@dataclass(frozen=True)
class Progress:
    """How far it is: runs of a property done and due, and the seconds that are probably left."""

    done: int
    due: int
    left: float | None


def measure_power(plan: Plan, store: Store, workers: int, report: Callable[[Progress], None]) -> Power:
    """Takes all measurements of a plan, as far as the store does not hold them.

    Raises:
        LoadError: the implementation cannot be loaded. ValueError: a family that there is not, or a worker died.
        ResultError: the store cannot be read or written.
    """
    known = dict.fromkeys(m.family for m in mutants())
    if strange := [family for family in plan.families if family not in known]:
        raise ValueError(f"no family of mutants {strange[0]!r}; there are: {', '.join(known)}")
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_begin, initargs=(list(sys.path),)
    )
    try:
        with _uninterrupted():  # which workers inherit: an interrupt is the parent's to handle
            for _ in range(workers):
                pool.submit(int)
        introduced = pool.submit(introduction, plan.implementation).result()
        asked = {name: pool.submit(introduction, name) for name in plan.bank}
        offered = {name: future.result()["properties"] for name, future in asked.items()}
        specs = list(_specs(plan, introduced, offered))
        specs.sort(key=lambda spec: crc32(_key(spec).encode()))  # mixed, so that what is done foretells what is left
        found = _measure_all(pool, specs, store, workers, report)
    except BrokenProcessPool as error:
        raise ValueError(
            "a worker process died, perhaps for want of memory; what was measured is kept: try again with --workers 1"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
    return _summarise(plan, introduced, offered, found)


def runs_of(spec: Spec) -> int:
    """About how many runs of a property a measurement takes."""
    per_seed = {"matrix": len(by_id()), "smallest": 4, "detection": 1, "false alarms": 0}[spec["kind"]]
    return len(spec["seeds"]) * (per_seed or len(spec["properties"]))


def _begin(path: list[str]) -> None:
    end_with_parent()
    sys.path[:] = path
    torch.set_num_threads(1)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_Key = str
_Found = dict[_Key, dict[str, Any]]


def _key(spec: Spec) -> _Key:
    return repr(sorted(spec.items()))


def _measure_all(
    pool: ProcessPoolExecutor,
    specs: Sequence[Spec],
    store: Store,
    workers: int,
    report: Callable[[Progress], None],
) -> _Found:
    found: _Found = {}
    missing: list[Spec] = []
    for spec in specs:
        stored = store.get(_named(spec))
        if stored is None:
            missing.append(spec)
        else:
            found[_key(spec)] = stored
    due = sum(map(runs_of, specs))
    done = already = due - sum(map(runs_of, missing))
    long = due - done > _LONG
    report(Progress(done, due, (due - done) * _seconds_per_run() / workers if long else None))
    started = time.monotonic()
    queue, running = iter(missing), dict[Future[dict[str, Any]], Spec]()
    for spec in queue:  # only so many at a time, so that an interrupt has little to wait for
        running[pool.submit(measure, spec)] = spec
        if len(running) == 2 * workers:
            break
    while running:
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            spec = running.pop(future)
            found[_key(spec)] = result = future.result()
            store.put(_named(spec), result)
            done += runs_of(spec)
            if (following := next(queue, None)) is not None:
                running[pool.submit(measure, following)] = following
        elapsed = time.monotonic() - started
        report(Progress(done, due, elapsed * (due - done) / (done - already)))
    return found


def _seconds_per_run() -> float:
    """What a run of a property takes here, measured on a few of them."""
    asked = offered_to(sound())[::12]
    started = time.monotonic()
    for property_ in asked:
        judge_property(sound(), property_, Effort(shrink=False))
    return (time.monotonic() - started) / len(asked)


def _named(spec: Spec) -> dict[str, Any]:
    """The specification with what its implementation is, for the store."""
    name = spec["implementation"]
    return {**spec, **({"implementation_digest": implementation_digest(name)} if name is not None else {})}


def _specs(plan: Plan, introduced: Mapping[str, Any], offered: Mapping[str, Sequence[str]]) -> Iterator[Spec]:
    seeds = range(plan.seeds)
    chosen = _chosen(plan, introduced)
    for mutant in chosen:
        for examples in plan.budgets:
            for some in chunks(seeds, _CHUNK):
                yield {
                    "kind": "detection",
                    "mutant": mutant.id,
                    "property": mutant.property,
                    "examples": examples,
                    "seeds": some,
                    "implementation": plan.implementation,
                }
    for name, ids in offered.items():
        yield from _bank(name, ids, seeds, costly=name in plan.costly)
    yield from _sweep(plan, introduced) if plan.sweep else ()
    if plan.matrix:
        for mutant in chosen:
            yield {
                "kind": "matrix",
                "mutant": mutant.id,
                "examples": plan.budget,
                "seeds": list(range(plan.matrix)),
                "implementation": plan.implementation,
            }


def _bank(name: str, ids: Sequence[str], seeds: range, *, costly: bool) -> Iterator[Spec]:
    """A correct implementation before its properties, a few at a time."""
    if costly:
        asked = [(ids[part::_PARTS], [s for s in seeds if s % _PARTS == part]) for part in range(_PARTS)]
    else:
        asked = [(ids, some) for some in chunks(seeds, _CHUNK)]
    for chosen, some in asked:
        for first in range(0, len(chosen) if some else 0, 4):
            yield {
                "kind": "false alarms",
                "implementation": name,
                "properties": list(chosen[first : first + 4]),
                "examples": BANK_EXAMPLES,
                "seeds": some,
            }


def _sweep(plan: Plan, introduced: Mapping[str, Any]) -> Iterator[Spec]:
    for id_ in introduced["properties"]:
        property_ = by_id()[id_]
        if property_.door != "cem" or property_.family in _UNSWEPT:
            continue
        for dtype, asked in DTYPES.items():
            if property_.dtype in (None, asked):
                places = PLACES.get(property_.family, ("feature", "position"))
                for place in places if dtype == "float64" else places[:1]:
                    yield {
                        "kind": "smallest",
                        "property": id_,
                        "dtype": dtype,
                        "place": place,
                        "examples": plan.budget,
                        "seeds": list(range(min(plan.seeds, SWEPT_SEEDS))),
                        "implementation": plan.implementation,
                    }


def _chosen(plan: Plan, introduced: Mapping[str, Any]) -> list[Mutant]:
    return [
        m
        for m in mutants()
        if m.id not in introduced["inapplicable"] and (not plan.families or m.family in plan.families)
    ]


def _summarise(
    plan: Plan, introduced: Mapping[str, Any], offered: Mapping[str, Sequence[str]], found: _Found
) -> Power:
    specs = list(_specs(plan, introduced, offered))
    of_kind = {
        kind: [(s, found[_key(s)]) for s in specs if s["kind"] == kind]
        for kind in ("detection", "false alarms", "smallest", "matrix")
    }
    measured = []
    for mutant in mutants():
        if plan.families and mutant.family not in plan.families:
            continue
        if (reason := introduced["inapplicable"].get(mutant.id)) is not None:
            measured.append(Measured(mutant, (), inapplicable=reason))
            continue
        runs = {
            examples: [
                run
                for spec, f in of_kind["detection"]
                if spec["mutant"] == mutant.id and spec["examples"] == examples
                for run in f["runs"]
            ]
            for examples in sorted(plan.budgets)
        }
        detections = tuple(_detection(examples, of) for examples, of in runs.items())
        escaped = [run for run in runs[plan.budget] if not run["killed"]]
        otherwise = _otherwise(escaped[0]) if escaped else None
        measured.append(Measured(mutant, detections, otherwise))
    alarms = [
        _alarms(name, len(offered[name]), [run for spec, f in of_kind["false alarms"]
                                           if spec["implementation"] == name for run in f["runs"]])
        for name in plan.bank
    ]  # fmt: skip
    matrix = {spec["mutant"]: f["detected"] for spec, f in of_kind["matrix"]}
    return Power(plan, measured, alarms, _smallest(of_kind["smallest"]), matrix)


def _detection(examples: int, runs: Sequence[Mapping[str, Any]]) -> Detection:
    until = [run["examples"] for run in runs if run["killed"]]
    low, high = clopper_pearson(len(until), len(runs))
    median, mean = (statistics.median(until), statistics.fmean(until)) if until else (None, None)
    return Detection(examples, len(until), len(runs), low, high, median, mean)


def _otherwise(run: Mapping[str, Any]) -> str:
    return f"seed {run['seed']}: {run['verdict']}, {run.get('cause') or run.get('reason') or 'without a violation'}"


def _alarms(name: str, properties: int, runs: Sequence[Mapping[str, Any]]) -> Alarms:
    wrong = [run for run in runs if run["verdict"] == Verdict.VIOLATED]
    undecided = [run for run in runs if run["verdict"] not in (Verdict.VIOLATED, Verdict.HOLDS)]
    first = next((f"{run['property']}, {_otherwise(run)}" for run in (*wrong, *undecided)), None)
    return Alarms(name, properties, len(runs), len(wrong), len(undecided), first)


def _smallest(swept: Sequence[tuple[Spec, Mapping[str, Any]]]) -> list[Smallest]:
    """The best of each family and dtype."""
    best: dict[tuple[str, str], Smallest] = {}
    for spec, found in swept:
        family, dtype, epsilon = by_id()[spec["property"]].family, spec["dtype"], found["epsilon"]
        before = best.setdefault((family, dtype), Smallest(family, dtype, None))
        if epsilon is not None and (before.epsilon is None or epsilon < before.epsilon):
            best[family, dtype] = Smallest(family, dtype, epsilon, spec["property"], spec["place"])
    return list(best.values())

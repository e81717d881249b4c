"""How many mutants die that nobody wrote: fresh samples of `cemverify.power.mutants.grammar`.

Each drawn mutant is asked the catalogue, without what compiles, until a property is violated. What became of it is a
line of `drawn.jsonl`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch

from cemverify.conformance.implementations.contract import Subject
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import applicable, judge_property, not_offered
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties import Property, catalogue
from cemverify.power.mutants.grammar import Drawn, drawn
from cemverify.power.statistics import clopper_pearson
from suites.apart import Row, rows

_SECONDS = 600.0  # for each property, as the machine may be busy
SERIES = Path(__file__).with_name("drawn.jsonl")


@dataclass(frozen=True)
class Sample:
    """What became of the mutants that one seed drew."""

    # when, of which code
    date: str
    commit: str
    seed: int
    # how many
    tested: int
    died: int
    survivors: tuple[str, ...]  # what is wrong with the others

    def row(self) -> tuple[str, str, int, int, int, str, str]:
        """The row of the published table for a sample of drawn mutants."""
        low, high = clopper_pearson(self.died, self.tested)
        share, interval = f"{self.died / self.tested:.1%}", f"{low:.1%} to {high:.1%}"
        return self.date, self.commit, self.seed, self.tested, self.died, share, interval


def killer(subject: Subject, properties: Sequence[Property], effort: Effort) -> str | None:
    """The id of the first property that it violates; None if it survives all."""
    for property_ in properties:
        if not_offered(property_, subject.not_offered, torch.float64) is not None:
            continue
        if judge_property(subject, property_, effort).verdict == Verdict.VIOLATED:
            return property_.id
    return None


def chosen_properties() -> list[Property]:
    """The properties that a drawn mutant is asked: those of its kind that compile nothing."""
    return [p for p in applicable("CEM implementation", catalogue()) if "compile" not in p.needs]


def measure(count: int, seed: int, commit: str, path: Path = SERIES) -> None:
    """Asks the mutants of a seed that were not asked of this commit yet, and adds a line for each."""
    done = {row["mutant"] for row in rows(path) if (row["commit"], row["seed"]) == (commit, seed)}
    properties, effort = chosen_properties(), Effort(seed=seed, shrink=False, seconds=_SECONDS)
    for number, mutant in enumerate(drawn(seed, count), 1):
        if str(mutant) not in done:
            row = _row(mutant, properties, effort)
            with path.open("a") as file:
                file.write(
                    json.dumps({"date": date.today().isoformat(), "commit": commit, "seed": seed, **row}) + "\n"
                )
            print(f"{number} of {count}: {row['killed_by'] or 'SURVIVES'}: {mutant}", file=sys.stderr, flush=True)


def _row(mutant: Drawn, properties: Sequence[Property], effort: Effort) -> Row:
    began = time.process_time()
    id_ = killer(mutant.subject(), properties, effort)
    return {"mutant": str(mutant), "killed_by": id_, "cpu": round(time.process_time() - began, 1)}


def samples(path: Path = SERIES) -> Iterator[Sample]:
    """What became of each sample, in the order in which they were drawn."""
    series = rows(path)
    for commit, seed in dict.fromkeys((row["commit"], row["seed"]) for row in series):
        chosen = [row for row in series if (row["commit"], row["seed"]) == (commit, seed)]
        survivors = tuple(row["mutant"] for row in chosen if row["killed_by"] is None)
        died = len(chosen) - len(survivors)
        yield Sample(chosen[0]["date"], commit, seed, len(chosen), died, survivors)

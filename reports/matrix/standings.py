"""Where each implementation stands, family by family, and how hard it was looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from cemverify.results.envelope import ResultError, Table
from reports.collect import ResultFile, complete
from reports.kinds.check import Tally, family, tallies
from synthetic.figures.sheets import Column, Entry, Group, Quantity, Sheet


@dataclass(frozen=True)
class Standing(Tally):
    """One family of properties of one implementation."""

    # how often the faults that these properties must catch are caught with as many examples; None if it was not
    # measured
    detection: float | None
    # from 0 to 1, how hard it was looked at: the examples that were asked for, times the detection, against the
    # hardest look in the matrix
    strength: float

    @property
    def examples(self) -> float:
        """Per property that was run, on average."""
        return sum(entry["examples"] for entry in self.entries) / self.run if self.run else 0.0

    @property
    def words(self) -> str:
        """What a cell of the table says: how many hold of those that were run, what was not, and the detection."""
        if not self.run:
            return "not asked" if self.unasked else "not offered"
        power = "" if self.detection is None else f", {100 * self.detection:.0f} % detected"
        missing = f", {self.unasked} not asked" if self.unasked else ""
        return f"{self.holds}/{self.run}{missing}, {self.examples:.0f} examples{power}"


@dataclass(frozen=True)
class Line:
    """Where one implementation stands, by its latest verdict."""

    implementation: str
    date: str  # when it was judged, day and year
    version: str  # of the suite
    commit: str
    by_family: Mapping[str, Standing]  # in the order of the result
    older: int  # how many results of the same implementation were passed over, as this one is the latest

    def total(self, name: str) -> int:
        """The sum of one of the counts of `Standing` over all families."""
        return sum(getattr(standing, name) for standing in self.by_family.values())

    @property
    def whole(self) -> bool:
        """Whether every property that was to be run was run and holds."""
        return self.total("holds") == self.total("run") + self.total("unasked") > 0

    @property
    def words(self) -> str:
        """How many properties hold of those that were run, and how many were not asked."""
        sentence = f"{self.total('holds')} of {self.total('run')} hold"
        return f"{sentence}, {self.total('unasked')} not asked" if self.total("unasked") else sentence


def lines_of(sources: Sequence[ResultFile]) -> list[Line]:
    """The latest verdict on each implementation, by name.

    Detection power is taken from the power results among the sources: the implementation's own if there is one, of
    the mutants as they are otherwise.
    """
    latest: dict[str, list[ResultFile]] = {}
    for source in sources:
        if source.content["kind"] == "check":
            latest.setdefault(source.content["implementation"], []).append(source)
    if not latest:
        paths = ", ".join(str(source.path) for source in sources[:3])
        raise ResultError(f"no result of `cemverify check --json` among {paths}; a matrix needs at least one")
    powers: dict[str | None, Mapping[str, Any]] = {}
    for source in sources:
        if source.content["kind"] == "power":
            powers[source.content["made_by"]["configuration"].get("implementation")] = source.content
    rows = []
    for name, results in sorted(latest.items()):
        newest = max(results, key=lambda source: str(source.content["made_by"]["created"]))
        with complete(newest):
            rows.append(_line(name, newest, powers.get(name, powers.get(None)), len(results) - 1))
    hardest = max((s.strength for line in rows for s in line.by_family.values()), default=0.0) or 1.0
    return [
        replace(line, by_family={n: replace(s, strength=s.strength / hardest) for n, s in line.by_family.items()})
        for line in rows
    ]


def sheet(lines: Sequence[Line]) -> Sheet:
    """A row for each cell, for programs."""
    counts = ("holds", "run", "violated", "undecided", "not offered", "not asked")
    columns = (
        *map(Column, ("implementation", "family", "verdict", *counts, "examples per property")),
        Column("detection", "%"),
        *map(Column, ("strength", "date", "suite version", "commit")),
    )
    rows: list[Sequence[Entry]] = [
        [
            *(line.implementation, name, s.verdict, s.holds, s.run, s.violated, s.undecided, s.absent, s.unasked),
            *(s.examples, Quantity(s.detection), s.strength, line.date, line.version, line.commit),
        ]
        for line in lines
        for name, s in line.by_family.items()
    ]
    return Sheet("Implementations and families of properties", columns, [Group("", rows)])


def table(lines: Sequence[Line]) -> Table:
    """A row for each implementation, for people."""
    names = families_of(lines)
    rows = [
        [
            *(line.implementation, line.date, line.version, line.words),
            *(line.by_family[name].words if name in line.by_family else "not tested" for name in names),
        ]
        for line in lines
    ]
    older = [
        f"{line.implementation}: {line.older} older {'result was' if line.older == 1 else 'results were'} left out"
        for line in lines
        if line.older
    ]
    return Table(
        "Implementations: properties that hold of those that were run",
        ["implementation", "date", "suite", "holds", *names],
        rows,
        (),
        older,
    )


def families_of(lines: Sequence[Line]) -> list[str]:
    """The families of properties that any of the implementations was asked for, in the order of the results."""
    return list(dict.fromkeys(name for line in lines for name in line.by_family))


def _line(name: str, source: ResultFile, power: Mapping[str, Any] | None, older: int) -> Line:
    content, made = source.content, source.content["made_by"]
    examples, families = made["configuration"].get("examples"), tallies(source.content)
    detected = {group: _detection(group, power, examples) for group in families}
    # what was not measured is taken for no better than what was
    least = min((share for share in detected.values() if share is not None), default=1.0)
    by_family = {}
    for group, tally in families.items():
        share = detected[group]
        strength = float(examples or 0) * (least if share is None else share)
        by_family[group] = Standing(tally.entries, tally.unasked, share, strength)
    commit = str(made.get("commit") or "")[:12]
    return Line(name, str(made["created"])[:10], content["suite_version"], commit, by_family, older)


def _detection(group: str, power: Mapping[str, Any] | None, examples: int | None) -> float | None:
    """The mean share of seeds that caught a fault of this family's properties, with at most as many examples."""
    if power is None or examples is None:
        return None
    shares = []
    for mutant in power["mutants"]:
        within = [at for at in mutant["budgets"] if at["examples"] <= examples]
        if family(mutant["property"]) == group and within:
            shares.append(max(within, key=lambda at: int(at["examples"]))["probability"])
    return fmean(shares) if shares else None

"""The measurements of the studies, which they write beside their pages: figures, without verdicts on claims.

A file `docs/results/NAME.json` is a result of kind "readings": a study, its scale, and ratios of one model's figure
to another's, each with its 95 % and 90 % intervals. Below 1 the first model is better. The ledger interprets a ratio
by the rules of `cemverify.results.statistics.side_of`, with the margin of the study.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cemverify.claims.arguments import Side
from cemverify.results import statistics
from cemverify.results.envelope import complete, read, read_json
from cemverify.results.statistics import Expected

Interval = tuple[float, float]


@dataclass(frozen=True)
class MeasuredRatio:
    """One model's figure over another's."""

    model: str
    baseline: str
    on: str  # what both were trained on, if the study has several; "" if it has one
    mean: float  # geometric, over replicates
    # interval95, interval90: None with fewer than two replicates, or if a run diverged
    interval95: Interval | None
    interval90: Interval | None
    # the study's own verdict, if it corrects for several comparisons; None otherwise
    verdict: str | None = None


@dataclass(frozen=True)
class BestRate:
    """The learning rate at which a model did best, and whether it is the smallest or the largest tried."""

    model: str
    rate: float
    at_edge: bool


@dataclass(frozen=True)
class Readings:
    """The measurements of a study."""

    study: str  # its name, such as "language-recursion"
    command: str  # that made it
    parameters: int  # of the largest model
    seen: str  # the amount of training data, such as "0.5M tokens"
    replicates: str  # as "3 seeds"
    recipe: str  # in a line
    margin: float  # of equivalence
    ratios: tuple[MeasuredRatio, ...]
    best_rates: tuple[BestRate, ...] = ()
    layers: str = ""  # which are CEM's, if the study's name does not say; "" otherwise

    @property
    def scale(self) -> str:
        """The scale of the study, in words."""
        which = f" ({self.layers})" if self.layers else ""
        return f"{self.parameters / 1e6:.3g}M parameters{which}, {self.seen}, {self.replicates}"

    @property
    def trained_on(self) -> tuple[str, ...]:
        """What the models were trained on, in the order of the file."""
        return tuple(dict.fromkeys(r.on for r in self.ratios))

    def ratio(self, model: str, baseline: str, on: str = "") -> MeasuredRatio | None:
        """The ratio of one model to another, inverted if the file has the inverse; None if there is none."""
        for r in self.ratios:
            if r.on == on and (r.model, r.baseline) == (model, baseline):
                return r
            if r.on == on and (r.baseline, r.model) == (model, baseline):
                ends = _turned(r.interval95), _turned(r.interval90)
                return MeasuredRatio(model, baseline, on, 1 / r.mean, *ends, r.verdict)
        return None


Results = Mapping[str, tuple[Readings, ...]]


def files(folder: Path) -> list[Path]:
    """The files of readings in a folder; none if there is no such folder."""
    contents = {path: read_json(path) for path in sorted(folder.glob("*.json"))}
    return [
        path for path, content in contents.items() if isinstance(content, dict) and content.get("kind") == "readings"
    ]


def collect(folder: Path | None) -> Results:
    """All readings in a folder, by study; none if there is no such folder."""
    by_study: dict[str, tuple[Readings, ...]] = {}
    for path in sorted(folder.glob("*.json")) if folder is not None and folder.is_dir() else ():
        content = read(path)
        if content["kind"] != "readings":
            continue
        with complete(path, content):
            readings = _parse(content)
        by_study[readings.study] = (*by_study.get(readings.study, ()), readings)
    return by_study


def side_of(expected: Expected, ratio: MeasuredRatio | None, margin: float) -> Side:
    """Which side of a statement of this kind a ratio supports."""
    if ratio is None or ratio.interval95 is None or ratio.interval90 is None:
        return "neither"
    if ratio.verdict == "inconclusive":
        return "neither"
    within = ratio.interval90[0] > 1 / (1 + margin) and ratio.interval90[1] < 1 + margin
    return statistics.side_of(expected, *ratio.interval95, margin, equivalent=within)


def _turned(interval: Interval | None) -> Interval | None:
    return None if interval is None else (1 / interval[1], 1 / interval[0])


def _parse(content: Mapping[str, Any]) -> Readings:
    ratios = (
        MeasuredRatio(
            str(r["model"]),
            str(r["baseline"]),
            str(r.get("on", "")),
            float(r["mean"]),
            _interval(r["interval95"]),
            _interval(r["interval90"]),
            r.get("verdict"),
        )
        for r in content["ratios"]
    )
    return Readings(
        study=str(content["study"]),
        command=str(content["made_by"]["command"]),
        parameters=int(content["parameters"]),
        seen=str(content["seen"]),
        replicates=str(content["replicates"]),
        recipe=str(content["recipe"]),
        margin=float(content["margin"]),
        ratios=tuple(ratios),
        best_rates=tuple(
            BestRate(str(b["model"]), float(b["rate"]), bool(b["at_edge"])) for b in content.get("best_rates", ())
        ),
        layers=str(content.get("layers", "")),
    )


def _interval(ends: Iterable[float] | None) -> Interval | None:
    if ends is None:
        return None
    low, high = map(float, ends)
    if not 0 < low <= high:
        raise ValueError(f"{[low, high]} is no interval of a ratio")
    return low, high

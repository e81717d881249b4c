"""What the study says: rows compared pair by pair, and whether the second step pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import stdev
from typing import Literal

from cemverify.results.statistics import PairedComparison, compare, correct, smallest_detectable
from synthetic.language.paper.summary import MARGIN
from synthetic.language.tuned import designs, power
from synthetic.language.tuned.plan import SecondStepPlan
from synthetic.language.tuned.study import State, Tuned

Verdict = Literal["pays", "does not pay", "undecided"]


@dataclass(frozen=True)
class Pair:
    """Two rows, compared over the seeds that both have.

    Attributes:
        model, base: names of rows. seeds: those that both were judged with and in which neither diverged.
        ratios: bits of the model over those of the base, one for each seed.
        comparison: of them; None without a seed. windows: what the text that is scored contributes to the error.
        diverged: judged trainings of either that did.
    """

    model: str
    base: str
    seeds: tuple[int, ...]
    ratios: tuple[float, ...]
    comparison: PairedComparison | None
    windows: power.Windows | None
    diverged: int

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.diverged:
            return "a run diverged"
        return "not judged yet" if self.comparison is None else self.comparison.conclusion


@dataclass(frozen=True)
class Answer:
    """Whether the second step of one row pays.

    Attributes:
        row: its name. verdict: by the rule of the study, with the row in the place of T = depth. why: in a sentence.
    """

    row: str
    verdict: Verdict
    why: str


@dataclass(frozen=True)
class Summary:
    """The study in short.

    Attributes:
        pairs: all comparisons. verdict: whether the second step pays. why: in a sentence.
        deviation: of the log ratios of T = depth over T = 1, where at least three seeds tell it.
        beyond: whether the second step pays in each row that is beyond the paper.
    """

    pairs: tuple[Pair, ...]
    verdict: Verdict
    why: str
    deviation: float | None
    beyond: tuple[Answer, ...] = ()

    def pair(self, model: str, base: str) -> Pair | None:
        """The comparison of two rows."""
        return next((pair for pair in self.pairs if (pair.model, pair.base) == (model, base)), None)


def summarise(plan: SecondStepPlan, found: State) -> Summary:
    """Compares every row with T = 1, and the recursion with each of its controls."""
    one, longer, deep = designs.one(), designs.one(plan.depth), designs.several(plan.depth)
    names = [row.name for row in plan.rows]
    asked = [(name, one) for name in names if name != one]
    asked += [(deep, base) for base in (longer, designs.WIDER, designs.TWICE, designs.LLAMA)]
    asked += [(name, longer) for name in (f"T = {plan.depth}, eta 1", f"T = {plan.depth}, eta learned")]
    others = [row for row in plan.rows if row.beyond and not row.name.startswith(f"{one},")]
    asked += [(row.name, base) for row in others for base in (longer, deep, designs.WIDER, designs.TWICE)]
    asked += [(row.name, row.name.replace(f"T = {plan.depth}", one)) for row in others]
    rows = {tuned.row.name: tuned for tuned in found.rows}
    pairs = [_pair(rows[model], rows[base]) for model, base in asked if model in rows and base in rows]
    beyond = {row.name for row in plan.rows if row.beyond}
    # two families: what is said of the paper's rows does not depend on how many others were tried
    pairs = _corrected([p for p in pairs if p.model not in beyond]) + _corrected(
        [p for p in pairs if p.model in beyond]
    )
    by_name = {(pair.model, pair.base): pair for pair in pairs}
    verdict, why = _verdict(deep, [by_name.get((deep, base)) for base in (one, longer)])
    deviation = _deviation(by_name.get((deep, one)))
    answers = [
        Answer(row.name, *_verdict(row.name, [by_name.get((row.name, base)) for base in (one, longer)]))
        for row in others
    ]
    return Summary(tuple(pairs), verdict, why, deviation, tuple(answers))


def detectable(deviation: float, seeds: int) -> float:
    """The smallest difference that so many seeds find with 80 % power, for a standard deviation of log ratios."""
    # numbers with exactly this standard deviation
    edge = deviation * ((seeds - 1) / 2) ** 0.5
    return smallest_detectable([edge, -edge, *[0.0] * (seeds - 2)])


def _pair(model: Tuned, base: Tuned) -> Pair:
    ours, theirs = model.finals, base.finals
    seeds = tuple(seed for seed in ours if seed in theirs)
    comparison = compare([ours[s] for s in seeds], [theirs[s] for s in seeds], MARGIN) if seeds else None
    records = [[tuned.judged[s] for s in seeds] for tuned in (model, base)]
    windows = power.from_windows(*[[r for r in of_one if r is not None] for of_one in records])
    return Pair(
        model.row.name,
        base.row.name,
        seeds,
        tuple(ours[s] / theirs[s] for s in seeds),
        comparison,
        windows,
        model.diverged + base.diverged,
    )


def _corrected(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs of one family, with p-values corrected by Holm's method."""
    found = correct([pair.comparison for pair in pairs])
    return [replace(pair, comparison=comparison) for pair, comparison in zip(pairs, found, strict=True)]


def _verdict(deep: str, pairs: Sequence[Pair | None]) -> tuple[Verdict, str]:
    """It pays if it is better than every T = 1, and does not if it is equivalent to one or worse."""
    there = [pair for pair in pairs if pair is not None]
    if len(there) < len(pairs):
        return "undecided", "the rows that decide it are not in this study"
    if any(pair.comparison is None for pair in there):
        return "undecided", "no seed has judged them all yet"
    verdicts = [pair.verdict for pair in there]
    against = [f"*{pair.base}*" for pair in there]
    if all(verdict == "better" for verdict in verdicts):
        return "pays", f"*{deep}* is better than {' and than '.join(against)}"
    for pair, verdict in zip(there, verdicts, strict=True):
        if verdict in ("worse", "equivalent"):
            word = "worse than" if verdict == "worse" else f"equivalent to (within {MARGIN:.1%})"
            return "does not pay", f"*{deep}* is {word} *{pair.base}*"
    open_ones = [f"*{p.base}*" for p, verdict in zip(there, verdicts, strict=True) if verdict != "better"]
    return "undecided", f"*{deep}* cannot be told apart from {' or '.join(open_ones)}"


def _deviation(pair: Pair | None) -> float | None:
    if pair is None or pair.comparison is None or len(pair.ratios) < 3:
        return None
    return stdev(log(ratio) for ratio in pair.ratios)

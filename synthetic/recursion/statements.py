"""The paper's statements about recursion depth, read against what the study found, by rules fixed here beforehand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cemverify.results.numbers import shown_ratio
from cemverify.results.statistics import compare
from synthetic.recursion.summary import Row
from synthetic.statements import Statement


def read(studied: Mapping[str, Sequence[Row]]) -> list[Statement]:
    """The statements on plain CEM, prior by prior: text of the prior -> its rows."""
    depths = {prior: by_depth(rows) for prior, rows in studied.items()}
    return [
        _second_step(depths),
        *(
            _best_depth(prior, at, "RBF: T = 4 is best, T = 8 slightly worse", 4)
            for prior, at in _named(depths, "rbf")
        ),
        *(
            _best_depth(prior, at, "non-stationary process: T = 8 is best", 8)
            for name in ("warped", "gibbs", "changepoint", "modulated")
            for prior, at in _named(depths, name)
        ),
    ]


def _second_step(depths: Mapping[str, Mapping[int, Row]]) -> Statement:
    """ "Usually" is taken as: better on most priors, worse on none."""
    text = "T = 2 usually improves on T = 1"
    asked = {prior: compare(at[2].errors, at[1].errors) for prior, at in depths.items() if {1, 2} <= at.keys()}
    if not asked:
        return Statement(text, "T = 1 and T = 2 were not both trained", "not asked")
    better = [prior for prior, c in asked.items() if c.conclusion == "better"]
    worse = [prior for prior, c in asked.items() if c.conclusion == "worse"]
    found = "; ".join(f"{short(prior)}: {shown_ratio(c, 3)}, {c.conclusion}" for prior, c in asked.items())
    if len(better) > len(asked) / 2 and not worse:
        return Statement(text, found, "agrees")
    return Statement(text, found, "disagrees" if len(worse) > len(asked) / 2 else "undecided")


def _best_depth(prior: str, at: Mapping[int, Row], text: str, expected: int) -> Statement:
    """Agrees if the expected depth has the smallest mean, and is better than each other one beyond chance."""
    if expected not in at or len(at) < 2:
        return Statement(text, f"{short(prior)}: T = {expected} was not compared", "not asked")
    best = min(at, key=lambda T: math.fsum(map(math.log, at[T].errors)))
    rivals = {T: compare(at[T].errors, at[best].errors) for T in at if best != T}
    found = f"{short(prior)}: best T = {best}; " + "; ".join(
        f"T = {T} / T = {best}: {shown_ratio(c, 3)}, {c.conclusion}" for T, c in rivals.items()
    )
    if best == expected:
        return Statement(
            text, found, "agrees" if all(c.conclusion == "worse" for c in rivals.values()) else "undecided"
        )
    return Statement(text, found, "disagrees" if rivals[expected].conclusion == "worse" else "undecided")


def by_depth(rows: Sequence[Row], family: str = "CEM") -> dict[int, Row]:
    """Plain CEM, or another family, at every depth at which no run diverged."""
    found = [row for row in rows if row.contender is not None and row.contender.family == family and not row.diverged]
    return {row.contender.depth: row for row in found if row.contender is not None}


def _named(depths: Mapping[str, Mapping[int, Row]], name: str) -> list[tuple[str, Mapping[int, Row]]]:
    return [(prior, at) for prior, at in depths.items() if short(prior) == name]


def short(prior: str) -> str:
    return prior.partition("(")[0]

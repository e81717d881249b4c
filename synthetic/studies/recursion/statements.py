"""The paper's statements about recursion depth, read against what the study found, by rules fixed here beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cemverify.results.numbers import shown_ratio
from cemverify.results.statistics import Ratio, compare, correct
from reports.kinds.recursion import Row, best_depth, by_depth, errors, priors, short
from synthetic.studies.engine.statements import Statement

_NON_STATIONARY = ("warped", "gibbs", "changepoint", "modulated")


def read(content: Mapping[str, Any]) -> list[Statement]:
    """The statements on plain CEM, prior by prior."""
    depths = {prior: by_depth(rows) for prior, rows in priors(content).items()}
    named = [(short(prior), at) for prior, at in depths.items()]
    return [
        _second_step(depths),
        *(
            _best_depth(at, name, "RBF: T = 4 is best, T = 8 slightly worse", 4)
            for name, at in named
            if name == "rbf"
        ),
        *(
            _best_depth(at, name, "non-stationary process: T = 8 is best", 8, of_the_papers_case=False)
            for kind in _NON_STATIONARY
            for name, at in named
            if name == kind
        ),
    ]


def _second_step(depths: Mapping[str, Mapping[int, Row]]) -> Statement:
    """ "Usually" is taken as: better on most priors, worse on none. The verdicts are those of the tables."""
    text = "T = 2 usually improves on T = 1"
    asked = {short(prior): at[2]["deeper"] for prior, at in depths.items() if {1, 2} <= at.keys()}
    if not asked:
        return Statement(text, "T = 1 and T = 2 were not both trained", "not asked")
    verdicts = [c["conclusion"] for c in asked.values()]
    better, worse = verdicts.count("better"), verdicts.count("worse")
    found = "; ".join(
        f"{name}: {shown_ratio(Ratio(**c['ratio']), 3)}, {c['conclusion']}" for name, c in asked.items()
    )
    if better > len(asked) / 2 and not worse:
        return Statement(text, found, "agrees")
    return Statement(text, found, "disagrees" if worse > len(asked) / 2 else "undecided")


def _best_depth(
    at: Mapping[int, Row], name: str, text: str, expected: int, *, of_the_papers_case: bool = True
) -> Statement:
    """Agrees if the expected depth has the smallest mean, and is better than each other one beyond chance.

    On a process that is not the paper's a contrary result may come from the process: it is undecided.
    """
    if expected not in at or len(at) < 2:
        return Statement(text, f"{name}: T = {expected} was not compared", "not asked")
    best = best_depth(at)
    others = [T for T in at if best != T]
    compared = correct([compare(errors(at[T]), errors(at[best])) for T in others])
    rivals = dict(zip(others, compared, strict=True))
    found = f"{name}: best T = {best}; " + "; ".join(
        f"T = {T} / T = {best}: {shown_ratio(c, 3)}, {c.conclusion}" for T, c in rivals.items()
    )
    if best == expected:
        agrees = all(c.conclusion == "worse" for c in rivals.values())
        return Statement(text, found, "agrees" if agrees else "undecided")
    contrary = rivals[expected].conclusion == "worse" and of_the_papers_case
    return Statement(text, found, "disagrees" if contrary else "undecided")

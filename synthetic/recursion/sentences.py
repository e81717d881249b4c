"""What a recursion study shows, in a few sentences for the first screen of its page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from cemverify.statistics import PairedComparison
from synthetic import stopping
from synthetic.recursion.cells import TEST_DEPTHS
from synthetic.recursion.statements import by_depth, short
from synthetic.recursion.summary import Row, is_drawn, mean_at_depths, mean_at_stops

LAST = TEST_DEPTHS[-1]
# A family, and what is said of its T = 2 over its T = 1.
FAMILIES = (
    ("CEM", "The error of plain CEM with T = 2, divided by that with T = 1, is"),
    ("CEM, norm inside", "With a norm inside, as in language models, it is"),
    (
        "MLP reused",
        "For an untied MLP applied twice rather than once, which has no energy and no fixed memory, it is",
    ),
)


def known(studied: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """The sentences, each from the rows that it is about; none about rows that are not there."""
    for family, words in FAMILIES:
        told = [
            f"{_ratio(row.deeper)} on {short(prior)}"
            for prior, rows in studied.items()
            for row in rows
            if row.name == f"{family}, T = 2" and row.deeper is not None
        ]
        if told:
            yield f"{words} {', '.join(told)}."
    best = [(short(prior), _best(by_depth(rows))) for prior, rows in studied.items() if len(by_depth(rows)) > 1]
    if best:
        yield f"The smallest error of plain CEM is at {', '.join(f'T = {T} ({name})' for name, T in best)}."
    yield from _dial(studied)
    tried = [row for rows in studied.values() for row in rows if row.contender is not None]
    edges = sum(row.at_edge for row in tried)
    if edges == len(tried) and edges:
        yield (
            "Every best learning rate is the smallest or the largest that was tried, so part of a difference between"
            " depths may be one of tuning."
        )
    elif edges:
        yield (
            f"{edges} of {len(tried)} rows have their best learning rate at the edge of those tried: there, part of a"
            " difference between depths may be one of tuning."
        )


def _dial(studied: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """One model for all depths, against models for each: at their own T, and at the most steps that were tried."""
    for prior, rows in studied.items():
        drawn = [row for row in rows if is_drawn(row)]
        if not drawn:
            continue
        each = by_depth(rows)
        own = ", ".join(f"{dict(mean_at_depths(row)).get(T, math.inf):.3f} (T = {T})" for T, row in each.items())
        far = ", ".join(f"{dict(mean_at_depths(row)).get(LAST, math.inf):.2g}" for row in each.values())
        yield f"On {short(prior)}, models trained for one T have an error of {own}; with {LAST} steps, of {far}."
        for row in drawn:
            assert row.contender is not None
            at = dict(mean_at_depths(row))
            lowest = min(at, key=lambda T: at[T])
            yield (
                f"One model for all T (*{row.contender.family}*) has {at[1]:.3f} with one step, {at[lowest]:.3f} with"
                f" {lowest}, its best number, and {at.get(LAST, math.inf):.3g} with {LAST}."
            )
            stops = mean_at_stops(row)
            if (ended := stopping.best(stops)) is not None:
                error, stop = ended
                yield (
                    f"Where its points stop by energy, it has {error:.3f} with {stop.steps:.1f} of {LAST} steps"
                    f" (q = {stopping.share(stop.least_fall)}, the best of {len(stops)} tried)."
                )


def _best(at: Mapping[int, Row]) -> int:
    return min(at, key=lambda T: math.fsum(map(math.log, at[T].errors)))


def _ratio(comparison: PairedComparison) -> str:
    ratio = comparison.ratio
    interval = "" if ratio.low is None or ratio.high is None else f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    return f"{ratio.mean:.3f}{interval}"

"""What a recursion study shows, in a few sentences for the first screen of its page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from cemverify.results.numbers import shown_ratio
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
            f"{shown_ratio(row.deeper, 3)} on {short(prior)}"
            for prior, rows in studied.items()
            for row in rows
            if row.name == f"{family}, T = 2" and row.deeper is not None
        ]
        if told:
            yield f"{words} {', '.join(told)}."
    best = [(short(prior), _best(by_depth(rows))) for prior, rows in studied.items() if len(by_depth(rows)) > 1]
    if best:
        yield f"The smallest error of plain CEM is at {', '.join(f'T = {T} ({name})' for name, T in best)}."
    yield from _summed(studied)
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


def _summed(studied: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """Steps that sum to 1 against steps of 1, each at its best depth."""
    told = []
    for prior, rows in studied.items():
        plain, summed = by_depth(rows), by_depth(rows, "CEM, steps sum to 1")
        if len(summed) > 1 and plain and not any(map(is_drawn, rows)):
            T, other = _best(summed), _best(plain)
            pairs = zip(summed[T].errors, plain[other].errors, strict=True)
            ratio = math.exp(math.fsum(math.log(a / b) for a, b in pairs) / len(plain[other].errors))
            told.append(f"T = {T} ({short(prior)}), {ratio:.3f} times as large")
    if told:
        yield f"With steps that sum to 1, it is at {', and at '.join(told)}."


def _dial(studied: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """One model for all depths against models for each, with the most steps that were tried, and with a stop."""
    for prior, rows in studied.items():
        drawn = sorted(filter(is_drawn, rows), key=lambda row: dict(mean_at_depths(row)).get(LAST, math.inf))
        if not drawn:
            continue
        each = by_depth(rows)
        own = ", ".join(f"{dict(mean_at_depths(row)).get(T, math.inf):.3f} (T = {T})" for T, row in each.items())
        far = ", ".join(f"{dict(mean_at_depths(row)).get(LAST, math.inf):.2g}" for row in each.values())
        yield f"On {short(prior)}, models trained for one T have an error of {own}; with {LAST} steps, of {far}."
        first, *others = drawn
        assert first.contender is not None
        at = dict(mean_at_depths(first))
        lowest = min(at, key=lambda T: at[T])
        yield (
            f"Of the models for all T, the one that is best with {LAST} steps (*{first.contender.family}*) has"
            f" {at[1]:.3f} with one step, {at[lowest]:.3f} with {lowest}, its best number, and"
            f" {at.get(LAST, math.inf):.3f} with {LAST}."
        )
        if others:
            least = [min(error for _, error in mean_at_depths(row)) for row in others]
            last = [dict(mean_at_depths(row)).get(LAST, math.inf) for row in others]
            yield f"The others have {_span(least)} with their best number of steps, and {_span(last)} with {LAST}."
        yield from _stopped(rows)


def _stopped(rows: Sequence[Row]) -> Iterator[str]:
    """Whether stopping by energy helps."""
    ended = [
        (found[0], dict(mean_at_depths(row)))
        for row in rows
        if (found := stopping.best(mean_at_stops(row))) is not None
    ]
    if not ended:
        return
    fewer = sum(error < at.get(LAST, math.inf) for error, at in ended)
    best = sum(error <= min(at.values()) for error, at in ended)
    yield (
        f"Where points stop by energy, at the best of {len(stopping.STOPS)} shares, {fewer} of {len(ended)} models"
        f" have a smaller error than with all {LAST} steps, and {best or 'none'} one as small as with its best number"
        " of steps."
    )


def _span(errors: Sequence[float]) -> str:
    low, high = f"{min(errors):.3f}", f"{max(errors):.3f}"
    return low if low == high else f"{low} to {high}"


def _best(at: Mapping[int, Row]) -> int:
    return min(at, key=lambda T: math.fsum(map(math.log, at[T].errors)))

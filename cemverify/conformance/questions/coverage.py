"""Covering arrays: few rows of options in which every pair of values of any two options occurs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations

import numpy as np

Row = tuple[int, ...]
Meeting = tuple[int, int, int, int]  # option, value, other option, its value

_CANDIDATES = 24
_GOLDEN = (5**0.5 - 1) / 2  # its multiples fill an interval evenly


@lru_cache(maxsize=256)
def covering(levels: tuple[int, ...]) -> tuple[Row, ...]:
    """Rows in which every pair of values of any two options occurs.

    Args:
        levels: the number of values of each option, at least 1.

    Returns:
        Rows of one value per option, only a few more than the product of the two largest levels. A single option
        takes each of its values once. Two rows in a row have as few values in common as can be, so that two
        questions see two values of every option.
    """
    if len(levels) == 1:
        return tuple((value,) for value in range(levels[0]))
    every = {
        (i, a, j, b)
        for i, j in combinations(range(len(levels)), 2)
        for a in range(levels[i])
        for b in range(levels[j])
    }
    return _unlike_the_one_before(rows_of(levels, every)) or ((),)


def stride_over(rows: Sequence[object]) -> int:
    """Steps of so many rows meet all of them, and a few of these steps rows from all over the array."""
    return next(n for n in range(round(_GOLDEN * len(rows)) or 1, len(rows) + 2) if math.gcd(n, len(rows)) == 1)


def rows_of(levels: tuple[int, ...], meetings_due: Iterable[Meeting]) -> list[Row]:
    """Few rows in which all of these meet: a greedy construction from a fixed seed."""
    rng, missing, rows = np.random.default_rng(0), set(meetings_due), list[Row]()
    while missing:
        seed = min(missing)
        candidates = [_grown(levels, seed, missing, rng) for _ in range(_CANDIDATES)]
        best = max(candidates, key=lambda row: len(meetings(row) & missing))
        rows.append(best)
        missing -= meetings(best)
    return rows


def _unlike_the_one_before(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The same rows in another order: next comes the one that differs from the last in most options."""
    left, ordered = list(rows[1:]), list(rows[:1])
    while left:
        last = ordered[-1]
        ordered.append(max(left, key=lambda row: sum(a != b for a, b in zip(row, last, strict=True))))
        left.remove(ordered[-1])
    return tuple(ordered)


def meetings(row: Sequence[int]) -> set[Meeting]:
    """Every pair of options with the values that occur together in a row."""
    return {(i, row[i], j, row[j]) for i, j in combinations(range(len(row)), 2)}


def _grown(levels: tuple[int, ...], seed: Meeting, missing: set[Meeting], rng: np.random.Generator) -> Row:
    """A row that contains a missing pair. The other options, in random order, take the value that covers
    most pairs."""
    i, a, j, b = seed
    row = {i: a, j: b}
    for k in rng.permutation(len(levels)):
        if int(k) not in row:
            row[int(k)] = max(rng.permutation(levels[k]).tolist(), key=lambda v: _gain(row, int(k), v, missing))
    return tuple(row[k] for k in range(len(levels)))


def _gain(row: dict[int, int], k: int, value: int, missing: set[Meeting]) -> int:
    return sum(((k, value, i, v) if k < i else (i, v, k, value)) in missing for i, v in row.items())

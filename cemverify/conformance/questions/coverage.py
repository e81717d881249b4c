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
        takes each of its values once. Consecutive rows have as few values in common as possible, so that two
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
    first, *left = rows_of(levels, every) or [()]
    ordered = [first]
    while left:  # next comes the row that differs from the last in most options
        ordered.append(max(left, key=lambda row: sum(a != b for a, b in zip(row, ordered[-1], strict=True))))
        left.remove(ordered[-1])
    return tuple(ordered)


@lru_cache(maxsize=256)
def in_turn(levels: tuple[int, ...]) -> tuple[Row, ...]:
    """Rows of which any 2n in turn have all n values of an option; for the longest option, any n in turn."""
    rng, rows = np.random.default_rng(0), math.lcm(*levels)
    turns = [[np.arange(n) if n == max(levels) else rng.permutation(n) for _ in range(rows // n)] for n in levels]
    return tuple(zip(*(np.concatenate(each).tolist() for each in turns), strict=True))


def stride_over(rows: Sequence[object]) -> int:
    """A step that visits every row when repeated, and of which a few repetitions reach all parts of the array."""
    return next(n for n in range(round(_GOLDEN * len(rows)) or 1, len(rows) + 2) if math.gcd(n, len(rows)) == 1)


def rows_of(levels: tuple[int, ...], meetings_due: Iterable[Meeting]) -> list[Row]:
    """A small set of rows in which all of these meet: a greedy construction from a fixed seed."""
    rng, missing, rows = np.random.default_rng(0), set(meetings_due), list[Row]()
    # one bit for each value of each option, so that an integer is a set of values
    starts = np.cumsum((0, *levels)).tolist()
    bits = [[1 << (start + value) for value in range(count)] for start, count in zip(starts, levels, strict=False)]
    partners = [[0] * count for count in levels]  # for each value, as bits: those that it has not met yet
    for i, a, j, b in missing:
        partners[i][a] |= bits[j][b]
        partners[j][b] |= bits[i][a]
    while missing:
        seed = min(missing)
        candidates = [_grown(levels, seed, partners, bits, rng) for _ in range(_CANDIDATES)]
        best, _ = max(candidates, key=lambda grown: grown[1])
        rows.append(best)
        missing -= meetings(best)
        chosen = sum(bits[k][value] for k, value in enumerate(best))
        for k, value in enumerate(best):
            partners[k][value] &= ~chosen
    return rows


def meetings(row: Sequence[int]) -> set[Meeting]:
    """Every pair of options with the values that occur together in a row."""
    return {(i, row[i], j, row[j]) for i, j in combinations(range(len(row)), 2)}


def _grown(
    levels: tuple[int, ...], seed: Meeting, partners: list[list[int]], bits: list[list[int]], rng: np.random.Generator
) -> tuple[Row, int]:
    """A row that contains a missing pair, and how many it covers. The other options, in random order, take the value
    that covers most of them."""
    i, a, j, b = seed
    row = {i: a, j: b}
    chosen, covered = bits[i][a] | bits[j][b], 1
    for k in rng.permutation(len(levels)).tolist():
        if k not in row:
            gains = [(met & chosen).bit_count() for met in partners[k]]
            row[k] = max(rng.permutation(levels[k]).tolist(), key=gains.__getitem__)
            chosen |= bits[k][row[k]]
            covered += gains[row[k]]
    return tuple(row[k] for k in range(len(levels))), covered

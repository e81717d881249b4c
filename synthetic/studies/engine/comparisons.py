"""Rows compared pair by pair, and one rule for several comparisons: Holm's, over all of a family."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from cemverify.results.numbers import shown_verdict
from cemverify.results.statistics import PairedComparison, compare, correct

# Losses within this share of each other count as equivalent. By Chinchilla's law (Hoffmann et al. 2022, third fit)
# the two smallest of the paper's sizes, at 20 tokens per parameter, differ by 3.6 %: this is a seventh of that.
MARGIN = 0.005


@dataclass(frozen=True)
class Compared:
    """Two rows, compared over the replicates that both have."""

    # model, base: titles of rows
    model: str
    base: str
    seeds: tuple[int, ...]  # with which both were judged and neither diverged
    # values, references: the results of the model and of the base, one for each of these seeds
    values: tuple[float, ...]
    references: tuple[float, ...]
    comparison: PairedComparison | None  # of the two; None without a seed
    diverged: int = 0  # judged trainings of either that diverged
    keys: tuple[Hashable, Hashable] = ("", "")  # of the rows

    @property
    def ratios(self) -> tuple[float, ...]:
        """The model's value over the base's, one for each seed."""
        return tuple(mine / theirs for mine, theirs in zip(self.values, self.references, strict=True))

    @property
    def verdict(self) -> str:
        """The conclusion in a word, or why there is none."""
        if self.diverged:
            return "a run diverged"
        c = self.comparison
        return "not judged yet" if c is None else shown_verdict(c.conclusion, c.n)


def compared(
    model: str,
    base: str,
    values: Mapping[int, float],
    references: Mapping[int, float],
    diverged: int = 0,
    keys: tuple[Hashable, Hashable] | None = None,
) -> Compared:
    """Compares two rows over the seeds that both have, uncorrected; see `family` for several comparisons.

    Args:
        values, references: by seed, of the model and of the base.
        keys: of the rows, if they differ from their titles.
    """
    seeds = tuple(seed for seed in values if seed in references)
    mine, theirs = tuple(values[s] for s in seeds), tuple(references[s] for s in seeds)
    comparison = compare(mine, theirs, MARGIN) if seeds else None
    return Compared(model, base, seeds, mine, theirs, comparison, diverged, keys or (model, base))


def family(comparisons: Sequence[Compared]) -> list[Compared]:
    """Comparisons that are read together, with their p-values corrected by Holm's method."""
    corrected = correct([one.comparison for one in comparisons])
    return [replace(one, comparison=comparison) for one, comparison in zip(comparisons, corrected, strict=True)]


def pair_of(comparisons: Sequence[Compared], model: Hashable, base: Hashable) -> Compared | None:
    """The comparison of the rows with these keys, if it is there and has a seed."""
    matching = (one for one in comparisons if one.keys == (model, base))
    return next((one for one in matching if one.comparison is not None), None)

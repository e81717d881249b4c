"""Rows compared pair by pair, and one rule for several comparisons: Holm's, over all of a family."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from cemverify.results.numbers import shown_verdict
from cemverify.results.statistics import PairedComparison, compare, correct

# Losses this near to each other are as good as equal. By Chinchilla's law (Hoffmann et al. 2022, its third fit) the
# two smallest of the paper's sizes, at 20 tokens a parameter, differ by 3.6 %: this is a seventh of that.
MARGIN = 0.005


@dataclass(frozen=True)
class Compared:
    """Two rows, compared over the replicates that both have."""

    # model, base: titles of rows
    model: str
    base: str
    seeds: tuple[int, ...]  # those that both were judged with and in which neither diverged
    # values, references: what the model and the base came to, one for each of them
    values: tuple[float, ...]
    references: tuple[float, ...]
    comparison: PairedComparison | None  # of these; None without a seed
    diverged: int = 0  # judged trainings of either that did
    keys: tuple[Hashable, Hashable] = ("", "")  # of the rows

    @property
    def ratios(self) -> tuple[float, ...]:
        """The model's value over the base's, one for each seed."""
        return tuple(mine / theirs for mine, theirs in zip(self.values, self.references, strict=True))

    @property
    def verdict(self) -> str:
        """The conclusion in a word; or why there is none."""
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
    """Two rows over the seeds that both have, on their own; see `family` for several.

    Args:
        values, references: by seed, of the model and of the base.
        keys: of the rows, where these are not their titles.
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

"""Which of several models is best, if a paired test says that it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from cemverify.results.statistics import compare, correct


def winner(errors: Mapping[str, Sequence[float]]) -> str | None:
    """The model with the least mean error, if it is better than each of the others.

    Each comparison is the house's paired one, over the same replicates, corrected by Holm's method for their number.

    Args:
        errors: by model, one positive error for each replicate, in one order for all.

    Returns:
        Its name; None if the models tie, if there are fewer than two, or if there is one replicate only.
    """
    if len(errors) < 2 or len({len(values) for values in errors.values()}) != 1:
        return None
    if any(not values or min(values) <= 0 for values in errors.values()):
        return None
    best = min(errors, key=lambda name: fmean(errors[name]))
    found = correct([compare(errors[best], values) for name, values in errors.items() if name != best])
    return best if all(comparison.conclusion == "better" for comparison in found) else None

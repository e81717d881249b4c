"""Numbers as text: one way to write a ratio, a mean and a p-value in tables, sentences and on the command line."""

from __future__ import annotations

from cemverify.results.statistics import FEWEST, PairedComparison, Ratio, Spread

# A cell of a table that has no number.
NOTHING = "–"


def shown_ratio(comparison: PairedComparison | Ratio | None, digits: int = 4) -> str:
    """A ratio with its interval if it has one, "0.9934 [0.9910, 0.9958]"; a dash for None."""
    if comparison is None:
        return NOTHING
    ratio = comparison.ratio if isinstance(comparison, PairedComparison) else comparison
    if ratio.low is None or ratio.high is None:
        return f"{ratio.mean:.{digits}f}"
    return f"{ratio.mean:.{digits}f} [{ratio.low:.{digits}f}, {ratio.high:.{digits}f}]"


def shown_verdict(conclusion: str, n: int, noun: str = "seeds") -> str:
    """A verdict on n pairs in words; too few pairs have none, whatever a file of an older version says."""
    return conclusion if n >= FEWEST else f"too few {noun} ({FEWEST} needed)"


def shown_spread(spread: Spread | None, digits: int = 4) -> str:
    """A mean with its standard deviation if it has one, "2.1034 ± 0.0112"; a dash for None."""
    if spread is None:
        return NOTHING
    deviation = "" if spread.std is None else f" ± {spread.std:.{digits}f}"
    return f"{spread.mean:.{digits}f}{deviation}"


def shown_p(p: float | None) -> str:
    """A p-value, "0.0120" or "<0.0001"; a dash for None."""
    if p is None:
        return NOTHING
    return "<0.0001" if p < 1e-4 else f"{p:.4f}"


def shown_share(share: float | None, digits: int = 2) -> str:
    """A share of 1 in per cent, "0.34%"; a dash for None."""
    return NOTHING if share is None else f"{share:.{digits}%}"

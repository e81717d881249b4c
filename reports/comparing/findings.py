"""What a comparison finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Content = Mapping[str, Any]
Weight = Literal["regression", "improvement", "note"]


class Incomparable(Exception):
    """Two results cannot be compared; the message says why."""


@dataclass(frozen=True)
class Finding:
    """A difference between an old result and a new one.

    Attributes:
        weight: whether it is worse, better, or neither.
        what: which figure or verdict. before, after: what it was and is. sentence: how it is known.
    """

    weight: Weight
    what: str
    before: str
    after: str
    sentence: str

    def __str__(self) -> str:
        change = f" {self.before} -> {self.after}" if self.before or self.after else ""
        return f"{self.what}:{change}" + (f" ({self.sentence})" if self.sentence else "")

    def describe(self) -> dict[str, str]:
        """The finding as JSON, a field for each attribute."""
        return {
            "weight": self.weight,
            "what": self.what,
            "before": self.before,
            "after": self.after,
            "sentence": self.sentence,
        }


def regression(what: str, before: Any, after: Any, sentence: str = "") -> Finding:
    """A finding that something is worse than before."""
    return Finding("regression", what, _text(before), _text(after), sentence)


def improvement(what: str, before: Any, after: Any, sentence: str = "") -> Finding:
    """A finding that something is better than before."""
    return Finding("improvement", what, _text(before), _text(after), sentence)


def note(what: str, before: Any, after: Any, sentence: str = "") -> Finding:
    """A finding that something changed and is neither better nor worse."""
    return Finding("note", what, _text(before), _text(after), sentence)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "none" if value is None else str(value)[:200]

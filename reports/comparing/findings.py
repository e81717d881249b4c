"""What a comparison finds."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

Content = Mapping[str, Any]
Weight = Literal["regression", "improvement", "note"]
Old = TypeVar("Old")
New = TypeVar("New")


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


def _finding(weight: Weight, what: str, before: Any, after: Any, sentence: str = "") -> Finding:
    return Finding(weight, what, _text(before), _text(after), sentence)


# Each takes what changed, what it was and is, and how that is known.
regression, improvement, note = (partial(_finding, weight) for weight in ("regression", "improvement", "note"))


def changed(worse: bool, what: str, before: Any, after: Any, sentence: str = "") -> Finding:
    """A regression if it is worse than before, and an improvement otherwise."""
    return (regression if worse else improvement)(what, before, after, sentence)


def in_both(
    before: Mapping[str, Old], after: Mapping[str, New], missing: Callable[[str, Old], Finding | None]
) -> Generator[Finding, None, list[tuple[str, Old, New]]]:
    """Yields what is to be said of whatever the new side lacks; returns what both have, with what it was and is."""
    for what, was in before.items():
        if what not in after and (found := missing(what, was)) is not None:
            yield found
    return [(what, was, after[what]) for what, was in before.items() if what in after]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "none" if value is None else str(value)[:200]

"""The findings of a comparison."""

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
    """A difference between an old result and a new one."""

    weight: Weight  # whether it is worse, better, or neither
    what: str  # the figure or verdict that changed
    # before, after: its old and its new value
    before: str
    after: str
    sentence: str  # an explanation

    def __str__(self) -> str:
        change = f" {self.before} -> {self.after}" if self.before or self.after else ""
        return f"{self.what}:{change}" + (f" ({self.sentence})" if self.sentence else "")


def _finding(weight: Weight, name: str, before: Any, after: Any, sentence: str = "") -> Finding:
    return Finding(weight, name, _text(before), _text(after), sentence)


# Each takes what changed, its old and new value, and an explanation.
regression, improvement, note = (partial(_finding, weight) for weight in ("regression", "improvement", "note"))


def changed(worse: bool, name: str, before: Any, after: Any, sentence: str = "") -> Finding:
    """A regression if it is worse than before, and an improvement otherwise."""
    return (regression if worse else improvement)(name, before, after, sentence)


def in_both(
    before: Mapping[str, Old], after: Mapping[str, New], missing: Callable[[str, Old], Finding | None]
) -> Generator[Finding, None, list[tuple[str, Old, New]]]:
    """Yields findings on what the new side lacks; returns what both have, with its old and its new value."""
    for name, was in before.items():
        if name not in after and (finding := missing(name, was)) is not None:
            yield finding
    return [(name, was, after[name]) for name, was in before.items() if name in after]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "none" if value is None else str(value)[:200]

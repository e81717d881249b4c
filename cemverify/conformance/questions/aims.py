"""Where questions come from, and aims: quantities of a question to set near a number in the code under test.

A number can be a size (a block of 64 tokens), a count of steps, an option (an epsilon of 1e-6), or a magnitude (a
softplus that is linear above 20). Which one it is cannot be known, so it is tried as each: as sizes one below,
at, one above and well above it, and as everything else just below, just above and well above it. Questions that cost
too much, or that the contract does not allow, are not asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np
from hypothesis.strategies import SearchStrategy

from cemverify.conformance.source.reading.numbers import Number

# The largest size of each axis that is asked for; steps are T.
MOST = {"B": 260, "J": 520, "D": 2100, "K": 65, "R": 520, "M": 4100, "rank": 40, "T": 33}
OPTIONS = {"step_size": (1e-3, 4.0), "temperature": (0.05, 1e3), "norm_eps": (1e-12, 1.0)}
MAGNITUDES = {"x": 1e4, "h": 1e4, "logits": 2e3, "hidden": 1e3, "gate": 1e3, "P_d": 1e3, "diagonal": 1e2, "gain": 1e2,
              "to_self": 1e2}  # fmt: skip
_LEAST_MAGNITUDE = 1e-9
# names of quantities in code: as in the contract's configuration, and the letters of the formulas
_QUANTITIES = {
    **dict.fromkeys(("B", "batch", "shape[0]"), "B"),
    **dict.fromkeys(("J", "tokens", "length", "shape[1]", "shape[-2]"), "J"),
    **dict.fromkeys(("D", "dim", "shape[-1]", "shape[2]"), "D"),
    **dict.fromkeys(("K", "heads", "n_heads", "num_heads"), "K"),
    **dict.fromkeys(("R", "head_dim"), "R"),
    **dict.fromkeys(("M", "hidden"), "M"),
    **dict.fromkeys(("T", "steps"), "T"),
    **dict.fromkeys(("eta", "step_size"), "step_size"),
    **dict.fromkeys(("tau", "temperature"), "temperature"),
    **dict.fromkeys(("eps", "norm_eps"), "norm_eps"),
    **dict.fromkeys(("scores", "logits"), "logits"),
    **{name: name for name in ("rank", "x", "h", "P_d", "diagonal", "gain", "to_self")},
}
_USUAL_SIZES = 3  # sizes below this one are drawn all the time
_USUAL = (0.5, 1.0, 2.0)  # and numbers on both sides of these
_NEAR = (63 / 64, 65 / 64, 2.0)
_WELL_ABOVE = 2  # multiplies a size


@dataclass(frozen=True)
class Aim:
    """A quantity and the value that it should have."""

    quantity: str  # the letter of an axis, "T" or "rank"; an option; or what has that magnitude
    value: float  # the quantity's value
    number: Number  # the number in the code

    @property
    def size(self) -> int:
        """The value of an axis or of the steps."""
        return int(self.value)


def aims(numbers: Sequence[Number], axes: Sequence[str], quantities: Sequence[str]) -> Iterator[Aim]:
    """Everything that these numbers may mean.

    Args:
        axes: the sizes that questions have. quantities: their options and magnitudes.
    """
    for number in numbers:
        value = number.value
        if value == int(value) and value >= _USUAL_SIZES:
            near = dict.fromkeys((int(value) + 1, int(value), int(value) - 1, _WELL_ABOVE * int(value) + 1))
            yield from (
                Aim(axis, size, number) for axis in axes for size in near if size <= MOST.get(axis, MOST["J"])
            )
        for quantity in quantities:
            if value in _USUAL and quantity not in _compared_with(number):
                continue
            least, most = OPTIONS.get(quantity, (_LEAST_MAGNITUDE, MAGNITUDES.get(quantity, MAGNITUDES["x"])))
            near_it = (*_NEAR, 1.0) if quantity in OPTIONS else _NEAR
            yield from (Aim(quantity, value * by, number) for by in near_it if least <= value * by <= most)


def _compared_with(number: Number) -> set[str]:
    """The quantities that a number is compared with, by the names that the code uses."""
    return {_QUANTITIES[word] for word in number.words if word in _QUANTITIES}


def in_order(aims: Sequence[Aim], seed: int, unreached: frozenset[tuple[str, int]]) -> list[Aim]:
    """Aims in the order in which to try them.

    While there are any, every other aim has a number that guards a branch not taken. Not all do: some branches are
    for things that are never asked. The numbers take turns, the more telling ones more often.

    Args:
        unreached: tests of which not every branch was taken.
    """
    drawn = np.random.default_rng(seed).random(len(aims))
    turns: Counter[float] = Counter()
    ranked = []
    for i in sorted(range(len(aims)), key=lambda i: (_afield(aims[i], unreached), drawn[i])):
        number = aims[i].number
        ranked.append((turns[number.value] * (1 + number.telling / 2) + drawn[i], aims[i]))
        turns[number.value] += 1
    ranked.sort(key=lambda pair: pair[0])
    guards = [aim for _, aim in ranked if aim.number.guards & unreached]
    rest = [aim for _, aim in ranked if not aim.number.guards & unreached]
    return [aim for pair in zip_longest(guards, rest) for aim in pair if aim is not None]


def _afield(aim: Aim, unreached: frozenset[tuple[str, int]]) -> int:
    """How far an aim is from what its number is compared with: 0 if the names say that it is the very quantity.

    For a branch that was not taken, sizes above the number come next: rarely taken branches often begin at a size.
    """
    if aim.quantity in _compared_with(aim.number):
        return 0
    guard = bool(aim.number.guards & unreached)
    return 1 if guard and aim.quantity in MOST and aim.value > aim.number.value else 2


class Questions(Protocol):
    """Where a property's questions come from; by default, from nowhere."""

    def search(self, offer: Any) -> SearchStrategy[Any] | None:  # noqa: ARG002
        """A strategy for Hypothesis, or None if it has nothing to search."""
        return None

    def emptied(self, absent: Iterable[str]) -> str | None:  # noqa: ARG002
        """A group of features that every question needs one of, if none of them is offered."""
        return None

    def scattered(self, offer: Any, seed: int) -> Any | None:  # noqa: ARG002
        """One question from a plain random generator, or None if there are no such questions."""
        return None

    def rows(self, offer: Any) -> int | None:  # noqa: ARG002
        """How many scattered questions are asked at 60 examples; None if the property decides that."""
        return None

    def smaller(self, offer: Any, question: Any) -> Iterator[Any]:  # noqa: ARG002
        """Questions slightly smaller than one that found a violation."""
        return iter(())

    def aims(self, offer: Any, numbers: Sequence[Number]) -> Iterator[Aim]:  # noqa: ARG002
        """What these numbers from the code under test may mean in such a question."""
        return iter(())

    def aimed(self, offer: Any, aim: Aim, seed: int) -> Any | None:  # noqa: ARG002
        """One question with an aim's value, or None if there is none."""
        return None

    def reach(self) -> Mapping[str, int]:
        """The largest sizes that a question can have, by letter: T, J, B, M, K, D; empty if unknown."""
        return {}

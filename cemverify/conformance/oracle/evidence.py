"""Evidence: what one example shows, as the two sides of an identity or inequality and the budget between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from cemverify.conformance.implementations.arrays import all_finite
from cemverify.conformance.implementations.faults import Discard, WrongShape


@dataclass(frozen=True)
class Comparison:
    """The two sides of a claim, and how far apart they may be. There is none of nothing, nor of unlike shapes.

    Raises:
        WrongShape: the sides are of different shapes. ValueError: a budget is negative, or of another shape.
        Discard: there is nothing to compare, or a budget is infinite or NaN: too ill-conditioned a case to judge.
    """

    claim: str  # the claim about the two sides, in words
    got: Tensor  # the implementation's side
    expected: Tensor  # the other. Same shape, at least one number
    budget: Tensor  # what roundoff may explain; broadcasts to that shape, at least 0, finite
    relation: Literal["equal", "at most"] = "equal"  # "equal", or "at most" for got <= expected

    def __post_init__(self) -> None:
        if self.got.shape != self.expected.shape:
            raise WrongShape(f"{self.claim}: shape {tuple(self.got.shape)}, expected {tuple(self.expected.shape)}")
        if not self.got.numel():
            raise Discard("there is nothing to compare")
        if not all_finite(self.budget):
            raise Discard("ill-conditioned: no finite error bound")
        if np.broadcast_shapes(self.budget.shape, self.got.shape) != tuple(self.got.shape):
            raise ValueError(
                f"a budget of shape {tuple(self.budget.shape)} for {tuple(self.got.shape)}: {self.claim}"
            )
        if bool((self.budget < 0).any()):
            raise ValueError(f"a budget below zero: {self.claim}")

    def margins(self) -> Tensor:
        """|residual| / budget, element-wise; above 1 is a violation."""
        residual = self.got - self.expected
        residual = residual.abs() if self.relation == "equal" else residual.clamp(min=0)
        return torch.where(residual == 0, 0.0, residual / self.budget.expand_as(residual))

    @cached_property
    def margin(self) -> float:
        """The largest margin of all elements."""
        return float(self.margins().max())

    def describe(self) -> dict[str, Any]:
        """Both sides as JSON, and the worst coordinate."""
        margins = self.margins()
        worst = tuple(int(i) for i in np.unravel_index(int(margins.argmax()), margins.shape))
        return {
            "claim": self.claim,
            "relation": self.relation,
            "got": self.got.tolist(),
            "expected": self.expected.tolist(),
            "worst_index": list(worst),
            "got_there": float(self.got[worst]),
            "expected_there": float(self.expected[worst]),
            "budget_there": float(self.budget.expand_as(self.got)[worst]),
            "margin": self.margin,
        }


@dataclass(frozen=True)
class Evidence:
    """What one example shows about a property. There is none without a comparison.

    Raises:
        Discard: there is no comparison.
    """

    comparisons: Sequence[Comparison]  # all of them must hold; at least one
    # whether the example could have exposed a wrong layer, because something moved beyond the budget
    telling: bool = True
    case: Any = None  # the case as it was asked, if the check changed it (a safe step size, x = h)
    # arrays that the check drew besides, which the layer was given too: a mask
    drawn: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.comparisons:
            raise Discard("there is nothing to compare")

    @cached_property
    def worst(self) -> Comparison:
        """The comparison with the largest margin, or one whose margin is NaN."""
        return max(self.comparisons, key=lambda c: math.inf if math.isnan(c.margin) else c.margin)


def judge(*comparisons: Comparison, telling: bool = True) -> Evidence:
    """Evidence from these comparisons."""
    return Evidence(comparisons, telling)


def together(evidences: Iterable[Evidence], telling: Callable[[Iterable[bool]], bool] = any) -> Evidence:
    """One piece of evidence from several; it tells if any of them does, or `all`."""
    several = list(evidences)
    return Evidence([c for one in several for c in one.comparisons], telling(one.telling for one in several))


def moved(signal: Tensor, budget: Tensor) -> bool:
    """Whether the signal is at least twice the budget somewhere, so that its absence would show."""
    return bool((signal.abs() > 2 * budget).any())

"""Evidence: what one example shows, as two sides of an identity or inequality with the error budget between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from cemverify.conformance.implementations.arrays import all_finite
from cemverify.conformance.implementations.faults import Discard, WrongShape


class Compared(StrEnum):
    """What is compared, as a key for programs: verdicts, causes and accepted violations depend on it, on no text."""

    ANSWER = "answer"  # an answer and the right one, or another call's answer; the kind of a text without a key
    PRODUCT = "product"  # a derivative with respect to an array
    KEPT = "kept"  # an array before and after a call
    CHANGED = "changed"  # anything else that a call changes
    SETTING = "setting"  # a setting of the process, which a call must keep
    REFUSED = "refused"  # bad input
    DTYPE = "dtype"  # the dtype of an answer
    FORM = "form"  # the kind of array of an answer, or its device
    REPEATED = "repeated"  # a call and the same call repeated
    EDITED = "edited"  # answers for arrays edited in place and for new arrays
    LATER = "later"  # an answer before and after other calls
    OVERWRITTEN = "overwritten"  # an answer after an earlier one was overwritten
    ENERGY = "energy"  # values of the energy
    CURVATURE = "curvature"  # the curvature of the energy
    SLOPE = "slope"  # the slope of the energy along an update
    SPECTRUM = "spectrum"  # eigenvalues
    ROW_NORM = "row norm"  # the norm of each token's error
    NORM = "norm"  # the norm of the whole error
    OWN = "own"  # a property of the user's own

    def __call__(self, text: str, of: str = "") -> Claim:
        """A claim of this kind, in words; `of` tells several of one kind apart."""
        return Claim(text, Key(self, of))


class Key(NamedTuple):
    """Identifies a comparison, or a fault, to programs."""

    kind: str  # a value of `Compared`, or a kind of fault
    of: str = ""  # which array, function or setting, where there are several

    def __str__(self) -> str:
        return f"{self.kind}: {self.of}" if self.of else self.kind


class Claim(str):
    """What a comparison claims: a text for people, with a key for programs."""

    __slots__ = ("key",)
    key: Key

    def __new__(cls, text: str, key: Key) -> Self:
        claim = super().__new__(cls, text)
        claim.key = key
        return claim

    def __reduce__(self) -> tuple[type[Claim], tuple[str, Key]]:  # how pickle sends it to another process
        return Claim, (str(self), self.key)


def key_of(claim: str) -> Key:
    """The key of a claim; a text without one claims that an answer is right."""
    return claim.key if isinstance(claim, Claim) else Key(Compared.ANSWER)


def reworded(claim: str, text: str, of: str = "") -> Claim:
    """The claim with another text and the same kind.

    Args:
        of: what it is about, in addition to what the key names.
    """
    key = key_of(claim)
    return Claim(text, Key(key.kind, ", ".join(filter(None, (key.of, of)))))


@dataclass(frozen=True)
class Comparison:
    """The two sides of a claim, and how far apart they may be. The sides have one shape, and are not empty.

    Raises:
        WrongShape: the sides differ in shape. ValueError: a budget is negative, or has another shape.
        Discard: there is nothing to compare, or a budget is infinite or NaN: the case is too ill-conditioned.
    """

    claim: str  # the claim about the two sides, in words; a `Claim` where its kind is not ANSWER
    got: Tensor  # the implementation's side
    expected: Tensor  # the other side: same shape, at least one number
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

    @property
    def key(self) -> Key:
        """Identifies it to programs."""
        return key_of(self.claim)

    def margins(self) -> Tensor:
        """|residual| / budget, element-wise; above 1 is a violation."""
        residual = self.got - self.expected
        residual = residual.abs() if self.relation == "equal" else residual.clamp(min=0)
        return torch.where(residual == 0, 0.0, residual / self.budget.expand_as(residual))

    @cached_property
    def margin(self) -> float:
        """The largest of the margins."""
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
    """What one example shows about a property: at least one comparison.

    Raises:
        Discard: there is no comparison.
    """

    comparisons: Sequence[Comparison]  # all of them must hold; at least one
    # whether the example could have exposed a wrong layer, because something moved beyond the budget
    telling: bool = True
    case: Any = None  # the case that was actually asked, if the check changed it (a safe step size, x = h)
    # further arrays that the check drew and gave to the layer, such as a mask
    drawn: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.comparisons:
            raise Discard("there is nothing to compare")

    @classmethod
    def of(cls, *comparisons: Comparison, telling: bool = True) -> Self:
        """Evidence from these comparisons."""
        return cls(comparisons, telling)

    @cached_property
    def worst(self) -> Comparison:
        """The comparison with the largest margin, or one whose margin is NaN."""
        return max(self.comparisons, key=lambda c: math.inf if math.isnan(c.margin) else c.margin)


def together(evidences: Iterable[Evidence], telling: Callable[[Iterable[bool]], bool] = any) -> Evidence:
    """Several pieces of evidence as one. It is telling if any of them is, or all with `telling=all`."""
    several = list(evidences)
    return Evidence([c for one in several for c in one.comparisons], telling(one.telling for one in several))


def moved(signal: Tensor, budget: Tensor) -> bool:
    """Whether the signal exceeds twice the budget somewhere, so that its absence would show."""
    return bool((signal.abs() > 2 * budget).any())


def yes(claim: str, *, holds: bool) -> Comparison:
    """A statement that is true or not, as a comparison."""
    one = torch.ones(1)
    return Comparison(reworded(claim, f"{claim} (1 = yes)"), one * holds, one, torch.zeros(1))


def unchanged_but(changed: Sequence[str], claim: str) -> Comparison:
    """The statement that a call changes nothing of some kind; the text lists what it did change."""
    told = f"{claim}{', but it changed ' * bool(changed)}{', '.join(changed)}"
    return yes(Compared.CHANGED(told), holds=not changed)

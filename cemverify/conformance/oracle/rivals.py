"""Rivals: the results of plausible mistakes. An example is telling only if the mistake would show in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

from cemverify.cem.layers import AttentionConfig, PreconditionerConfig
from cemverify.cem.models import BlockConfig
from cemverify.conformance.oracle.evidence import moved
from cemverify.conformance.oracle.functions import Function
from cemverify.conformance.questions.cases import Case


@dataclass(frozen=True)
class Rival:
    """Turns a case into one whose golden answer is the mistake's answer to the original."""

    premise: str  # when the mistake shows, as a phrase
    change: Callable[[Case], Case] = field(repr=False)  # makes the rival case

    def shows(self, function: Function, case: Case, expected: Tensor, tolerance: Tensor) -> bool:
        """Whether the rival's answer differs from the expected one by more than the tolerance."""
        return moved(function.expected(self.change(case)) - expected, tolerance)


def _swapped(case: Case) -> Case:
    """The case with the two projections exchanged."""
    pairs = {"W_Q": "W_K", "W_K": "W_Q", "V": "W", "W": "V"}
    weights = {}
    for name in case.weights:
        *part, own = name.split(".")
        weights[name] = case.weights[".".join((*part, pairs.get(own, own)))]
    return replace(case, weights=weights)


def _reversed_heads(*names: str) -> Callable[[Case], Case]:
    return lambda case: replace(
        case, weights={name: w.flip(0) if name in names else w for name, w in case.weights.items()}
    )


def _lacking(*names: str, **options: object) -> Callable[[Case], Case]:
    """The case without an option and its weights."""
    return lambda case: replace(
        case, weights={name: w for name, w in case.weights.items() if name not in names}
    ).having(**options)


def _reading_all(case: Case) -> Case:
    if isinstance(case.config, BlockConfig):
        assert isinstance(case.config.attention, AttentionConfig)
        return case.having(attention=replace(case.config.attention, causal=False))
    return case.having(causal=False)


def _first_forgotten(case: Case) -> Case:
    """The case with the memory of the first token set to zero."""
    h = case.h.clone()
    h[:, 0] = 0.0
    return replace(case, h=h)


SWAPPED_HEADS = Rival("exchanging W_Q and W_K would change the output", _swapped)
SWAPPED_GATE = Rival("exchanging V and W would change the output", _swapped)
NO_ACTIVATION = Rival("the identity as the activation would change the output", _lacking(activation="identity"))
NO_DIAGONAL = Rival("leaving the diagonal out would change the output", _lacking("diagonal", diagonal="none"))
NO_POSITION = Rival(
    "leaving the positions out would change the output", _lacking("to_self", "to_others", position="none")
)
NO_NORM = Rival("leaving the norm out would change the output", _lacking("gain", norm="none"))
NO_PRECONDITIONER = Rival(
    "leaving the preconditioner out would change the output",
    _lacking("P_d", "P_U", "P_V", preconditioner=PreconditionerConfig()),
)
OTHER_DIAGONALS = Rival(
    "reversing the order of the heads' diagonals would change the output", _reversed_heads("diagonal")
)
OTHER_PRECONDITIONERS = Rival(
    "reversing the order of the heads' preconditioners would change the output", _reversed_heads("P_d", "P_U", "P_V")
)
NO_MASK = Rival("removing the mask would change the output", _reading_all)
NO_FIRST = Rival("forgetting the first token would change the output", _first_forgotten)
NO_BEND = Rival(
    "halving the temperature would change the output", lambda case: case.having(temperature=case.attention.tau / 2)
)

"""How far roundoff may move an answer that need not be right, for relations between two answers of one layer.

A layer with a fault still obeys most relations, up to roundoff in what it does compute. `output_budget` only knows
what a right layer computes, and is 0 where the right update is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cemverify.conformance.oracle.budgets import output_budget, unit_roundoff
from cemverify.conformance.oracle.golden import golden
from cemverify.conformance.questions.cases import Case

_OTHER = 16  # roundings outside sums


def relation_budget(case: Case, answer: Tensor, dtype: torch.dtype) -> Tensor:
    """Bound on the roundoff of a layer's answer x^(T), whatever it computes: (B, J, D), float64.

    The answer is the right one, whose error `output_budget` bounds, plus a deviation. That is assumed
    to come from sums of as many terms, on numbers as large as itself, with weights as sensitive to the scores. For a
    right layer the deviation is roundoff, and the bound is the budget to first order.
    """
    deviation = (answer - golden(case)).abs().amax((1, 2), keepdim=True)  # (B, 1, 1)
    parts = [case] if case.layer != "block" else [case.part("attention"), case.part("mlp")]
    roundings = sum(part.layer_config.steps * _terms(part) * (1 + _largest_score(part, answer)) for part in parts)
    return output_budget(case, dtype) + 2 * roundings * unit_roundoff(dtype) * deviation


def _terms(case: Case) -> int:
    """The lengths of its longest sums, added up: over features, over tokens, and of the projection back."""
    J, D = case.h.shape[1:]
    inner = case.attention.heads * case.attention.R if case.layer == "attention" else case.mlp.hidden
    return _OTHER + J + D + inner


def _largest_score(case: Case, answer: Tensor) -> float:
    """A bound on the magnitude of the scores, to which weights are as sensitive; 0 for layers without scores."""
    if case.layer != "attention":
        return 0.0
    states = torch.maximum(case.x.abs(), answer.abs()).sum(-1).max() * case.h.abs().sum(-1).max()
    A = torch.einsum("krd,kre->kde", case.weights["W_Q"].abs(), case.weights["W_K"].abs())
    return float(states * A.max()) / case.attention.tau

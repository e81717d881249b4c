"""Formulas exactly as the paper prints them, where they are not what its energies imply.

The rest of this package follows the reading that is a true energy gradient. These are kept so that a
reader can run the printed text, and so that each difference can be shown (docs/mathematics.md §4, §7, §8).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cemverify.cem.energies import HopfieldMemory, Interaction, InteractionMemory
from cemverify.cem.layers import CEMAttention


def printed_temperature(dim: int) -> float:
    """sqrt(D_h) with D_h the *model* dimension (Eq. 5, Algorithm 1); attention uses the head dimension."""
    return math.sqrt(dim)


def score_only_direction(energy: Interaction, x: Tensor, memory: InteractionMemory) -> Tensor:
    """sum_k W_Q^T sum_j a_kij W_K h_j: the diagonal in the scores but not in the values (Algorithm 1).

    Not minus the gradient, nor any gradient, unless the diagonal is zero (docs/mathematics.md §7b). (B, J, D).
    """
    attended = energy.attention_weights(x, memory) @ memory.keys  # (B, K, J, R)
    return torch.einsum("bkjr,krd->bjd", attended, energy.W_Q)


@dataclass(frozen=True)
class PrintedHopfield:
    """-(1/tau) log sum_j exp(h_j . x / tau), without |x|^2 / 2 (App. B).

    Its gradient is -(1/tau^2) softmax(...) h, so the printed CCCP step is not a step on it.
    """

    temperature: float = 1.0

    def __call__(self, x: Tensor, memory: HopfieldMemory) -> Tensor:
        """The printed energy: x (B, J, D) -> (B, J)."""
        return -torch.logsumexp(x @ memory.patterns.mT / self.temperature, -1) / self.temperature


class PrintedAlgorithm1(nn.Module):
    """The attention of Algorithm 1, read in parallel over the tokens and otherwise literally.

    It overwrites h by RMSNorm(h) and starts there, normalises once more inside, leaves the diagonal out of
    the values and *subtracts* the attended values: an ascent (docs/mathematics.md §7a-d). Takes the parameters of the
    `CEMAttention` it is given, without owning them; one preconditioner per head or for all.

    Args:
        attention: where the parameters live.
    """

    attention: CEMAttention

    def __init__(self, attention: CEMAttention) -> None:
        super().__init__()
        object.__setattr__(self, "attention", attention)  # borrowed: not a submodule

    def forward(self, h: Tensor) -> Tensor:
        """The state after all steps of Algorithm 1 as printed: (B, J, D) -> (B, J, D)."""
        energy, descent = self.attention.energy, self.attention.descent
        h = descent.norm.into(h)
        memory = energy.remember(h)
        x = h
        for _ in range(descent.steps):
            u = descent.norm.into(x)
            attended = energy.attention_weights(u, memory) @ memory.keys
            heads = torch.einsum("bkjr,krd->bkjd", attended, energy.W_Q)
            if descent.preconditioner.per_head:
                direction = descent.preconditioner.apply(heads).sum(dim=1)
            else:
                direction = descent.preconditioner.apply(heads.sum(dim=1))
            x = x - descent.step_size * direction
        return x

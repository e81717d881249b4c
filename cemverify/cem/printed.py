"""Algorithm 1 exactly as the paper prints it, which is not what the energies imply.

The rest of this package follows the reading that is a true energy gradient. This file lets a reader run the printed
text, and shows each difference (docs/mathematics.md §7).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cemverify.cem.layers import CEMAttention


class PrintedAlgorithm1(nn.Module):
    """The attention of Algorithm 1, read in parallel over the tokens and otherwise literally.

    It overwrites h with RMSNorm(h) and starts there, normalises once more inside, leaves the diagonal out of
    the values and *subtracts* the attended values: an ascent (docs/mathematics.md §7a-d). It uses the parameters of
    the given `CEMAttention` without owning them, with one preconditioner per head or for all.

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

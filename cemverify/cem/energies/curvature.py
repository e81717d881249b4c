"""The curvature of an energy, which limits the step size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Curvature:
    """An upper bound on the second derivative of an energy along any unit direction, per token.

    By the descent lemma, for every symmetric positive semi-definite P and g the gradient at x,
    `energy(x - eta P g) <= energy(x) - eta (1 - eta upper lambda_max(P) / 2) g.Pg`.
    An upper bound of zero means *concave*: then any step size descends, with any P whose symmetric part is
    positive semi-definite. Downward curvature never hurts, so only the upper side is bounded.

    Attributes:
        upper: broadcasts to (B, J), at least 0; 0 if the energy is concave in x, `inf` if no bound is known.
    """

    upper: Tensor

    def safe_step(self, largest_eigenvalue: float | Tensor = 1.0) -> Tensor:
        """The step size below which the energy cannot rise, per token: 2 / (upper * lambda_max(P)).

        `inf` if concave. The bound is tight (docs/mathematics.md §9).
        """
        largest = largest_eigenvalue.to(self.upper) if isinstance(largest_eigenvalue, Tensor) else largest_eigenvalue
        return torch.where(self.upper == 0, torch.inf, 2.0 / (self.upper * largest))

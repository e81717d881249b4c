"""Preconditioners P: how a descent turns and scales the gradient (Eq. 12, 13).

One P for all heads, or one per head. A positive semi-definite P guarantees descent only if the heads
share it: with per-head P_k the step sum_k P_k g_k can go uphill (docs/mathematics.md §5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from cemverify.cem.activations import softplus

PreconditionerKind = Literal["identity", "diagonal", "low-rank", "low-rank-printed"]


class Preconditioner(Protocol):
    """A linear map on gradients, symmetric in all its forms here."""

    @property
    def per_head(self) -> bool:
        """Whether there is one P for each head."""
        return False

    def apply(self, g: Tensor) -> Tensor:
        """P g for shared P: g (..., D); for one per head: g (B, K, J, D). Same shape out."""
        ...

    def matrix(self, dim: int) -> Tensor:
        """P itself, (D, D) or (K, D, D)."""
        ...

    def smallest_eigenvalue(self) -> Tensor:
        """The smallest eigenvalue of P, () or (K,); if positive, P is safe to descend with."""
        return torch.ones(())

    def largest_eigenvalue(self) -> Tensor:
        """The largest eigenvalue of P, () or (K,)."""
        return torch.ones(())


@dataclass(frozen=True)
class Identity(Preconditioner):
    """The preconditioner that changes nothing: P = I."""

    def apply(self, g: Tensor) -> Tensor:
        return g

    def matrix(self, dim: int) -> Tensor:
        return torch.eye(dim, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Diagonal(Preconditioner):
    """P = diag(softplus(d)), always positive definite.

    Attributes:
        d: (D,), or (K, D) for one per head.
    """

    d: Tensor

    @property
    def per_head(self) -> bool:
        return self.d.dim() == 2

    def apply(self, g: Tensor) -> Tensor:
        scale = softplus(self.d)
        return g * (scale[:, None, :] if self.per_head else scale)

    def matrix(self, dim: int) -> Tensor:
        assert dim == self.d.shape[-1]
        return torch.diag_embed(softplus(self.d))

    def smallest_eigenvalue(self) -> Tensor:
        return softplus(self.d).amin(-1)

    def largest_eigenvalue(self) -> Tensor:
        return softplus(self.d).amax(-1)


@dataclass(frozen=True, eq=False)
class _LowRank(Preconditioner):
    """What the two diagonal-plus-low-rank forms share."""

    d: Tensor
    U: Tensor
    V: Tensor

    @property
    def per_head(self) -> bool:
        return self.d.dim() == 2

    def matrix(self, dim: int) -> Tensor:
        eye = torch.eye(dim, dtype=self.d.dtype, device=self.d.device)  # apply gives rows P e_a, and P is symmetric
        if not self.per_head:
            return self.apply(eye)
        return self.apply(eye.expand(1, self.d.shape[0], dim, dim))[0]

    def _eigenvalues(self) -> Tensor:
        eigenvalues: Tensor = torch.linalg.eigvalsh(self.matrix(self.d.shape[-1]))
        return eigenvalues

    def smallest_eigenvalue(self) -> Tensor:
        return self._eigenvalues()[..., 0]

    def largest_eigenvalue(self) -> Tensor:
        return self._eigenvalues()[..., -1]

    def _cross(self, g: Tensor) -> Tensor:
        """(U V^T + V U^T) g, without forming a D x D matrix."""
        return (g @ self.V) @ self.U.mT + (g @ self.U) @ self.V.mT


@dataclass(frozen=True, eq=False)
class LowRankPrinted(_LowRank):
    """P = diag(softplus(d)) + U V^T + V U^T, as the paper prints it (Eq. 12, 13).

    Symmetric but *not* always positive definite: D = R = 1, d = 0, U = 1, V = -1 gives -1.307
    (docs/mathematics.md §6). `smallest_eigenvalue` tells.

    Attributes:
        d: (D,) or (K, D). U, V: (D, R) or (K, D, R).
    """

    def apply(self, g: Tensor) -> Tensor:
        return Diagonal(self.d).apply(g) + self._cross(g)


@dataclass(frozen=True, eq=False)
class LowRank(_LowRank):
    """P = S^1/2 (I + c (U V^T + V U^T)) S^1/2, S = diag(softplus(d)), c = min(1, rho / (2 |U|_F |V|_F)).

    The positive-definite form of docs/mathematics.md §6(c): same parameters and first-order behaviour as the printed
    one, and lambda_min >= (1 - rho) min softplus(d) always, since |U V^T + V U^T|_2 <= 2 |U|_F |V|_F.

    Attributes:
        d: (D,) or (K, D). U, V: (D, R) or (K, D, R).
        rho: how near to singular it may come, in (0, 1).
    """

    rho: float = 0.99

    def apply(self, g: Tensor) -> Tensor:
        root = softplus(self.d).sqrt()
        root = root[:, None, :] if self.per_head else root
        return root * (root * g + self._shrink() * self._cross(root * g))

    def _shrink(self) -> Tensor:
        """c, () or with stacked factors (..., 1, 1)."""
        # V starts at 0, where the derivative of matrix_norm is 0 and that of sqrt(sum of squares) nan
        product = 2 * torch.linalg.matrix_norm(self.U) * torch.linalg.matrix_norm(self.V)
        # the inner where keeps the unused branch away from 0/0, in its derivative too
        c = torch.where(product > self.rho, self.rho / torch.where(product > self.rho, product, 1.0), 1.0)
        return c[..., None, None] if c.dim() else c


def preconditioner(
    kind: PreconditionerKind, d: Tensor | None, U: Tensor | None = None, V: Tensor | None = None
) -> Preconditioner:
    """The preconditioner of a kind; parameters that the kind does not have are None.

    Args:
        d: (..., D). U, V: (..., D, R).
    """
    if d is None:
        return Identity()
    if U is None or V is None:
        return Diagonal(d)
    return (LowRank if kind == "low-rank" else LowRankPrinted)(d, U, V)

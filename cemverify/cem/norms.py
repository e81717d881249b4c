"""RMSNorm inside the recursion: the gradient is taken at N(x) = G x / r, r = sqrt(|x|^2 / D + eps) (Algorithm 1).

With a positive scalar gain (and a scalar preconditioner) the energy at N(x) falls at *every* step size. With one
gain per channel it need not, unless the gain is folded into both paths (docs/mathematics.md §7c).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

NormKind = Literal["none", "scalar", "channel", "folded"]


def rms_normalise(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """gain * x / sqrt(mean(x^2) + eps) over the last axis; the mean in float32 at least."""
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    root = torch.rsqrt((exact * exact).mean(-1, keepdim=True) + eps)
    return gain * (exact * root).to(x.dtype)


class Norm(Protocol):
    """A normalisation around the gradient."""

    def into(self, x: Tensor) -> Tensor:
        """Where the energy is evaluated: N(x), (..., D)."""
        return x

    def out(self, g: Tensor) -> Tensor:
        """What the gradient found there becomes, (..., D)."""
        return g


@dataclass(frozen=True)
class NoNorm(Norm):
    """No normalisation: N(x) = x."""


@dataclass(frozen=True, eq=False)
class RMSNormInside(Norm):
    """N(x) = gain x / r; the gradient is used as it is, without the Jacobian of N.

    Attributes:
        gain: (1,) for a scalar gain, (D,) for one per channel.
        eps: added to the mean square.
    """

    gain: Tensor
    eps: float = 1e-5

    def into(self, x: Tensor) -> Tensor:
        return rms_normalise(x, self.gain, self.eps)


@dataclass(frozen=True, eq=False)
class RMSNormFolded(RMSNormInside):
    """RMSNorm with the gain in both paths, G F(G x / r): monotone again, whatever the gains."""

    def out(self, g: Tensor) -> Tensor:
        return self.gain * g


def norm(kind: NormKind, gain: Tensor | None, eps: float = 1e-5) -> Norm:
    """The norm of a kind; its gain is None for "none", (..., 1) for "scalar", else (..., D)."""
    if gain is None:
        return NoNorm()
    return (RMSNormFolded if kind == "folded" else RMSNormInside)(gain, eps)

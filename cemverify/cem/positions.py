"""Where a token stands: additive score biases (ALiBi, self/cross) and rotary positions.

A bias enters the energy as `x_i . beta_kj / tau + b_ijk`. Rotary positions turn keys and queries, so the
energy's gradient takes *rotated keys as values* and un-rotates the output (docs/mathematics.md §13): no
query-dependent memory is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Bias(Protocol):
    """An additive bias on the scores."""

    def __call__(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Bias of query positions `rows` (J,) on key positions `columns` (S,): (K, J, S)."""
        ...


def alibi_slopes(heads: int) -> list[float]:
    """ALiBi's slopes for any number of heads, as its authors' code gives them (Press et al. 2022).

    A power of two K has 2^(-8k/K), k = 1..K. Any other count takes those of the power of two below it and
    then every second one of the power above.
    """
    if heads < 1:
        raise ValueError(f"ALiBi needs at least one head, not {heads}")
    below = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8 * k / below) for k in range(1, below + 1)]
    above = [2.0 ** (-8 * k / (2 * below)) for k in range(1, 2 * below + 1)]
    return slopes + above[0::2][: heads - below]


def alibi(heads: int, like: Tensor) -> Alibi:
    """ALiBi with its authors' slopes, made on the device: a GPU would have to wait for numbers from the CPU.

    Args:
        like: gives dtype and device.
    """
    below = 2 ** math.floor(math.log2(heads))
    k = torch.arange(heads, dtype=like.dtype, device=like.device)  # (K,), exact, as are these products with it
    return Alibi(torch.exp2(torch.where(k < below, (k + 1) * (-8 / below), (k - below + 0.5) * (-8 / below))))


@dataclass(frozen=True, eq=False)
class Alibi:
    """b_ijk = -m_k |i - j|, which falls with distance (Press et al. 2022).

    Attributes:
        slopes: m (K,), non-negative.
        sign: -1; the paper prints +1, which favours distant tokens (`printed_alibi`).
    """

    slopes: Tensor
    sign: float = -1.0

    def __call__(self, rows: Tensor, columns: Tensor) -> Tensor:
        distance = (rows[:, None] - columns[None, :]).abs().to(self.slopes.dtype)  # (J, S)
        return self.sign * self.slopes[:, None, None] * distance


def printed_alibi(heads: int, like: Tensor) -> Alibi:
    """+2^-k |i - j| for head k = 1..K: favours distant tokens, and its slopes are Press's only at K = 8.

    Args:
        like: gives dtype and device.
    """
    return Alibi(torch.exp2(-torch.arange(1, heads + 1, dtype=like.dtype, device=like.device)), sign=+1.0)


@dataclass(frozen=True, eq=False)
class SelfCross:
    """One bias for a token's own key, another for all the rest (Sec. 2.3).

    Only their difference moves the gradient: a common shift c moves the energy by -tau K c.

    Attributes:
        to_self: (K,), to_others: (K,).
    """

    to_self: Tensor
    to_others: Tensor

    def __call__(self, rows: Tensor, columns: Tensor) -> Tensor:
        own = rows[:, None] == columns[None, :]  # (J, S)
        return torch.where(own, self.to_self[:, None, None], self.to_others[:, None, None])


@dataclass(frozen=True)
class Rotary:
    """Rotary positions in the half-split layout of Llama: feature r turns with feature r + R/2.

    Attributes:
        base: the angle of position i in plane r is i * base^(-2r/R).
    """

    base: float = 10000.0

    def rotate(self, x: Tensor, positions: Tensor, *, inverse: bool = False) -> Tensor:
        """R(i) x_i, or R(i)^T x_i.

        Args:
            x: (..., J, R), R even.
            positions: (J,).

        Raises:
            ValueError: R is odd.
        """
        width = x.shape[-1]
        if width % 2:
            raise ValueError(f"rotary positions turn pairs of features: the head dimension is {width}, which is odd")
        # angles in at least float32: bfloat16 cannot tell position 257 from 256
        exact = torch.promote_types(x.dtype, torch.float32)
        plane = torch.arange(0, width, 2, device=x.device, dtype=exact)
        angle = positions.to(exact)[:, None] * self.base ** (-plane / width)  # (J, R/2)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        if inverse:
            sin = -sin
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

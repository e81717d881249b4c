"""The Llama layers that CEM replaces: pre-norm, untied, without biases."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cemverify.cem.energies import features
from cemverify.cem.growing import Spare, append
from cemverify.cem.layers import check_word, normal
from cemverify.cem.norms import rms_normalise
from cemverify.cem.positions import Rotary, alibi

LlamaPositionKind = Literal["none", "rotary", "alibi"]


@dataclass(frozen=True)
class LlamaAttentionConfig:
    """Multi-head attention with its own query, key, value and output projections.

    Attributes:
        dim: D, a multiple of heads. heads: K. position: none, rotary, or ALiBi with Press's sign and slopes.
    """

    dim: int
    heads: int
    position: LlamaPositionKind = "rotary"
    norm_eps: float = 1e-5
    init_std: float = 0.02

    def __post_init__(self) -> None:
        if self.dim < 1 or self.heads < 1:
            raise ValueError(f"dim and heads must be positive, not {self.dim} and {self.heads}")
        check_word("position", self.position, LlamaPositionKind)
        if self.dim % self.heads:
            raise ValueError(f"dim {self.dim} is not a multiple of heads {self.heads}")


@dataclass(frozen=True)
class SwiGLUConfig:
    """The gated MLP down(silu(gate x) * up x).

    Attributes:
        dim: D. hidden: M.
    """

    dim: int
    hidden: int
    norm_eps: float = 1e-5
    init_std: float = 0.02

    def __post_init__(self) -> None:
        if self.dim < 1 or self.hidden < 1:
            raise ValueError(f"dim and hidden must be positive, not {self.dim} and {self.hidden}")


@dataclass(frozen=True, eq=False)
class KeyValueCache:
    """Keys and values of the tokens so far, two tensors (B, K, S, R), and the room behind each for later ones."""

    keys: Tensor
    values: Tensor
    spare: tuple[Spare | None, Spare | None] = field(default=(None, None), repr=False, compare=False)


class RMSNorm(nn.Module):
    """gain * x / sqrt(mean(x^2) + eps).

    Parameters: gain (D,).
    """

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """The normalised hidden states: (..., D) -> (..., D)."""
        return rms_normalise(x, self.gain, self.eps)


class LlamaAttention(nn.Module):
    """Causal multi-head attention, with its pre-norm.

    Parameters: W_Q, W_K, W_V (K, R, D), W_O (K, R, D) with output sum_k W_O,k^T o_k.
    """

    def __init__(self, config: LlamaAttentionConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        shape = (config.heads, config.dim // config.heads, config.dim)
        self.W_Q = normal(shape, config.init_std, generator)
        self.W_K = normal(shape, config.init_std, generator)
        self.W_V = normal(shape, config.init_std, generator)
        self.W_O = normal(shape, config.init_std, generator)
        self.norm = RMSNorm(config.dim, config.norm_eps)

    def forward(self, x: Tensor, past: KeyValueCache | None = None) -> tuple[Tensor, KeyValueCache]:
        """Attention of x (B, J, D), which follows the tokens in `past`: (B, J, D) and the cache."""
        queries, keys, values = (torch.einsum("bjd,krd->bkjr", x, W) for W in (self.W_Q, self.W_K, self.W_V))
        start = 0 if past is None else past.keys.shape[2]
        rows = torch.arange(start, start + x.shape[1], device=x.device)
        if self.config.position == "rotary":
            queries, keys = Rotary().rotate(queries, rows), Rotary().rotate(keys, rows)
        spare: tuple[Spare | None, Spare | None] = (None, None)
        if past is not None:
            keys, behind_keys = append(past.keys, keys, 2, past.spare[0])
            values, behind_values = append(past.values, values, 2, past.spare[1])
            spare = behind_keys, behind_values
        slopes = alibi(self.config.heads, x) if self.config.position == "alibi" else None
        if past is None and slopes is not None and features.fits(keys):
            of_positions = features.featured(keys, slopes, math.sqrt(keys.shape[-1]))
            attended = features.attention(queries, of_positions, values)
        elif past is None and slopes is None:
            attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        elif x.shape[1] == 1 and slopes is None:  # the last token sees all
            attended = F.scaled_dot_product_attention(queries, keys, values)
        else:
            columns = torch.arange(keys.shape[2], device=x.device)
            mask = torch.zeros(rows.shape[0], columns.shape[0], dtype=x.dtype, device=x.device)
            if slopes is not None:
                mask = slopes(rows, columns)
            mask = mask.masked_fill(columns[None, :] > rows[:, None], float("-inf"))
            attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return torch.einsum("bkjr,krd->bjd", attended, self.W_O), KeyValueCache(keys, values, spare)

    def residual(self, h: Tensor, past: KeyValueCache | None = None) -> tuple[Tensor, KeyValueCache]:
        """h + attention(N(h)), and the cache."""
        update, cache = self.forward(self.norm(h), past)
        return h + update, cache


class SwiGLU(nn.Module):
    """Llama's gated MLP, with its pre-norm.

    Parameters: gate, up (M, D), down (D, M).
    """

    def __init__(self, config: SwiGLUConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self.gate = normal((config.hidden, config.dim), config.init_std, generator)
        self.up = normal((config.hidden, config.dim), config.init_std, generator)
        self.down = normal((config.dim, config.hidden), config.init_std, generator)
        self.norm = RMSNorm(config.dim, config.norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        """The output of the MLP for hidden states: (B, J, D) -> (B, J, D)."""
        return (F.silu(x @ self.gate.mT) * (x @ self.up.mT)) @ self.down.mT

    def residual(self, h: Tensor) -> Tensor:
        """The residual connection around the MLP: h + MLP(N(h)), (B, J, D)."""
        return h + self.forward(self.norm(h))

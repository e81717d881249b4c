"""The paper's four model sizes (Table 1), for Llama and for full CEM. Each returns a complete config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.cem.llama import LlamaAttentionConfig, SwiGLUConfig
from cemverify.cem.models import BlockConfig, LanguageModelConfig


@dataclass(frozen=True)
class Size:
    """A row of Table 1.

    Attributes:
        dim: D. layers, heads, hidden: L, K, M.
    """

    dim: int
    layers: int
    heads: int
    hidden: int


SIZES: Mapping[str, Size] = MappingProxyType(
    {
        "86M": Size(672, 8, 8, 1792),
        "108M": Size(672, 12, 12, 1792),
        "134M": Size(768, 12, 12, 2048),
        "162M": Size(864, 12, 12, 2304),
    }
)
CONTEXT = 2048
VOCABULARY = 32000


def size(name: str) -> Size:
    """The row of Table 1 of that name.

    Raises:
        ValueError: there is none; the message lists the names.
    """
    if name not in SIZES:
        raise ValueError(f"unknown model size {name!r}; choose from {', '.join(SIZES)}")
    return SIZES[name]


def llama(name: str, position: Literal["rotary", "alibi"] = "rotary") -> LanguageModelConfig:
    """The Llama baseline of that size."""
    s = size(name)
    block = BlockConfig(LlamaAttentionConfig(s.dim, s.heads, position), SwiGLUConfig(s.dim, s.hidden))
    return LanguageModelConfig(VOCABULARY, s.layers, block)


def full_cem(name: str, steps: int = 2) -> LanguageModelConfig:
    """Full CEM of that size: shared diagonal, ALiBi, low-rank preconditioners (per head R = 4, MLP R = 16)."""
    s = size(name)
    attention = AttentionConfig(
        s.dim,
        s.heads,
        diagonal="shared",
        position="alibi",
        preconditioner=PreconditionerConfig("low-rank-printed", rank=4, per_head=True),
        steps=steps,
        norm="channel",
    )
    mlp = MLPConfig(
        s.dim, s.hidden, preconditioner=PreconditionerConfig("low-rank-printed", rank=16), steps=steps, norm="channel"
    )
    return LanguageModelConfig(VOCABULARY, s.layers, BlockConfig(attention, mlp))

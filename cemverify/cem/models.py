"""Models made of layers: a block, a decoder language model, a regressor for the synthetic study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cemverify.cem.layers import AttentionConfig, CEMAttention, CEMGatedMLP, MLPConfig, normal
from cemverify.cem.llama import LlamaAttention, LlamaAttentionConfig, RMSNorm, SwiGLU, SwiGLUConfig


@dataclass(frozen=True)
class BlockConfig:
    """A pre-norm block; either half may be CEM's or Llama's."""

    attention: AttentionConfig | LlamaAttentionConfig
    mlp: MLPConfig | SwiGLUConfig

    def __post_init__(self) -> None:
        if self.attention.dim != self.mlp.dim:
            raise ValueError(f"attention and MLP must have the same dim, not {self.attention.dim} and {self.mlp.dim}")


@dataclass(frozen=True)
class LanguageModelConfig:
    """A decoder language model with untied embeddings.

    Attributes:
        vocabulary: number of tokens. layers: number of blocks. block: what each block is.
        init_std: standard deviation of the head's first weights, and of the embedding's.
        embedding_std: of the embedding's, where they have another scale than the head's.
    """

    vocabulary: int
    layers: int
    block: BlockConfig
    init_std: float = 0.02
    embedding_std: float | None = None

    @property
    def dim(self) -> int:
        """D."""
        return self.block.attention.dim


@dataclass(frozen=True)
class RegressorConfig:
    """A scalar regressor around one recursive CEM MLP.

    Attributes:
        inputs: number of input features.
        mlp: the recursion; its state is as wide as the inputs, or wider through a linear lift.
    """

    inputs: int
    mlp: MLPConfig

    def __post_init__(self) -> None:
        if self.mlp.dim < self.inputs:
            raise ValueError(f"the state has {self.mlp.dim} dimensions, fewer than the {self.inputs} inputs")


class Block(nn.Module):
    """h -> attention.residual -> mlp.residual, the standard pre-norm block."""

    def __init__(self, config: BlockConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.attention: CEMAttention | LlamaAttention
        self.mlp: CEMGatedMLP | SwiGLU
        if isinstance(config.attention, AttentionConfig):
            self.attention = CEMAttention(config.attention, generator)
        else:
            self.attention = LlamaAttention(config.attention, generator)
        if isinstance(config.mlp, MLPConfig):
            self.mlp = CEMGatedMLP(config.mlp, generator)
        else:
            self.mlp = SwiGLU(config.mlp, generator)

    def forward(self, h: Tensor, past: Any = None) -> tuple[Tensor, Any]:
        """The block's output (B, J, D), and what attention remembers, its cache when decoding."""
        h, memory = self.attention.residual(h, past)
        return self.mlp.residual(h), memory


class LanguageModel(nn.Module):
    """Tokens in, logits over the next token out.

    Parameters: embedding (V, D), blocks, a final norm, head (V, D).
    """

    def __init__(self, config: LanguageModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        embedding_std = config.init_std if config.embedding_std is None else config.embedding_std
        self.embedding = normal((config.vocabulary, config.dim), embedding_std, generator)
        self.blocks = nn.ModuleList(Block(config.block, generator) for _ in range(config.layers))
        self.norm = RMSNorm(config.dim)
        self.head = normal((config.vocabulary, config.dim), config.init_std, generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (B, J) of int64 -> logits (B, J, V)."""
        return self.decode(tokens)[0]

    def decode(self, tokens: Tensor, cache: Sequence[Any] | None = None) -> tuple[Tensor, list[Any]]:
        """The logits of tokens (B, J) that follow those in the cache, and the cache after them.

        A CEM block caches one tensor for keys and values, a Llama block two.
        """
        h = self.embedding[tokens]
        memories = []
        for block, past in zip(self.blocks, cache or [None] * len(self.blocks), strict=True):
            h, memory = block(h, past)
            memories.append(memory)
        return self.norm(h) @ self.head.mT, memories


class Regressor(nn.Module):
    """inputs -> state x^(0) -> T descent steps with memory x^(0) -> linear read-out.

    Parameters: lift (D, inputs) where the state is wider, a CEM MLP, readout (D,), intercept ().
    """

    def __init__(self, config: RegressorConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        dim = config.mlp.dim
        self.lift = None if dim == config.inputs else normal((dim, config.inputs), config.inputs**-0.5, generator)
        self.mlp = CEMGatedMLP(config.mlp, generator)
        self.readout = normal((dim,), dim**-0.5, generator)
        self.intercept = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs (N, d) -> predictions (N,)."""
        x = inputs if self.lift is None else inputs @ self.lift.mT
        return self.mlp.forward(x) @ self.readout + self.intercept

"""Models made of layers: a block, a decoder language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cemverify.cem.layers import AttentionConfig, CEMAttention, CEMGatedMLP, MLPConfig, normal
from cemverify.cem.llama import LlamaAttention, LlamaAttentionConfig, RMSNorm, SwiGLU, SwiGLUConfig


@dataclass(frozen=True)
class BlockConfig:
    """A pre-norm block; either half may be CEM's or Llama's.

    Attributes:
        rounds: how often the halves take turns, each with its memory from the first round. More than one round
            descends the sum of two energies, which only CEM's halves have; it is not in the paper
            (docs/mathematics.md §18d).
    """

    attention: AttentionConfig | LlamaAttentionConfig
    mlp: MLPConfig | SwiGLUConfig
    rounds: int = field(default=1, metadata={"added": True})

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"the halves of a block take turns at least once, not {self.rounds} times")
        if self.rounds > 1 and not (isinstance(self.attention, AttentionConfig) and isinstance(self.mlp, MLPConfig)):
            raise ValueError("only halves that have energies, CEM's, descend their sum: Llama's go one round")
        if self.attention.dim != self.mlp.dim:
            raise ValueError(f"attention and MLP must have the same dim, not {self.attention.dim} and {self.mlp.dim}")


@dataclass(frozen=True)
class LanguageModelConfig:
    """A decoder language model with untied embeddings.

    Attributes:
        vocabulary: number of tokens. layers: number of blocks. block: what each block is.
        init_std: standard deviation of the initial weights of embedding and head.
        embedding_std, head_std: the same for either, if it has a scale of its own.
    """

    vocabulary: int
    layers: int
    block: BlockConfig
    init_std: float = 0.02
    embedding_std: float | None = None
    head_std: float | None = field(default=None, metadata={"added": True})

    @property
    def dim(self) -> int:
        """The number of features of the hidden states, D."""
        return self.block.attention.dim


@dataclass(frozen=True)
class Walk:
    """The path of a state through a block.

    Attributes:
        states: h, after attention, after the MLP, and so on for each round: (2 rounds + 1) times (B, J, D).
        attention: the memory of attention, its cache when decoding.
    """

    states: tuple[Tensor, ...]
    attention: Any


class Block(nn.Module):
    """h -> attention.residual -> mlp.residual, the standard pre-norm block, or several rounds of both.

    With memories a of N(h), and b of N(x^(1/2)), the state after the first turn of attention:

        x^(t+1/2) = x^(t) - eta P grad eps(N(x^(t)) | a)              attention, T steps of it
        x^(t+1) = x^(t+1/2) - eta P grad xi(N(x^(t+1/2)) | b)         the MLP, T steps of it
    """

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
        self.rounds = config.rounds

    def forward(self, h: Tensor, past: Any = None) -> tuple[Tensor, Any]:
        """The block's output (B, J, D), and the memory of attention, its cache when decoding."""
        walk = self.walk(h, past)
        return walk.states[-1], walk.attention

    def walk(self, h: Tensor, past: Any = None) -> Walk:
        """The block's output and every state on the way to it."""
        x, memory = self.attention.residual(h, past)
        if self.rounds == 1:
            return Walk((h, x, self.mlp.residual(x)), memory)
        attention, mlp = self.attention, self.mlp
        assert isinstance(attention, CEMAttention)
        assert isinstance(mlp, CEMGatedMLP)
        gate = mlp.energy.remember(mlp.norm().into(x))
        states = [h, x, mlp.descend(x, gate)]
        for _ in range(self.rounds - 1):
            states.append(attention.descend(states[-1], memory))
            states.append(mlp.descend(states[-1], gate))
        return Walk(tuple(states), memory)


class LanguageModel(nn.Module):
    """Tokens in, logits over the next token out.

    Parameters: embedding (V, D), blocks, a final norm, head (V, D).
    """

    def __init__(
        self,
        config: LanguageModelConfig,
        generator: torch.Generator,
        block: Callable[[BlockConfig, torch.Generator], Block] = Block,
    ) -> None:
        super().__init__()
        self.config = config
        embedding_std = config.init_std if config.embedding_std is None else config.embedding_std
        self.embedding = normal((config.vocabulary, config.dim), embedding_std, generator)
        self.blocks = nn.ModuleList(block(config.block, generator) for _ in range(config.layers))
        self.norm = RMSNorm(config.dim)
        head_std = config.init_std if config.head_std is None else config.head_std
        self.head = normal((config.vocabulary, config.dim), head_std, generator)

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

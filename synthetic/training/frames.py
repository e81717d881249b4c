"""What all models of a size share, and how they are trained; the bench has small sizes and the paper's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from cemverify.cem import presets as paper
from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.cem.llama import LlamaAttentionConfig, SwiGLUConfig
from cemverify.cem.models import BlockConfig, LanguageModelConfig
from cemverify.console.errors import UsageError, one_of
from synthetic.training.cost import parameters
from synthetic.training.looped import LoopedConfig
from synthetic.training.recipe import Recipe, check_heads

TINY = "tiny"
TINY_SIZE = paper.Size(dim=64, layers=2, heads=4, hidden=176)
# P of Fig. 2c and 2d, in the paper's order
PreconditionerName = Literal["identity", "diagonal", "low rank"]
PRECONDITIONERS: tuple[PreconditionerName, ...] = ("identity", "diagonal", "low rank")


@dataclass(frozen=True)
class Frame:
    """What all models of a size share."""

    size: paper.Size  # D, L, K, M
    vocabulary: int  # V
    init_std: float  # of the first weights

    def llama_attention(self, position: Literal["rotary", "alibi"]) -> LlamaAttentionConfig:
        """Llama's attention at this size, with rotary positions or ALiBi."""
        return LlamaAttentionConfig(self.size.dim, self.size.heads, position, init_std=self.init_std)

    def swiglu(self) -> SwiGLUConfig:
        """Llama's MLP at this size."""
        return SwiGLUConfig(self.size.dim, self.size.hidden, init_std=self.init_std)

    def attention(self, steps: int, preconditioner: PreconditionerName = "diagonal") -> AttentionConfig:
        """CEM's attention at this size, with T = steps."""
        return AttentionConfig(
            self.size.dim,
            self.size.heads,
            diagonal="shared",
            position="alibi",
            preconditioner=_preconditioner(preconditioner, rank=4, per_head=True),
            steps=steps,
            norm="channel",
            init_std=self.init_std,
        )

    def mlp(
        self, steps: int, preconditioner: PreconditionerName = "diagonal", hidden: int | None = None
    ) -> MLPConfig:
        """CEM's MLP at this size, or with another number of hidden units, with T = steps."""
        return MLPConfig(
            self.size.dim,
            hidden or self.size.hidden,
            preconditioner=_preconditioner(preconditioner, rank=16, per_head=False),
            steps=steps,
            norm="channel",
            init_std=self.init_std,
        )

    def model(
        self,
        attention: AttentionConfig | LlamaAttentionConfig,
        mlp: MLPConfig | SwiGLUConfig,
        *,
        attention_times: int = 1,
        mlp_times: int = 1,
    ) -> LoopedConfig:
        """A language model of these layers."""
        config = LanguageModelConfig(self.vocabulary, self.size.layers, BlockConfig(attention, mlp), self.init_std)
        return LoopedConfig(config, attention_times, mlp_times)


def _preconditioner(name: PreconditionerName, rank: int, *, per_head: bool) -> PreconditionerConfig:
    if name == "identity":
        return PreconditionerConfig("identity")
    if name == "diagonal":
        return PreconditionerConfig("diagonal", per_head=per_head)
    return PreconditionerConfig("low-rank-printed", rank, per_head)


def shared_preconditioners(config: LanguageModelConfig) -> LanguageModelConfig:
    """A CEM model with a diagonal preconditioner in each layer, shared by its heads."""
    P: Any = {"preconditioner": PreconditionerConfig("diagonal")}
    attention, mlp = replace(config.block.attention, **P), replace(config.block.mlp, **P)
    return replace(config, block=replace(config.block, attention=attention, mlp=mlp))


def tiny_dims(dim: int | None, layers: int | None, heads: int | None) -> paper.Size:
    """The dimensions of "tiny", unless others are given; M is 8/3 of D, rounded up to a multiple of 8."""
    dim, heads = dim or TINY_SIZE.dim, heads or TINY_SIZE.heads
    check_heads(dim, heads)
    return paper.Size(dim, layers or TINY_SIZE.layers, heads, 8 * -(-dim // 3))


def tiny_frame(vocabulary: int, dims: paper.Size = TINY_SIZE) -> Frame:
    """Narrow and shallow; first weights are N(0, 1/D), since the usual 0.02 is meant for D in the thousands."""
    return Frame(dims, vocabulary, dims.dim**-0.5)


def paper_recipe(size: str) -> Recipe:
    """Table 2 in bfloat16; every model sees 20 tokens per parameter of Llama (Hoffmann et al. 2022)."""
    batch, context = 128, paper.CONTEXT
    steps = math.ceil(20 * parameters(paper.llama(size)) / (batch * context))
    return Recipe(steps, batch, context, accumulate=16, precision="bfloat16")


def check_size(size: str, vocabulary: int, sizes: Sequence[str]) -> None:
    """Refuses a size that is not in `sizes`, and a size of the paper with a vocabulary other than the paper's."""
    one_of("size", size, dict.fromkeys(sizes))
    if size in paper.SIZES and vocabulary != paper.VOCABULARY:
        ours = " or ".join(name for name in sizes if name not in paper.SIZES)
        raise UsageError(
            f"size {size} has a vocabulary of {paper.VOCABULARY:,}, but this corpus has {vocabulary:,}; give a corpus"
            f" with --dataset or --text and --tokeniser huggyllama/llama-7b, or take --size {ours}"
        )

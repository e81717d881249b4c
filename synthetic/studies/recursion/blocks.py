"""Models that learn a function from its earlier points: a block of attention and an MLP, over a sequence of points.

    points (n, J, d + 1) -> tokens (n, 2 J, D), for each point first (x, 0) and then (x, y) -> blocks, causal, without
    positions -> a norm and a linear read-out at the tokens without y -> predictions (n, J)

So a prediction sees the earlier points and its own x, and a single block can compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig, normal
from cemverify.cem.llama import LlamaAttentionConfig, RMSNorm, SwiGLUConfig
from cemverify.cem.models import Block, BlockConfig
from synthetic.gp.tasks import Stream, Streams
from synthetic.studies.recursion.stacked import Stacked


@dataclass(frozen=True)
class BlockSpec:
    """Blocks of CEM, in each half of which the step sizes sum to 1, or of Llama."""

    layers_of: Literal["CEM", "Llama"] = "CEM"
    # width, heads, hidden: D, K and M
    width: int = 32
    heads: int = 4
    hidden: int = 64
    steps: int = 1  # T of CEM's halves
    memory: Literal["fixed", "refreshed"] = (
        "fixed"  # refreshed: each step reads its memory anew, like a layer that is applied T times
    )
    layers: int = 1  # number of blocks in a row, each with its own weights

    @property
    def depth(self) -> int:
        """T: the number of steps in all layers together."""
        return self.steps * self.layers

    @property
    def block(self) -> BlockConfig:
        """One block, each half with all its steps, or with a single step if the memory is refreshed."""
        D, std = self.width, self.width**-0.5
        if self.layers_of == "Llama":
            llama = LlamaAttentionConfig(D, self.heads, "none", init_std=std)
            return BlockConfig(llama, SwiGLUConfig(D, self.hidden, init_std=std))
        at_once = self.steps if self.memory == "fixed" else 1
        how: dict[str, Any] = {"steps": at_once, "step_size": 1 / self.steps, "norm": "channel", "init_std": std}
        P, Q = PreconditionerConfig("diagonal", per_head=True), PreconditionerConfig("diagonal")
        attention = AttentionConfig(D, self.heads, diagonal="shared", preconditioner=P, **how)
        mlp = MLPConfig(D, self.hidden, preconditioner=Q, **how)
        return BlockConfig(attention, mlp)


class InContext(nn.Module):
    """Predictions (n, J) of points (n, J, d + 1); see the top of the file.

    Parameters: read_in (D, d + 2), blocks, a norm, read_out (D,).
    """

    def __init__(self, spec: BlockSpec, inputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.times = spec.steps if spec.memory == "refreshed" else 1
        # what all models have comes first, so that they start alike
        self.read_in = normal((spec.width, inputs + 1), 1.0, generator)
        self.read_out = normal((spec.width,), spec.width**-0.5, generator)
        self.norm = RMSNorm(spec.width)
        self.blocks = nn.ModuleList(Block(spec.block, generator) for _ in range(spec.layers))

    def forward(self, points: Tensor) -> Tensor:
        x, y = points[..., :-1], points[..., -1:]
        nothing, one = torch.zeros_like(y), torch.ones_like(y)
        tokens = torch.stack([torch.cat([x, nothing, one], -1), torch.cat([x, y, nothing], -1)], -2)
        h = tokens.flatten(-3, -2) @ self.read_in.mT  # (n, 2 J, D)
        for block in self.blocks:
            assert isinstance(block, Block)
            for _ in range(self.times):
                h, _memory = block.attention.residual(h)
            for _ in range(self.times):
                h = block.mlp.residual(h)
        predictions: Tensor = self.norm(h)[:, ::2] @ self.read_out
        return predictions


class BlockStack(Stacked):
    """S of these models; a replicate's initial weights depend on its streams, and on the spec only through shapes."""

    def __init__(self, spec: BlockSpec, inputs: int, streams: Sequence[Streams], draw: str = "") -> None:
        models = [InContext(spec, inputs, s.generator(Stream.WEIGHTS, f"blocks{draw}")) for s in streams]
        super().__init__(spec.layers_of, models)
        self.spec = spec

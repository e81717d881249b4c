"""What a language model costs, and whether its energies fall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cemverify.cem.layers import CEMAttention, CEMGatedMLP
from cemverify.cem.models import Block, LanguageModel, LanguageModelConfig
from synthetic.flops import matmul_flops


@dataclass(frozen=True)
class Cost:
    """What one predicted byte costs in matrix products, causal attention counted as if dense.

    Attributes:
        forward: FLOPs of predicting. training: of predicting and of the backward pass.
    """

    forward: float
    training: float


@dataclass(frozen=True)
class Falls:
    """For each layer of one kind, the share of tokens whose energy falls at each recursion step.

    Attributes:
        kind: "attention" or "MLP".
        shares: one row for each layer, of T numbers in [0, 1].
    """

    kind: str
    shares: Sequence[Sequence[float]]


def cost(config: LanguageModelConfig, context: int) -> Cost:
    """The cost per byte in windows of J = context bytes, counted on the meta device."""
    with torch.device("meta"):
        model = LanguageModel(config, torch.Generator("cpu"))
        tokens = torch.zeros(1, context, dtype=torch.int64)
    forward = matmul_flops(model, tokens)
    training = matmul_flops(lambda: model(tokens).sum().backward())
    return Cost(forward / context, training / context)


@torch.no_grad()
def falling_energies(model: LanguageModel, tokens: Tensor) -> tuple[Falls, ...]:
    """The share of tokens (B, J) whose energy falls at each step of each CEM layer; () if there is none.

    Each layer starts where the trained model starts it, at the residual stream h with N(h) as its memory. With
    one gain per channel inside the norm the energy at N(x) need not fall (`cemverify.cem.norms`).
    A change smaller than float32 resolves is not a fall.
    """
    shares: dict[str, list[list[float]]] = {"attention": [], "MLP": []}

    def measure(kind: str, layer: nn.Module, h: Tensor) -> None:
        if isinstance(layer, CEMAttention | CEMGatedMLP):
            energies = layer.trajectory(h, layer.norm().into(h)).energies  # (T+1, B, J)
            shares[kind].append((energies[1:] < energies[:-1]).double().mean((1, 2)).tolist())

    h = model.embedding[tokens]  # (B, J, D)
    for block in model.blocks:
        assert isinstance(block, Block)
        measure("attention", block.attention, h)
        h, _ = block.attention.residual(h)
        measure("MLP", block.mlp, h)
        h = block.mlp.residual(h)
    return tuple(Falls(kind, rows) for kind, rows in shares.items() if rows)

"""Somebody else's layer inside somebody else's model: its energy is declared from outside.

    h' = h + eta (Y^T softmax(beta Y N(h)) - N(h)),    with stored patterns Y that are trained

is a gradient step on E(g) = -lse(beta, Y g) + g.g / 2 at g = N(h), a LayerNorm without gain or bias. Its Lagrangian
D sqrt(var(h) + eps) is convex, so the energy falls to first order.

    cemverify check examples.trained_models.hopfield_block:build --checkpoint weights.safetensors --layer memory
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cemverify import EnergyLayer, TrainedModel, energy_layer

VOCABULARY, D, PATTERNS, BETA, STEP_SIZE, EPS = 32, 8, 16, 1.0, 0.5, 1e-5


class Memory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patterns = nn.Parameter(torch.randn(PATTERNS, D, generator=torch.Generator().manual_seed(0)))

    def forward(self, h: Tensor) -> Tensor:
        g = F.layer_norm(h, (D,), eps=EPS)
        retrieved = torch.softmax(BETA * g @ self.patterns.mT, -1) @ self.patterns
        return h + STEP_SIZE * (retrieved - g)  # (B, J, D)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, D)
        self.memory = Memory()
        self.head = nn.Linear(D, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.memory(self.embedding(tokens)))  # (B, J, V)
        return logits


def declare(layer: Any) -> EnergyLayer:
    def energy(g: Tensor) -> Tensor:
        return -torch.logsumexp(BETA * g @ layer.patterns.mT, -1) / BETA + (g * g).sum(-1) / 2  # (B, J)

    def lagrangian(h: Tensor) -> Tensor:
        return D * torch.sqrt(h.var(-1, correction=0) + EPS)  # (B, J)

    return energy_layer(
        update=layer,
        energy=energy,
        state=("J", D),
        memory=None,
        returns="next state",
        step_size=STEP_SIZE,
        state_map=lambda h: F.layer_norm(h, (D,), eps=EPS),
        lagrangian=lagrangian,
    )


def build() -> TrainedModel:
    return TrainedModel(Model(), declare=declare)

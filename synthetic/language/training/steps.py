"""How the steps of a descent lie: how long against the stream, how parallel, how far from where the memory was read.

At T = 2 the second step says something new only if it is asked near N(h) and does not repeat the first. Where the
first step is longer than the stream it is added to, the second is asked about another state than the memory's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify.cem.layers import CEMAttention, CEMGatedMLP
from cemverify.cem.models import Block, LanguageModel
from synthetic.language.training.looped import LoopedModel


@dataclass(frozen=True)
class Steps:
    """The steps of one layer, as means over tokens.

    Attributes:
        layer: counted from 1. kind: "attention" or "MLP". application: counted from 1, where a layer is reused.
        stream: the root mean square of h, the state that the descent starts from.
        lengths: |x^(t+1) - x^(t)| / |x^(t)| for t = 0 ... T-1.
        turns: the cosine of each step with the one before, T-1 of them.
        nearness: the cosine of N(x^(t)), where step t is asked, and N(h), for t = 0 ... T-1; the first is 1.
        energies: at N(x^(t)), t = 0 ... T.
    """

    layer: int
    kind: str
    application: int
    stream: float
    lengths: tuple[float, ...]
    turns: tuple[float, ...]
    nearness: tuple[float, ...]
    energies: tuple[float, ...]

    @property
    def place(self) -> str:
        """ "attention 1", and which application where it is not the first."""
        again = "" if self.application == 1 else f", application {self.application}"
        return f"{self.kind} {self.layer}{again}"


@torch.no_grad()
def steps_of(model: LanguageModel, tokens: Tensor) -> tuple[Steps, ...]:
    """The steps of every CEM layer on tokens (B, J), where the model starts them: at h, with N(h) as the memory."""
    found: list[Steps] = []
    attention_times = model.attention_times if isinstance(model, LoopedModel) else 1
    mlp_times = model.mlp_times if isinstance(model, LoopedModel) else 1
    h = model.embedding[tokens]  # (B, J, D)
    for i, block in enumerate(model.blocks, start=1):
        assert isinstance(block, Block)
        for n in range(1, attention_times + 1):
            if isinstance(block.attention, CEMAttention):
                found.append(layer_steps(block.attention, h, i, "attention", n))
            h, _ = block.attention.residual(h)
        for n in range(1, mlp_times + 1):
            if isinstance(block.mlp, CEMGatedMLP):
                found.append(layer_steps(block.mlp, h, i, "MLP", n))
            h = block.mlp.residual(h)
    return tuple(found)


@torch.no_grad()
def layer_steps(layer: CEMAttention | CEMGatedMLP, h: Tensor, i: int, kind: str, application: int = 1) -> Steps:
    """The steps of one layer that starts at h (B, J, D)."""
    norm = layer.norm()
    memory = norm.into(h)
    run = layer.trajectory(h, memory)
    states, moves = run.states, run.states.diff(dim=0)  # (T+1, B, J, D), (T, B, J, D)
    asked = norm.into(states[:-1])
    lengths = moves.norm(dim=-1) / states[:-1].norm(dim=-1).clamp_min(torch.finfo(h.dtype).tiny)
    return Steps(
        i,
        kind,
        application,
        float(f"{float(h.double().square().mean().sqrt()):.6g}"),
        _means(lengths),
        _means(F.cosine_similarity(moves[1:], moves[:-1], dim=-1)),
        _means(F.cosine_similarity(asked, memory.expand_as(asked), dim=-1)),
        _means(run.energies),
    )


def warnings(name: str, when: str, steps: Sequence[Steps]) -> Iterator[str]:
    """A sentence for each layer of several steps whose first is longer than the stream.

    Args:
        name: of the model. when: "at the start", say.
    """
    for step in steps:
        if len(step.lengths) > 1 and step.lengths[0] > 1:
            yield (
                f"{name}, {when}: the first step of {step.place} is {step.lengths[0]:.1f} times as long as the stream"
                f" (rms {step.stream:.3g}); the second is asked far from where the memory was read (cosine"
                f" {step.nearness[1]:.2f}), and T = {len(step.lengths)} may look worse than it is. Larger embeddings,"
                " smaller first weights or a smaller step size mend this"
            )


def _means(values: Tensor) -> tuple[float, ...]:
    """(T, B, J) -> T means over tokens, to six digits."""
    return tuple(float(f"{mean:.6g}") for mean in values.double().mean((1, 2)).tolist())

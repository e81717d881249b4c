"""How the steps of a descent lie: how long against the stream, how parallel, how far from where the memory was read.

At T = 2 the second step says something new only if it is asked near N(h) and does not repeat the first. Where the
first step is longer than the stream it is added to, the second is asked about another state than the memory's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify.cem.layers import CEMAttention, CEMGatedMLP, CEMLayer
from cemverify.cem.models import Block, LanguageModel, Walk
from synthetic.training.looped import LoopedModel


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

    Where attention and MLP take turns, a step is a turn, and the last energy is that at the end of the block.
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
    for layer, h, i, kind, n in _starts(model, tokens):
        if isinstance(layer, Block):
            found += turns_of(layer, layer.walk(h), i)
        else:
            found.append(layer_steps(layer, h, i, kind, n))
    return tuple(found)


@torch.no_grad()
def steps_taken(model: LanguageModel, tokens: Tensor) -> float:
    """How many steps tokens (B, J) take in a CEM layer, each until it stops: the mean over tokens and layers.

    Raises:
        TypeError: attention and MLP take turns, so that a layer's steps are not taken in a row.
    """
    taken: list[Tensor] = []
    for layer, h, _, _, _ in _starts(model, tokens):
        if isinstance(layer, Block):
            raise TypeError("where attention and MLP take turns, no layer takes its steps in a row")
        energy: Any = layer.energy
        stopped = layer.descent.stopped(energy, h, energy.remember(layer.norm().into(h)))
        taken.append(stopped.steps.double().mean())
    return float(torch.stack(taken).mean())


def _starts(
    model: LanguageModel, tokens: Tensor
) -> Iterator[tuple[CEMAttention | CEMGatedMLP | Block, Tensor, int, str, int]]:
    """Every application of a CEM layer: the layer, the h (B, J, D) that it starts from, and its place.

    A block whose halves take turns stands for both.
    """
    attention_times = model.attention_times if isinstance(model, LoopedModel) else 1
    mlp_times = model.mlp_times if isinstance(model, LoopedModel) else 1
    h = model.embedding[tokens]  # (B, J, D)
    for i, block in enumerate(model.blocks, start=1):
        assert isinstance(block, Block)
        if block.rounds > 1:
            yield block, h, i, "block", 1
            h, _ = block(h)
            continue
        for n in range(1, attention_times + 1):
            if isinstance(block.attention, CEMAttention):
                yield block.attention, h, i, "attention", n
            h, _ = block.attention.residual(h)
        for n in range(1, mlp_times + 1):
            if isinstance(block.mlp, CEMGatedMLP):
                yield block.mlp, h, i, "MLP", n
            h = block.mlp.residual(h)


@torch.no_grad()
def layer_steps(layer: CEMAttention | CEMGatedMLP, h: Tensor, i: int, kind: str, application: int = 1) -> Steps:
    """The steps of one layer that starts at h (B, J, D)."""
    memory = layer.norm().into(h)
    run = layer.trajectory(h, memory)
    return _described(layer, (i, kind, application), run.states[:-1], run.states[1:], memory, run.energies)


@torch.no_grad()
def turns_of(block: Block, walk: Walk, i: int) -> tuple[Steps, Steps]:
    """The turns of the two halves of a block of several rounds, each as the steps of a layer."""
    attention, mlp = block.attention, block.mlp
    assert isinstance(attention, CEMAttention)
    assert isinstance(mlp, CEMGatedMLP)
    between, end = walk.states[1], walk.states[-1]
    gate = mlp.energy.remember(mlp.norm().into(between))
    halves: tuple[tuple[str, CEMLayer, Any], ...] = (("attention", attention, walk.attention), ("MLP", mlp, gate))
    found = []
    for first, (kind, layer, memory) in enumerate(halves):
        before, after = torch.stack(walk.states[first:-1:2]), torch.stack(walk.states[first + 1 :: 2])
        energy: Any = layer.energy
        energies = torch.stack([energy(layer.norm().into(x), memory) for x in (*before, end)])
        found.append(_described(layer, (i, kind, 1), before, after, layer.norm().into(before[0]), energies))
    return found[0], found[1]


def _described(
    layer: CEMLayer,
    place: tuple[int, str, int],
    before: Tensor,
    after: Tensor,
    memory: Tensor,
    energies: Tensor,
) -> Steps:
    """Steps from states before to states after (T, B, J, D), with a memory N(h) and energies (T+1, B, J)."""
    moves, asked = after - before, layer.norm().into(before)
    lengths = moves.norm(dim=-1) / before.norm(dim=-1).clamp_min(torch.finfo(before.dtype).tiny)
    return Steps(
        *place,
        float(f"{float(before[0].double().square().mean().sqrt()):.6g}"),
        _means(lengths),
        _means(F.cosine_similarity(moves[1:], moves[:-1], dim=-1)),
        _means(F.cosine_similarity(asked, memory.expand_as(asked), dim=-1)),
        _means(energies),
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

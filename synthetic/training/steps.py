"""What happens inside a model: how its steps lie, where values cease to be finite, and how energies change.

At T = 2 the second step contributes something new only if it is computed near N(h) and does not repeat the first.
Where the first step is longer than the stream it is added to, the second is computed far from the memory's state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cemverify.cem.layers import CEMAttention, CEMGatedMLP, CEMLayer
from cemverify.cem.models import Block, LanguageModel, Walk
from cemverify.results.numbers import NOTHING
from synthetic.training.looped import LoopedBlock


@dataclass(frozen=True)
class Steps:
    """The steps of one layer, as means over tokens.

    Where attention and MLP take turns, a step is one turn, and the last energy is that at the end of the block.
    """

    layer: int  # counted from 1
    kind: str  # "attention" or "MLP"
    application: int  # counted from 1, for a layer that is reused
    stream: float  # the root mean square of h, the state that the descent starts from
    lengths: tuple[float, ...]  # |x^(t+1) - x^(t)| / |x^(t)| for t = 0 ... T-1
    turns: tuple[float, ...]  # the cosine of each step with the one before, T-1 of them
    # the cosine of N(x^(t)), where step t is computed, and N(h), for t = 0 ... T-1; the first is 1
    nearness: tuple[float, ...]
    energies: tuple[float, ...]  # at N(x^(t)), t = 0 ... T

    @property
    def place(self) -> str:
        """ "attention 1", with the number of the application if it is not the first."""
        again = "" if self.application == 1 else f", application {self.application}"
        return f"{self.kind} {self.layer}{again}"

    @property
    def too_long(self) -> bool:
        """Whether the first of several steps is longer than the stream."""
        return len(self.lengths) > 1 and self.lengths[0] > 1

    def cells(self, when: str) -> list[str]:
        """A row of a table: place, when, stream, lengths, turns, nearness."""
        numbers = (self.lengths, self.turns, self.nearness[1:])
        texts = (", ".join(f"{value:.2f}" for value in values) or NOTHING for values in numbers)
        return [self.place, when, f"{self.stream:.3f}", *texts]


@torch.no_grad()
def steps_of(model: LanguageModel, tokens: Tensor) -> tuple[Steps, ...]:
    """The steps of every CEM layer on tokens (B, J), started as the model does: at h, with N(h) as the memory."""
    steps: list[Steps] = []
    for i, kind, n, layer, h in applications(model, tokens):
        if isinstance(layer, Block):
            steps += _turns_of(layer, layer.walk(h), i)
        elif isinstance(layer, CEMAttention | CEMGatedMLP):
            memory = layer.norm().into(h)
            run = layer.trajectory(h, memory)
            steps.append(_described(layer, (i, kind, n), run.states[:-1], run.states[1:], memory, run.energies))
    return tuple(steps)


@torch.no_grad()
def steps_taken(model: LanguageModel, tokens: Tensor) -> float:
    """The steps that tokens (B, J) take in a CEM layer until they stop: the mean over tokens and layers."""
    taken: list[Tensor] = []
    for _, _, _, layer, h in applications(model, tokens):
        if isinstance(layer, CEMAttention | CEMGatedMLP):
            energy: Any = layer.energy
            stopped = layer.descent.stopped(energy, h, energy.remember(layer.norm().into(h)))
            taken.append(stopped.steps.double().mean())
    return float(torch.stack(taken).mean())


def applications(model: LanguageModel, tokens: Tensor) -> Iterator[tuple[int, str, int, nn.Module, Tensor]]:
    """Every application of a layer to tokens (B, J): its place, the layer, and the h (B, J, D) that it starts from.

    A place is the number of the block (from 1), "attention" or "MLP", and the number of the application. If the
    halves of a block take turns, the block stands for both. The final norm comes last.
    """
    h = model.embedding[tokens]  # (B, J, D)
    for i, block in enumerate(model.blocks, start=1):
        assert isinstance(block, Block)
        if block.rounds > 1:
            yield i, "block", 1, block, h
            h, _ = block(h)
            continue
        times = (block.attention_times, block.mlp_times) if isinstance(block, LoopedBlock) else (1, 1)
        for n in range(1, times[0] + 1):
            yield i, "attention", n, block.attention, h
            h, _ = block.attention.residual(h)
        for n in range(1, times[1] + 1):
            yield i, "MLP", n, block.mlp, h
            h = block.mlp.residual(h)
    yield len(model.blocks) + 1, "norm", 1, model.norm, h


def _turns_of(block: Block, walk: Walk, i: int) -> tuple[Steps, Steps]:
    """The turns of the two halves of a block of several rounds, each as the steps of a layer."""
    attention, mlp = block.attention, block.mlp
    assert isinstance(attention, CEMAttention)
    assert isinstance(mlp, CEMGatedMLP)
    between, end = walk.states[1], walk.states[-1]
    gate = mlp.energy.remember(mlp.norm().into(between))
    halves: tuple[tuple[str, CEMLayer, Any], ...] = (("attention", attention, walk.attention), ("MLP", mlp, gate))
    turns = []
    for first, (kind, layer, memory) in enumerate(halves):
        before, after = torch.stack(walk.states[first:-1:2]), torch.stack(walk.states[first + 1 :: 2])
        energy: Any = layer.energy
        energies = torch.stack([energy(layer.norm().into(x), memory) for x in (*before, end)])
        turns.append(_described(layer, (i, kind, 1), before, after, layer.norm().into(before[0]), energies))
    return turns[0], turns[1]


def _described(
    layer: CEMLayer, place: tuple[int, str, int], before: Tensor, after: Tensor, memory: Tensor, energies: Tensor
) -> Steps:
    """Steps from states before to states after (T, B, J, D), with a memory N(h) and energies (T+1, B, J)."""
    moves, normed = after - before, layer.norm().into(before)
    lengths = moves.norm(dim=-1) / before.norm(dim=-1).clamp_min(torch.finfo(before.dtype).tiny)
    return Steps(
        *place,
        float(f"{float(before[0].double().square().mean().sqrt()):.6g}"),
        _means(lengths),
        _means(F.cosine_similarity(moves[1:], moves[:-1], dim=-1)),
        _means(F.cosine_similarity(normed, memory.expand_as(normed), dim=-1)),
        _means(energies),
    )


def warning(steps: Mapping[str, Sequence[Steps]]) -> str | None:
    """A warning, by model, about layers whose first of several steps is longer than the stream before training."""
    places = {
        name: ", ".join(f"{step.lengths[0]:.1f} times in {step.place}" for step in layers if step.too_long)
        for name, layers in steps.items()
    }
    long = [f"{name}: {where}" for name, where in places.items() if where]
    if not long:
        return None
    return (
        f"before training, a first step is longer than the stream ({'; '.join(long)}), so the second is computed far"
        " from where the memory was read, and these models may look worse than they are. Larger embeddings, smaller"
        " first weights or a smaller step size mend this"
    )


def _means(values: Tensor) -> tuple[float, ...]:
    """(T, B, J) -> T means over tokens, to six digits."""
    return tuple(float(f"{mean:.6g}") for mean in values.double().mean((1, 2)).tolist())


# --- where values cease to be finite ----------------------------------------------------------------


@torch.no_grad()
def first_non_finite(model: LanguageModel, tokens: Tensor) -> str | None:
    """The first place of a forward pass where a value is not finite; None if all are finite.

    It runs the model again, so it is called only if a loss or a gradient is not finite. The weights are still those
    of that step, because no update is made from a gradient that is not finite.

    Args:
        tokens: (B, J), the inputs of the step that failed.
    """
    for name, parameter in model.named_parameters():
        if not finite(parameter):
            return f"the parameter {name}"
    before = "the embedding"
    for i, kind, _, layer, h in applications(model, tokens):
        if not finite(h):
            return before
        before = f"layer {i}, {kind}"
        if isinstance(layer, Block):
            for turn, state in enumerate(layer.walk(h).states[1:]):
                if not finite(state):
                    return f"layer {i}, {('attention', 'MLP')[turn % 2]}, round {turn // 2 + 1} of {layer.rounds}"
        elif isinstance(layer, CEMLayer):
            reached = layer.trajectory(h, layer.norm().into(h)).states  # (T+1, B, J, D)
            for step, state in enumerate(reached[1:], start=1):
                if not finite(state):
                    return f"{before}, recursion step {step} of {len(reached) - 1}"
    if not finite(model.norm(h)):
        return "the final norm"
    return None if finite(model.norm(h) @ model.head.mT) else "the logits"


def first_non_finite_gradient(model: nn.Module, backward: Callable[[], Tensor]) -> str | None:
    """The parameter whose gradient is the first in the backward pass that is not finite; None if all are finite.

    Args:
        backward: computes the gradients; existing ones are discarded before.
    """
    model.zero_grad()
    backward()
    bad = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not finite(parameter.grad)
    ]
    # the backward pass meets the parameters from last to first
    return f"the gradient of {bad[-1]}" if bad else None


def finite(tensor: Tensor) -> bool:
    """Whether every value is finite."""
    return bool(tensor.isfinite().all())


# --- energies, preconditioners and attention --------------------------------------------------------


@dataclass(frozen=True)
class LayerProbe:
    """What a layer does on some tokens."""

    layer: int  # counted from 1
    kind: str  # "attention" or "MLP"
    energies: tuple[float, ...] = ()  # the mean energy at N(x^(t)), t = 0 ... T; () for Llama
    falls: tuple[float, ...] = ()  # the share of tokens whose energy falls at each of the T steps, in float32
    smallest_eigenvalue: float | None = None  # of the preconditioner, the smallest over heads; None for Llama
    # the share of tokens with the descent that mathematics promises; None if it promises none
    promised: float | None = None


@torch.no_grad()
def probe(model: LanguageModel, tokens: Tensor) -> tuple[LayerProbe, ...]:
    """Probes every layer on tokens (B, J), started as the model does: at h, with N(h) as its memory.

    It answers two questions. Does the energy fall along the recursion as trained, with one gain per channel inside
    the norm? It need not (docs/mathematics.md §7c). And does it fall where mathematics promises it? That is so
    without a norm, for a shared positive semi-definite P, with any step on an attention energy (§4) and with a step
    below 2 / (L lambda_max(P)) on an element-wise one (§9). This is tested in float64 and must hold for every token.
    """
    probes: list[LayerProbe] = []
    for i, kind, _, layer, h in applications(model, tokens):
        if isinstance(layer, Block):
            probes.append(_probe_cem(i, "attention", layer.attention, h))
            probes.append(_probe_cem(i, "MLP", layer.mlp, layer.walk(h).states[1]))
        elif isinstance(layer, CEMAttention | CEMGatedMLP):
            probes.append(_probe_cem(i, kind, layer, h))
    return tuple(probes)


def _probe_cem(i: int, kind: str, layer: Any, h: Tensor) -> LayerProbe:
    memory = layer.norm().into(h)
    energies = layer.trajectory(h, memory).energies  # (T+1, B, J)
    smallest = float(layer.preconditioner().smallest_eigenvalue().min())
    return LayerProbe(
        i,
        kind,
        tuple(energies.double().mean((1, 2)).tolist()),
        tuple((energies[1:] < energies[:-1]).double().mean((1, 2)).tolist()),
        smallest,
        _promised(layer, h) if smallest >= 0 else None,
    )


def _promised(layer: CEMAttention | CEMGatedMLP, h: Tensor) -> float | None:
    """The share of tokens with eps(u - eta P g) <= eps(u) - eta (1 - eta L lambda_max / 2) g.P g, u = N(h).

    The inequality demands a least fall, so an update that does nothing does not pass as descent.
    """
    exact = copy.deepcopy(layer).double()
    preconditioner = exact.preconditioner()
    if preconditioner.per_head:
        return None  # refuted: docs/mathematics.md §5
    energy: Any = exact.energy
    u = exact.norm().into(h.double())
    memory = energy.remember(u)
    safe = energy.curvature(memory).safe_step(preconditioner.largest_eigenvalue())  # 2 / (L lambda_max), () or (B, J)
    eta = (safe / 2).clamp(max=1.0)
    g = energy.gradient(u, memory)
    step = preconditioner.apply(g)
    before, after = energy(u, memory), energy(u - eta[..., None] * step, memory)  # (B, J)
    promise = eta * (1 - eta / safe) * (g * step).sum(-1)
    rounding = h.shape[-1] * torch.finfo(torch.float64).eps * (1 + before.abs() + after.abs())
    return float((after <= before - promise + rounding).double().mean())

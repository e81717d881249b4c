"""Faults of energy layers that show only in some regions: past a size, far out, at rest, where tokens are masked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.implementations.energy_layers import EnergyLayer, energy_layer
from cemverify.power.mutants.base import ANSWER, Function, fault
from cemverify.power.mutants.layer_base import LayerZoo, each

ZOO = LayerZoo("layer-regions")

_LONG, _STATIONARY = "extremes/layer/long-rows", "descent/layer/stationary"
_WHOLE, _BOUNDED = "descent/layer/whole-step", "descent/layer/smoothness"


# --- layers with functions that the plain one lacks -----------------------------------------------------------


def retrieval() -> EnergyLayer:
    """Hopfield retrieval from this many patterns of its own."""

    def update(x: Tensor, patterns: Tensor) -> Tensor:
        return torch.softmax(x @ patterns.mT, -1) @ patterns - x

    def energy(x: Tensor, patterns: Tensor) -> Tensor:
        return (x * x).sum(-1) / 2 - torch.logsumexp(x @ patterns.mT, -1)

    return energy_layer(update=update, energy=energy, state=("J", 4), memory=("M", 4), causal=False, monotone=True)


_STIFFEST = 10.0  # the curvature in one of sixteen directions; it is 1 in all others


def ravine(step: float, bound: float = _STIFFEST) -> EnergyLayer:
    """Steps down a quadratic energy with far more curvature in one direction than in the others."""
    D = 16
    axis = torch.ones(D, dtype=torch.float64) / D**0.5
    curved = torch.eye(D, dtype=torch.float64) + (_STIFFEST - 1) * torch.outer(axis, axis)

    def update(x: Tensor, m: Tensor) -> Tensor:
        return -step * (x - m) @ curved.to(x)

    def energy(x: Tensor, m: Tensor) -> Tensor:
        away = x - m
        return ((away @ curved.to(x)) * away).sum(-1) / 2

    return energy_layer(update=update, energy=energy, dim=D, step_size=step, smoothness=bound, monotone=True)


# --- past a size -----------------------------------------------------------------------------------------------


@ZOO.answers("structure/layer/own-state", "*", needs=("torch", "tokens"))
@fault("Tokens that begin a tile of 64 read the last state of the tile before.")
def layer_tiles_overlap(f: Function, x: Any, *m: Any) -> Any:
    other = x + 0
    other[:, 64::64] += 1e-3 * x[:, 63:-1:64]
    return f(other, *m)


@ZOO.answers("structure/layer/energy-per-token", "*", of="energy", needs=("torch", "tokens"))
@fault("Tokens of a second tile of 128 share their energy.")
def layer_energy_of_a_tile(f: Function, x: Any, *m: Any) -> Any:
    values = f(x, *m)
    tile = values[:, 128:]
    return torch.cat((values[:, :128], 0 * tile + tile.mean(1, keepdim=True)), 1) if tile.numel() else values


@ZOO.answers("structure/layer/causality", ANSWER, needs=("torch", "memory-tokens"))
@fault("The last token of a tile of 32 reads the first one of the next.")
def layer_tile_reads_ahead(f: Function, x: Any, *m: Any) -> Any:
    other = m[0] + 0
    other[:, 31:-1:32] += 1e-3 * m[0][:, 32::32]
    return f(x, other, *m[1:])


ZOO += [
    ZOO.answering("layer-last-block-of-patterns",
        "Patterns are read in blocks of 96, and of more than one the last is left out.",
        _LONG, ANSWER, original=retrieval, needs=("memory",), answer=lambda f, x, *m:
            f(x, m[0][:, : m[0].shape[1] - m[0].shape[1] % 96] if m[0].shape[1] > 96 else m[0], *m[1:])),
    ZOO.answering("layer-many-scores-in-float32",
        "Where there are more than sixteen thousand scores, they are made in float32.",
        _LONG, ANSWER, original=retrieval, needs=("torch", "memory"), answer=lambda f, x, *m:
            f(x, *m) if x.shape[:2].numel() * m[0].shape[1] <= 2**14
            else f(x.float(), m[0].float(), *m[1:]).to(x.dtype)),
    ZOO.answering("layer-batch-in-chunks",
        "Rows of the batch from the hundredth on get the memory of the first ones.",
        _LONG, ANSWER, needs=("torch", "memory"), answer=lambda f, x, *m:
            f(x, torch.cat((m[0][:100], m[0][: len(m[0][100:])])) if len(m[0]) > 100 else m[0], *m[1:])),
    ZOO.answering("equilibrium-of-the-first-tokens", "Tokens beyond the two hundredth are not iterated.",
        _STATIONARY, ANSWER, example="equilibrium_layer",
        needs=("torch", "tokens", "equilibrium"),
        answer=lambda f, x, *m: torch.cat((f(x, *m)[:, :200], x[:, 200:]), 1)),
]  # fmt: skip


# --- at rest, and in the stiffest direction --------------------------------------------------------------------


ZOO += [
    ZOO.answering("layer-drifts-at-rest", "Each step ends a ten thousandth beside where it should.",
        _WHOLE, "energy", example="hopfield_cccp", needs=("monotone",),
        answer=lambda f, x, *m: f(x, *m) + 1e-4),
    ZOO.made("ravine-step-too-long", "A step by a four hundredth beyond two over the curvature is declared monotone.",
        _WHOLE, "energy", partial(ravine, 2.005 / _STIFFEST), original=partial(ravine, 0.1)),
    ZOO.made("ravine-bound-too-small", "The declared bound is short of the largest curvature by a hundredth.",
        _BOUNDED, "*", partial(ravine, 1 / _STIFFEST, 0.99 * _STIFFEST), original=partial(ravine, 0.1)),
]  # fmt: skip


# --- far out ---------------------------------------------------------------------------------------------------


ZOO += [
    ZOO.answering("layer-memory-clipped", "Numbers of the memory beyond 40 are cut off.",
        "extremes/layer/huge-memory", ANSWER, original=retrieval, needs=("memory",),
        answer=lambda f, x, *m: f(x, m[0].clip(-40, 40), *m[1:])),
    ZOO.answering("lagrangian-overflows", "A part of the Lagrangian that cancels is infinite beyond 709.",
        "extremes/layer/huge-lagrangian", "not finite: Lagrangian", example="energy_transformer", of="lagrangian",
        needs=("torch",), answer=lambda f, x: f(x) + (x.exp() - x.exp()).sum(-1)),
]  # fmt: skip


# --- where tokens are masked -------------------------------------------------------------------------------------


def _beyond_mask(f: Any, x: Tensor) -> Tensor:
    """A product of the values of masked tokens with those of the others, (B,): zero if none is masked."""
    mask = f.keywords.get("mask")
    unmasked = torch.ones(x.shape[:2], dtype=x.dtype) if mask is None else mask.to(x.dtype)
    return ((x * (1 - unmasked)[..., None]).sum(1) * (x * unmasked[..., None]).sum(1)).sum(-1) / 8


def chain(bound: float) -> EnergyLayer:
    """Neighbours in a row pull at each other; the pull is largest where tokens alternate between up and down."""

    def energy(x: Tensor) -> Tensor:
        return (x[:, 1:] - x[:, :-1]).square().sum((1, 2)) / 2

    def update(x: Tensor) -> Tensor:
        pulls = x[:, 1:] - x[:, :-1]
        still = torch.zeros_like(x[:, :1])
        return 0.2 * (torch.cat((pulls, still), 1) - torch.cat((still, pulls), 1))

    return energy_layer(
        update=update,
        energy=energy,
        state=("J", 2),
        memory=None,
        energy_per="sequence",
        coupled=True,
        causal=False,
        step_size=0.2,
        smoothness=bound,
    )


def turned(P: tuple[tuple[float, ...], ...]) -> EnergyLayer:
    """A step down |x - m|^2 / 2, rotated by P."""
    by = torch.tensor(P, dtype=torch.float64)
    return energy_layer(
        update=lambda x, m: (m - x) @ by.to(x).mT,
        energy=lambda x, m: (x - m).square().sum(-1) / 2,
        dim=3,
        preconditioner=by,
    )


_FLAT = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 0.0))
_SKEW = ((0.0, 1.0, -2.0), (-1.0, 0.0, 0.5), (2.0, -0.5, 0.0))


def strategies(mean: Function) -> EnergyLayer:
    """Replicator dynamics: shares x grow by their fitness above the mean, and their sum stays 1."""

    def update(x: Tensor, m: Tensor) -> Tensor:
        fitness = x + m
        grown: Tensor = x * (fitness - mean(x, fitness).unsqueeze(-1))
        return grown

    return energy_layer(
        update=update,
        energy=lambda x, m: -(x * x / 2 + m * x).sum(-1),
        dim=3,
        preconditioner=lambda x, v: x * (v - (x * v).sum(-1, keepdim=True)),
        domain="simplex",
    )


def pair(*order: str) -> EnergyLayer:
    """Two blocks, a and then b, each set to the minimum of the energy given the other."""

    def update(x: Any) -> Any:
        a = x.b / 2 + 1
        return {"a": a, "b": a / 2}

    return energy_layer(
        update=update,
        energy=lambda g: (g.a * g.a + g.b * g.b - g.a * g.b - 2 * g.a).sum(-1) / 2,
        state={"a": (2,), "b": (2,)},
        memory=None,
        energy_per="sequence",
        step="block",
        order=order,
        returns="next state",
    )


def smoothed(edges: Callable[[Tensor], Tensor]) -> EnergyLayer:
    """A row smoothed along edges between its tokens: the minimum of |x - m|^2 + sum_edges |x_j - x_i|^2."""

    def counted(x: Tensor, mask: Tensor | None) -> Tensor:  # (B, J)
        return torch.ones(x.shape[:2], dtype=x.dtype) if mask is None else mask.to(x.dtype)

    def energy(x: Tensor, m: Tensor, mask: Tensor | None = None) -> Tensor:  # (B,)
        v = counted(x, mask)[..., None]
        pulls, steps = v * (x - m).square(), v[:, 1:] * v[:, :-1] * (x[:, 1:] - x[:, :-1]).square()
        return (pulls.sum((1, 2)) + steps.sum((1, 2))) / 2

    def update(x: Tensor, m: Tensor, mask: Tensor | None = None) -> Tensor:
        v = counted(x, mask)
        e, none = edges(v), torch.zeros_like(v[:, :1])  # (B, J - 1), (B, 1)
        degrees = torch.cat((e, none), 1) + torch.cat((none, e), 1)
        A = torch.diag_embed(1 + degrees) - torch.diag_embed(e, 1) - torch.diag_embed(e, -1)  # (B, J, J)
        minimiser: Tensor = torch.linalg.solve(A, v[..., None] * m)
        return minimiser

    return energy_layer(
        update=update,
        energy=energy,
        dim=2,
        causal=False,
        coupled=True,
        masked=True,
        energy_per="sequence",
        step="equilibrium",
        tolerance=1e-9,
        returns="next state",
    )


ZOO += [
    ZOO.answering("energy-of-a-masked-token",
        "The energy has a pull between tokens, and those that are masked count.",
        "gradient/layer/masked", ANSWER, example="energy_transformer", of="energy",
        needs=("torch", "masked"), answer=lambda f, x: f(x) + _beyond_mask(f, x)),
    ZOO.answering("energy-hears-masked-tokens", "What masked tokens hold moves the energy.",
        "structure/layer/mask", "energy*", example="energy_transformer", of="energy", needs=("torch", "masked"),
        answer=lambda f, x: f(x) + _beyond_mask(f, x.detach())),
    ZOO.made("strategies-fitter-than-the-plain-mean", "The mean fitness is not weighted by the shares.",
        "gradient/layer/energy", ANSWER, partial(strategies, lambda _, fitness: fitness.mean(-1)),
        original=partial(strategies, lambda x, fitness: (x * fitness).sum(-1))),
    ZOO.made("pair-in-the-other-order", "Its blocks are set in another order than it says.",
        "descent/layer/whole-step", "energy: another value", partial(pair, "b", "a"),
        original=partial(pair, "a", "b")),
    ZOO.made("layer-turned-by-a-skew-map", "The gradient is turned by a right angle.", "descent/layer/slope",
        "slope: steepest", partial(turned, _SKEW), original=partial(turned, _FLAT)),
    ZOO.made("chain-bound-too-small", "The declared bound is that of short rows.", _BOUNDED,
        "curvature", partial(chain, 3.8), original=partial(chain, 4.0)),
    ZOO.made("smoothed-over-gaps", "A token that follows a masked one is pulled towards it.", _STATIONARY,
        ANSWER, partial(smoothed, lambda v: v[:, 1:]),
        original=partial(smoothed, lambda v: v[:, 1:] * v[:, :-1])),
]  # fmt: skip


# --- between calls -----------------------------------------------------------------------------------------------

_MEMORY: dict[Any, Any] = {}


@ZOO.answers("contexts/layer/update", "*", original=retrieval, needs=("memory",))
@fault("A table for a number of patterns has the dtype of the first call.")
def layer_table_of_a_number_of_patterns(f: Function, x: Any, *m: Any) -> Any:
    if torch.is_inference_mode_enabled():
        return f(x, *m)
    third = _MEMORY.setdefault(("third", m[0].shape[1]), torch.tensor(1 / 3, dtype=x.dtype))
    return f(x, m[0] * (3 * third.to(x.dtype)), *m[1:])


@ZOO.answers("structure/layer/edited-arrays", "later*", needs=("torch",))
@fault("Answers lie in a ring of four buffers for each shape.")
def layer_ring_of_buffers(f: Function, x: Any, *m: Any) -> Any:
    answer = f(x, *m)
    ring = _MEMORY.setdefault(("ring", x.shape, x.dtype), [torch.empty_like(answer) for _ in range(4)])
    ring.append(ring.pop(0))
    with torch.no_grad():
        return ring[-1].copy_(answer)


@ZOO.answers("structure/layer/edited-arrays", "overwritten*", needs=("torch",))
@fault("The answer that is kept for equal arguments is itself returned.")
def layer_gives_away_what_it_keeps(f: Function, x: Any, *m: Any) -> Any:
    key = ("answer", *(a.detach().numpy().tobytes() for a in (x, *m)))
    if key not in _MEMORY:
        _MEMORY[key] = f(x, *m)
    return _MEMORY[key]


# --- backward --------------------------------------------------------------------------------------------------


ZOO += [
    ZOO.answering("layer-branch-not-taken-overflows",
        "An exponential overflows where states are large and it is not used: infinity times zero in its gradient.",
        "training/layer/states", "not finite", needs=("torch", "gradients"),
        answer=lambda f, x, *m: each(lambda u, a: u + torch.where(a > 20, 0.0, 0 * a.exp()), f(x, *m), x)),
]  # fmt: skip


@ZOO.answers("training/layer/states", "product*", needs=("torch", "gradients"))
@fault("What comes back from behind the layer is clipped to 64.")
def layer_clips_what_comes_back(f: Function, x: Any, *m: Any) -> Any:
    answer = f(x, *m)
    if answer.requires_grad:
        answer.register_hook(lambda gradient: gradient.clamp(-64, 64))
    return answer

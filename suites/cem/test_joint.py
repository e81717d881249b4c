"""Blocks whose halves take turns on the sum of their energies (docs/mathematics.md §18d).

Each property must hold of the reference, and must fail where its source has one of the faults listed with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, CEMAttention, CEMGatedMLP, MLPConfig, PreconditionerConfig
from cemverify.cem.models import Block, BlockConfig, Walk
from suites.cem.helpers import (
    ROUNDING,
    Patch,
    Property,
    U,
    generator,
    gradients_are_exact,
    killed,
    put_fault,
    randn,
    randomised,
    relative_error,
    token,
)

D, K, M = 6, 2, 7
LOW_RANK = PreconditionerConfig("low-rank", rank=2)


def block(rounds: int, *, eta: float = 0.3, scale: float = 0.4, seed: int = 0, **options: Any) -> Block:
    attention = AttentionConfig(D, K, head_dim=4, diagonal="shared", position="alibi", step_size=eta, **options)
    return randomised(
        Block(BlockConfig(attention, MLPConfig(D, M, step_size=eta, **options), rounds), generator(0)), seed, scale
    )


def full(rounds: int) -> Block:
    """With everything that halves may have: a norm, a preconditioner, two steps a turn."""
    return block(rounds, norm="channel", preconditioner=LOW_RANK, steps=2)


def halves_of(made: Block) -> tuple[CEMAttention, CEMGatedMLP]:
    attention, mlp = made.attention, made.mlp
    assert isinstance(attention, CEMAttention)
    assert isinstance(mlp, CEMGatedMLP)
    return attention, mlp


def joint_energy(made: Block, x: Tensor, walk: Walk) -> Tensor:
    """What the rounds descend: eps(N(x) | a) + xi(N(x) | b), with the memories of a walk: (B, J, D) -> (B, J)."""
    attention, mlp = halves_of(made)
    gate = mlp.energy.remember(mlp.norm().into(walk.states[1]))
    return attention.energy(attention.norm().into(x), walk.attention) + mlp.energy(mlp.norm().into(x), gate)


# --- properties -----------------------------------------------------------------------------------------


def test_one_round_is_the_ordinary_block() -> None:
    for made in (block(1), full(1)):
        h = randn(2, 4, D, seed=5)
        between, memory = made.attention.residual(h)
        output, cache = made(h)
        assert torch.equal(output, made.mlp.residual(between))
        assert torch.equal(cache.keys, memory.keys)


def test_each_turn_is_a_step_on_the_joint_energy() -> None:
    """By autograd: with memories fixed, attention steps along the slope of eps, and the MLP along that of xi."""
    made, h = block(3), randn(2, 4, D, seed=5)
    attention, mlp = halves_of(made)
    walk = made.walk(h)
    a = attention.energy.remember(h)
    b = mlp.energy.remember(h - 0.3 * _slope(lambda x: attention.energy(x, a), h))
    x = h
    for t in range(3):
        of_attention = _slope(lambda x: attention.energy(x, a), x)
        y = x - 0.3 * of_attention
        of_mlp = _slope(lambda x: mlp.energy(x, b), y)
        assert relative_error(walk.states[2 * t + 1], y) <= 16 * ROUNDING
        assert relative_error(walk.states[2 * t + 2], y - 0.3 * of_mlp) <= 16 * ROUNDING
        both = _slope(lambda x: joint_energy(made, x, walk), y)
        assert relative_error(both, of_mlp + _slope(lambda x: attention.energy(x, a), y)) <= 16 * ROUNDING
        x = y - 0.3 * of_mlp
    assert torch.equal(walk.states[-1], made(h)[0])


def _slope(energy: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    at = x.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(energy(at).sum(), at)
    return slope


def test_a_round_keeps_its_promise() -> None:
    """E(x') <= E(x) - eta (1 - eta L/2) |G|^2 + eta^2 L |grad eps(x)| |G|, with P = I, no norm and one step size."""
    for seed, eta in product(range(8), (0.01, 0.3, 1.0)):
        made, h = block(3, eta=eta, seed=seed), randn(2, 4, D, seed=5)
        attention, mlp = halves_of(made)
        walk = made.walk(h)
        gate = mlp.energy.remember(walk.states[1])
        L = mlp.energy.curvature(gate).upper  # (B, J), on both sides: |sigma'| bounds it
        for t in range(3):
            x, y, after = walk.states[2 * t : 2 * t + 3]
            of_attention = attention.energy.gradient(x, walk.attention)
            G = (of_attention + mlp.energy.gradient(y, gate)).norm(dim=-1)
            bound = joint_energy(made, x, walk) - eta * (1 - eta * L / 2) * G**2
            bound = bound + eta**2 * L * of_attention.norm(dim=-1) * G
            terms = 1 + joint_energy(made, x, walk).abs() + joint_energy(made, after, walk).abs() + eta * G**2
            assert bool((joint_energy(made, after, walk) <= bound + 1024 * U * terms).all())


def test_with_small_steps_the_sum_falls_to_first_order() -> None:
    """The drop over a round is eta |grad E|^2, up to terms of eta^2."""
    made, h = block(2, eta=1e-6), randn(2, 4, D, seed=5)
    walk = made.walk(h)
    x, after = walk.states[2], walk.states[4]
    drop = joint_energy(made, x, walk) - joint_energy(made, after, walk)
    expected = 1e-6 * _slope(lambda x: joint_energy(made, x, walk), x).square().sum(-1)
    torch.testing.assert_close(drop, expected, rtol=1e-3, atol=1e-13)


def test_gradients_flow_everywhere() -> None:
    assert gradients_are_exact(full(2), randn(1, 3, D, seed=5))


# --- faults of a walk, of which each is found -----------------------------------------------------------

ATTENTION, MLP = "attention.descend(states[-1], memory)", "mlp.descend(states[-1], gate)"


def walks(*words: tuple[str, str]) -> Patch:
    return (Block, "walk", *words)


# of each property, the faults that it finds
KILLS: Mapping[Property, Mapping[str, Patch]] = {
    test_one_round_is_the_ordinary_block: {
        "the MLP remembers h": walks(("self.rounds == 1", "False"), ("into(x)", "into(h)"))
    },
    test_each_turn_is_a_step_on_the_joint_energy: {
        "the MLP's memory read anew": walks((MLP, "mlp.residual(states[-1])")),
        "both memories read anew": walks(
            (ATTENTION, "attention.residual(states[-1])[0]"), (MLP, "mlp.residual(states[-1])")
        ),
        "attention starts at h in each round": walks((ATTENTION, "attention.descend(h, memory)")),
        "the MLP goes first": walks((MLP, "second"), (ATTENTION, MLP), ("second", ATTENTION)),
        "tokens that see each other": walks((MLP, f"{MLP} + 0.01 * states[-1].mean(1, keepdim=True)")),
    },
    test_a_round_keeps_its_promise: {"the MLP climbs": walks((MLP, f"2 * states[-1] - {MLP}"))},
    test_with_small_steps_the_sum_falls_to_first_order: {
        "attention takes one turn": walks((ATTENTION, "states[-1]"))
    },
    test_gradients_flow_everywhere: {
        "rounds that carry no gradient": walks((ATTENTION, "attention.descend(states[-1].detach(), memory)"))
    },
}


@killed(KILLS)
def test_the_property_kills_the_mutant(property_: Property, patch: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    put_fault(patch, monkeypatch)
    with pytest.raises(AssertionError):
        property_()


# --- what is not promised -------------------------------------------------------------------------------


@pytest.mark.parametrize("eta", [1.0, 0.01])
def test_with_different_step_sizes_the_sum_can_rise_at_any_step_size(eta: float) -> None:
    # E = -2 x + x: attention moves by 2 eta, the MLP, whose step is three times as long, by -3 eta
    attention = AttentionConfig(1, 1, temperature=1.0, step_size=eta)
    mlp = MLPConfig(1, 1, activation="identity", step_size=3 * eta)
    made = Block(BlockConfig(attention, mlp, rounds=2), generator(0)).double()
    halves = halves_of(made)
    with torch.no_grad():
        halves[0].W_Q.fill_(2.0)
        halves[0].W_K.fill_(1.0)
        halves[1].V.fill_(1e-3)  # so flat that its slope is that of where it starts
        halves[1].W.fill_(-1e6 / (1 + 2 * eta) ** 2)
    walk = made.walk(token(1.0))
    start, after = walk.states[0], walk.states[2]
    assert float((after - start).detach()) == pytest.approx(-eta, rel=1e-6)
    assert float(joint_energy(made, after, walk).detach()) > float(joint_energy(made, start, walk).detach())

"""Descent: T steps with a fixed memory, and what a normalisation inside does to the energy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cemverify.cem.activations import activation
from cemverify.cem.descent import Descent
from cemverify.cem.energies import Elementwise, Energy, Hopfield, Interaction, InteractionMemory
from cemverify.cem.layers import AttentionConfig, CEMAttention, CEMGatedMLP, MLPConfig
from cemverify.cem.norms import RMSNormInside
from cemverify.cem.preconditioners import Diagonal
from suites.cem.helpers import ROUNDING, generator, interaction, randn, randomised, relative_error


def energies() -> dict[str, Energy]:
    return {
        "interaction": interaction(diagonal="shared", position="alibi"),
        "elementwise": Elementwise(randn(7, 6, seed=0) / 3, randn(7, 6, seed=1) / 3, activation("silu")),
        "hopfield": Hopfield(),
    }


each_energy = pytest.mark.parametrize("energy", energies().values(), ids=list(energies()))


# --- the recursion ------------------------------------------------------------------------------------


@each_energy
def test_the_trajectory_is_the_descent_with_everything_on_the_way(energy: Energy) -> None:
    descent = Descent(3, 0.3, norm=RMSNormInside(torch.ones(1).double()))
    x, memory = randn(2, 4, 6, seed=5), energy.remember(randn(2, 4, 6, seed=6))
    path = descent.trajectory(energy, x, memory)
    assert torch.equal(path.states[0], x)
    assert torch.equal(path.states[3], descent(energy, x, memory))
    for state, value in zip(path.states, path.energies, strict=True):
        assert torch.equal(value, energy(descent.norm.into(state), memory))


@pytest.mark.parametrize("steps", [1, 5])
def test_a_layer_computes_its_keys_once_however_deep(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    remember = Interaction.remember

    def counting(self: Interaction, h: Tensor, past: InteractionMemory | None = None) -> InteractionMemory:
        calls.append(h)
        return remember(self, h, past)

    monkeypatch.setattr(Interaction, "remember", counting)
    CEMAttention(AttentionConfig(4, 2, steps=steps), generator(0)).residual(torch.zeros(1, 3, 4))
    assert len(calls) == 1


def test_a_preconditioner_per_head_needs_heads() -> None:
    energy = energies()["elementwise"]
    x = randn(1, 2, 6, seed=0)
    with pytest.raises(TypeError, match="needs an energy with heads"):
        Descent(preconditioner=Diagonal(torch.zeros(2, 6).double()))(energy, x, energy.remember(x))


# --- RMSNorm inside -----------------------------------------------------------------------------------


def test_rmsnorm_inside_is_torchs() -> None:
    x, gain = randn(2, 3, 6, seed=0), randn(6, seed=1)
    expected = torch.nn.functional.rms_norm(x, (6,), gain, 1e-5)
    assert relative_error(RMSNormInside(gain, 1e-5).into(x), expected) <= ROUNDING


def test_a_layer_takes_its_memory_from_where_it_is_told() -> None:
    layer = randomised(CEMGatedMLP(MLPConfig(3, 5), generator(0)), seed=0)
    x, h = randn(1, 2, 3, seed=0), randn(1, 2, 3, seed=1)
    assert torch.equal(layer(x, x), layer(x))
    assert relative_error(layer(x, h), layer(x)) > 1e-3
    assert torch.equal(layer.trajectory(x, h).states[-1], layer(x, h))

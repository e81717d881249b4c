"""Descent: T steps with a fixed memory, and what a normalisation inside does to the energy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cemverify.cem.activations import activation
from cemverify.cem.descent import Descent
from cemverify.cem.energies import Curvature, Elementwise, Energy, Hopfield, Interaction, InteractionMemory
from cemverify.cem.layers import AttentionConfig, CEMAttention, CEMGatedMLP, MLPConfig
from cemverify.cem.norms import NoNorm, Norm, RMSNormFolded, RMSNormInside
from cemverify.cem.preconditioners import Diagonal, Identity, LowRank
from suites.cem.helpers import (
    DIAGONALS,
    POSITIONS,
    ROUNDING,
    U,
    generator,
    interaction,
    randn,
    randomised,
    relative_error,
    scalar_interaction,
    scalar_mlp,
    token,
    vector,
)


def energies() -> dict[str, Energy]:
    return {
        "interaction": interaction(diagonal="shared", position="alibi"),
        "elementwise": Elementwise(randn(7, 6, seed=0) / 3, randn(7, 6, seed=1) / 3, activation("silu")),
        "hopfield": Hopfield(),
    }


each_energy = pytest.mark.parametrize("energy", energies().values(), ids=list(energies()))


# --- the recursion ------------------------------------------------------------------------------------


@each_energy
@pytest.mark.parametrize("norm", [NoNorm(), RMSNormInside(torch.ones(6).double())], ids=["plain", "norm-inside"])
def test_t_steps_are_t_applications_of_one_step_with_the_same_memory(energy: Energy, norm: Norm) -> None:
    P = LowRank(randn(6, seed=2), randn(6, 2, seed=3), randn(6, 2, seed=4))
    x, memory = randn(2, 4, 6, seed=5), energy.remember(randn(2, 4, 6, seed=6))
    one, three = (Descent(T, 0.3, P, norm) for T in (1, 3))
    assert torch.equal(three(energy, x, memory), one(energy, one(energy, one(energy, x, memory), memory), memory))


@each_energy
def test_a_step_is_minus_eta_p_gradient(energy: Energy) -> None:
    P, x, memory = Diagonal(randn(6, seed=2)), randn(2, 4, 6, seed=5), energy.remember(randn(2, 4, 6, seed=6))
    update = Descent(1, 0.3, P).update(energy, x, memory)
    assert relative_error(update, -0.3 * energy.gradient(x, memory) @ P.matrix(6)) <= ROUNDING


@each_energy
def test_the_trajectory_is_the_descent_with_everything_on_the_way(energy: Energy) -> None:
    descent = Descent(3, 0.3, norm=RMSNormInside(torch.ones(1).double()))
    x, memory = randn(2, 4, 6, seed=5), energy.remember(randn(2, 4, 6, seed=6))
    path = descent.trajectory(energy, x, memory)
    assert torch.equal(path.states[0], x)
    assert torch.equal(path.states[3], descent(energy, x, memory))
    for state, value in zip(path.states, path.energies, strict=True):
        assert torch.equal(value, energy(descent.norm.into(state), memory))


@dataclass(frozen=True)
class Forgetful:
    """|x|^2 / 2, which does not want to be asked to remember."""

    def __call__(self, x: Tensor, memory: Any) -> Tensor:
        return (x * x).sum(-1) / 2

    def remember(self, h: Tensor) -> Any:
        raise AssertionError("a descent never changes its memory")

    def gradient(self, x: Tensor, memory: Any) -> Tensor:
        return x

    def curvature(self, memory: Any) -> Curvature:
        return Curvature(torch.ones(()))


def test_a_descent_never_remembers_anew() -> None:
    assert Descent(4, 0.5)(Forgetful(), token(16.0), None).item() == 1.0


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


def test_a_recursion_of_two_is_not_the_layer_used_twice() -> None:
    layer = randomised(CEMAttention(AttentionConfig(1, 1, temperature=1.0, steps=2), generator(0)), seed=0)
    once = randomised(CEMAttention(AttentionConfig(1, 1, temperature=1.0, steps=1), generator(0)), seed=0)
    with torch.no_grad():
        for parameter in (*layer.parameters(), *once.parameters()):
            parameter.fill_(1.0)
    h = token(1.0)
    assert layer(h).item() == 3.0  # h (1 + 2 eta A)
    assert once(once(h)).item() == 4.0  # h (1 + eta A)^2


def test_the_step_size_may_be_learned() -> None:
    energy, x = interaction(), randn(1, 3, 6, seed=5)
    eta = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    memory = energy.remember(x)
    learned = Descent(2, eta)(energy, x, memory)
    torch.testing.assert_close(learned, Descent(2, 0.3)(energy, x, memory), rtol=1e-14, atol=1e-15)
    (slope,) = torch.autograd.grad(learned.sum(), eta)
    assert slope.abs() > 0


@pytest.mark.parametrize("steps", [0, -1])
def test_a_descent_without_steps_is_refused(steps: int) -> None:
    with pytest.raises(ValueError, match=f"T >= 1 steps, not {steps}"):
        Descent(steps)


@pytest.mark.parametrize("step_size", [0.0, -0.5, math.nan, -1])
def test_a_step_that_is_not_downhill_is_refused(step_size: float) -> None:
    with pytest.raises(ValueError, match="the step size must be positive"):
        Descent(1, step_size)


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


def test_the_gradient_at_the_normalised_state_is_not_the_gradient_of_the_normalised_energy() -> None:
    energy, norm, x = interaction(), RMSNormInside(torch.ones(1).double()), randn(1, 4, 6, seed=0).requires_grad_()
    memory = energy.remember(randn(1, 4, 6, seed=1))
    (true,) = torch.autograd.grad(energy(norm.into(x), memory).sum(), x)
    assert relative_error(-Descent(norm=norm).update(energy, x, memory), true) > 0.1


def worst_rise(energy: Interaction, descent: Descent, x: Tensor, h: Tensor) -> float:
    """The largest rise of the energy in a descent, relative to the sum of all its terms at their largest."""
    path = descent.trajectory(energy, x, energy.remember(h))
    queries, keys = (torch.linalg.matrix_norm(W, ord=2) for W in (energy.W_Q, energy.W_K))
    score = float(queries @ keys) + (0.0 if energy.diagonal is None else energy.heads * energy.diagonal.abs().max())
    reach = float(descent.norm.into(path.states).norm(dim=-1).max() * h.norm(dim=-1).max())
    offsets = energy.heads * energy.temperature * (math.log(h.shape[1]) + h.shape[1])
    return float(path.energies.diff(dim=0).max() / (score * reach + offsets))


norm_problems = {
    "diagonal": st.sampled_from(DIAGONALS),
    "position": st.sampled_from(POSITIONS),
    "log_eta": st.floats(-4, 4),
    "eps": st.sampled_from([0.0, 1e-5, 1.0]),
    "seed": st.integers(0, 10_000),
}
RISE = 256 * U  # dot products of 6 and 4 terms, evaluated twice, and the state is rounded once more


@given(**norm_problems, gain=st.sampled_from([0.3, 1.0, 5.0]), scale=st.sampled_from([0.5, 1.3]))
def test_with_a_scalar_gain_and_preconditioner_the_energy_falls_at_every_step_size(
    diagonal: str, position: str, log_eta: float, eps: float, seed: int, gain: float, scale: float
) -> None:
    energy = interaction(diagonal=diagonal, position=position, seed=seed)
    d = torch.full((6,), math.log(math.expm1(scale)), dtype=torch.float64)
    descent = Descent(3, 10.0**log_eta, Diagonal(d), RMSNormInside(vector(gain), eps))
    assert worst_rise(energy, descent, randn(1, 4, 6, seed=seed + 5), randn(1, 4, 6, seed=seed + 6)) <= RISE


@given(**norm_problems)
def test_a_gain_per_channel_that_is_folded_into_both_paths_falls_at_every_step_size(
    diagonal: str, position: str, log_eta: float, eps: float, seed: int
) -> None:
    energy = interaction(diagonal=diagonal, position=position, seed=seed)
    gain = randn(6, seed=seed + 4)
    descent = Descent(3, 10.0**log_eta, Identity(), RMSNormFolded(gain, eps))
    assert worst_rise(energy, descent, randn(1, 4, 6, seed=seed + 5), randn(1, 4, 6, seed=seed + 6)) <= RISE


def one_step(norm: Norm, eta: float, P: Diagonal | Identity) -> list[float]:
    """The energies of x = (1, 1) before and after a step, with beta = (2, 1) from h = (1, 0)."""
    energy = scalar_interaction([[2.0, 1.0]], [[1.0, 0.0]])
    memory = energy.remember(token(1.0, 0.0))
    return Descent(1, eta, P, norm).trajectory(energy, token(1.0, 1.0), memory).energies.flatten().tolist()


@pytest.mark.parametrize(("eta", "after"), [(0.001, -4.9995), (1.0, -4.707)])
def test_a_gain_per_channel_can_raise_the_energy_at_any_step_size(eta: float, after: float) -> None:
    energies = one_step(RMSNormInside(vector(1.0, 3.0), eps=0.0), eta, Identity())
    assert energies == pytest.approx([-5.0, after], abs=5e-5 if eta < 1 else 5e-4)


@pytest.mark.parametrize("eta", [0.001, 1.0])
def test_the_same_gain_folded_lowers_it(eta: float) -> None:
    before, after = one_step(RMSNormFolded(vector(1.0, 3.0), eps=0.0), eta, Identity())
    assert after < before == -5.0


@pytest.mark.parametrize(("eta", "after"), [(0.001, -2.9995), (1.0, -2.828)])
def test_a_preconditioner_that_is_not_scalar_can_raise_it_too(eta: float, after: float) -> None:
    P = Diagonal(vector(math.log(math.expm1(1.0)), math.log(math.expm1(3.0))))
    energies = one_step(RMSNormInside(vector(1.0), eps=0.0), eta, P)
    assert energies == pytest.approx([-3.0, after], abs=5e-5 if eta < 1 else 5e-4)


def test_a_negative_scalar_gain_raises_it() -> None:
    before, after = one_step(RMSNormInside(vector(-1.0), eps=0.0), 0.001, Identity())
    assert after > before == 3.0


def test_the_elementwise_energy_can_rise_inside_a_scalar_norm_at_a_step_of_one() -> None:
    # W h = -4: the energy is 4 phi(N(x)), and the step from -1 overshoots zero
    energy, x = scalar_mlp(1.0, 4.0, "silu"), token(-1.0)
    path = Descent(norm=RMSNormInside(vector(1.0), eps=0.0)).trajectory(energy, x, energy.remember(x))
    before, after = (4 * activation("silu").primitive(vector(at)).item() for at in (-1.0, 1.0))
    assert path.energies.flatten().tolist() == pytest.approx([before, after], rel=8 * U)
    assert after > before


def test_a_layer_takes_its_memory_from_where_it_is_told() -> None:
    layer = randomised(CEMGatedMLP(MLPConfig(3, 5), generator(0)), seed=0)
    x, h = randn(1, 2, 3, seed=0), randn(1, 2, 3, seed=1)
    assert torch.equal(layer(x, x), layer(x))
    assert relative_error(layer(x, h), layer(x)) > 1e-3
    assert torch.equal(layer.trajectory(x, h).states[-1], layer(x, h))

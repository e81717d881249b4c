"""Energies: their values against plain loops, their gradients against autograd, and their curvature."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from cemverify.cem.activations import ACTIVATIONS, Activation, activation
from cemverify.cem.energies import Convexified, Elementwise, Energy, Hopfield, Interaction
from suites.cem import helpers
from suites.cem.helpers import ROUNDING, gradient_of, interaction, randn, relative_error, token, vector

each_position = pytest.mark.parametrize("position", helpers.POSITIONS, ids=lambda p: f"position-{p}")
each_activation = pytest.mark.parametrize("sigma", ACTIVATIONS.values(), ids=list(ACTIVATIONS))


# --- the values, by loops on Python floats, on which all other tests rely -----------------------------


def naive_bias(position: str, k: int, i: int, j: int) -> float:
    if position == "alibi":
        return -helpers.SLOPES[k] * abs(i - j)
    if position == "self-cross":
        return helpers.TO_SELF[k] if i == j else helpers.TO_OTHERS[k]
    return 0.0


def naive_rotation(v: list[float], position: int) -> list[float]:
    half = len(v) // 2
    out = [0.0] * len(v)
    for r in range(half):
        angle = position * 10000.0 ** (-2 * r / len(v))
        out[r] = v[r] * math.cos(angle) - v[r + half] * math.sin(angle)
        out[r + half] = v[r + half] * math.cos(angle) + v[r] * math.sin(angle)
    return out


def naive_product(W: list[list[float]], v: list[float]) -> list[float]:
    return [sum(w * c for w, c in zip(row, v, strict=True)) for row in W]


def naive_interaction(energy: Interaction, x: Tensor, h: Tensor, position: str) -> Tensor:
    """-tau log sum_j exp(((W_Q x_i).(W_K h_j) + x_i.(d_k * h_j)) / tau + b_ijk) of each head, by single floats."""
    W_Q, W_K, tau = energy.W_Q.tolist(), energy.W_K.tolist(), energy.temperature
    K, D = len(W_Q), x.shape[-1]
    d = (torch.zeros(K, D) if energy.diagonal is None else energy.diagonal.expand(K, D)).tolist()

    def value(k: int, i: int, x_i: list[float], memory: list[list[float]]) -> float:
        total = 0.0
        for j, h_j in enumerate(memory[: i + 1] if energy.causal else memory):
            query, key = naive_product(W_Q[k], x_i), naive_product(W_K[k], h_j)
            if position == "rotary":
                query, key = naive_rotation(query, i), naive_rotation(key, j)
            score = sum(q * c for q, c in zip(query, key, strict=True))
            score += sum(a * e * c for a, e, c in zip(x_i, d[k], h_j, strict=True))
            total += math.exp(score / tau + naive_bias(position, k, i, j))
        return -tau * math.log(total)

    rows = zip(x.tolist(), h.tolist(), strict=True)
    values = [[[value(k, i, x_i, memory) for i, x_i in enumerate(row)] for k in range(K)] for row, memory in rows]
    return torch.tensor(values, dtype=torch.float64)  # (B, K, J)


def naive_elementwise(sigma: Activation, V: Tensor, W: Tensor, x: Tensor, h: Tensor, *, convexified: bool) -> Tensor:
    """-sum_m (W h)_m phi((V x)_m), or -sum_m |(W h)_m| phi(sign((W h)_m) (V x)_m), one float at a time."""
    values = []
    for x_i, h_i in zip(x.reshape(-1, x.shape[-1]).tolist(), h.reshape(-1, h.shape[-1]).tolist(), strict=True):
        value = 0.0
        for gate, z in zip(naive_product(W.tolist(), h_i), naive_product(V.tolist(), x_i), strict=True):
            sign = math.copysign(1.0, gate) if convexified else 1.0
            value -= sign * gate * sigma.primitive(vector(sign * z)).item()
        values.append(value)
    return torch.tensor(values, dtype=torch.float64).reshape(x.shape[:-1])


@each_position
@pytest.mark.parametrize("diagonal", helpers.DIAGONALS, ids=lambda d: f"diagonal-{d}")
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_the_interaction_energy_is_the_formula_in_plain_loops(diagonal: str, position: str, causal: bool) -> None:
    energy = interaction(diagonal=diagonal, position=position, causal=causal)
    x, h = randn(2, 4, 6, seed=10), randn(2, 4, 6, seed=11)
    heads, memory = naive_interaction(energy, x, h, position), energy.remember(h)
    assert relative_error(energy.of_heads(x, memory), heads) <= ROUNDING
    assert relative_error(energy(x, memory), heads.sum(1)) <= ROUNDING


@each_activation
@pytest.mark.parametrize("kind", [Elementwise, Convexified], ids=["elementwise", "convexified"])
def test_the_elementwise_energies_are_the_formula_in_plain_loops(sigma: Activation, kind: Any) -> None:
    V, W = randn(5, 3, seed=0), randn(5, 3, seed=1)
    x, h = randn(2, 4, 3, seed=2), randn(2, 4, 3, seed=3)
    energy: Energy = kind(V, W, sigma)
    expected = naive_elementwise(sigma, V, W, x, h, convexified=kind is Convexified)
    assert relative_error(energy(x, energy.remember(h)), expected) <= ROUNDING


def test_the_hopfield_energy_is_the_formula_in_plain_loops() -> None:
    x, h, tau = randn(1, 3, 4, seed=0), randn(1, 5, 4, seed=1), 0.7
    expected = [
        -tau * math.log(sum(math.exp(naive_product([h_j], x_i)[0] / tau) for h_j in h[0].tolist()))
        + sum(a * a for a in x_i) / 2
        for x_i in x[0].tolist()
    ]
    assert relative_error(Hopfield(tau)(x, Hopfield(tau).remember(h))[0], vector(*expected)) <= ROUNDING


# not tested by the catalogue, in which attention is causal and the MLP has the element-wise energy
UNASKED: dict[str, Energy] = {
    **{
        f"full-{diagonal}-{position}": interaction(diagonal=diagonal, position=position, causal=False)
        for diagonal, position in product(helpers.DIAGONALS, helpers.POSITIONS)
    },
    **{f"convexified-{n}": Convexified(randn(7, 6, seed=0), randn(7, 6, seed=1), s) for n, s in ACTIVATIONS.items()},
    "hopfield": Hopfield(0.7),
}


@pytest.mark.parametrize("energy", UNASKED.values(), ids=list(UNASKED))
def test_the_closed_form_is_the_gradient_of_the_energy(energy: Energy) -> None:
    x, h = randn(2, 5, 6, seed=2), randn(2, 5, 6, seed=3)
    assert relative_error(energy.gradient(x, energy.remember(h)), gradient_of(energy, x, h)) <= ROUNDING


@each_position
def test_decoding_without_a_diagonal_is_torchs_fused_attention(position: str) -> None:
    energy = interaction(diagonal="none", position=position)
    x, memory = randn(2, 5, 6, seed=12), energy.remember(randn(2, 5, 6, seed=13))
    with torch.no_grad(), torch.profiler.profile() as profile:
        energy.gradient(x[:, -1:], memory)
    names = {event.key for event in profile.key_averages()}
    # the other kind copies all keys to scale them
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in names


def rises(energy: Energy, x: Tensor, h: Tensor, eta: float, P: Tensor) -> bool:
    memory = energy.remember(h)
    return bool((energy(x - eta * energy.gradient(x, memory) @ P, memory) > energy(x, memory)).all())


HALF = math.sqrt(0.5)
TIGHT = {
    # (activation, V, gamma, x, diagonal of P); x is near a critical point where the curvature equals the bound
    "identity": ("identity", [[1.0]], [-1.0], [1.0], [1.0]),
    "identity-with-P": ("identity", [[1.0, 0.0], [0.0, 1.0]], [-1.0, -1.0], [0.0, 1.0], [1.0, 4.0]),
    "tanh": ("tanh", [[1.0]], [-1.0], [1e-2], [1.0]),
    "sigmoid": ("sigmoid", [[1.0], [-1.0]], [-1.0, -1.0], [1e-2], [1.0]),
    "silu": ("silu", [[HALF, 0.5], [-HALF, 0.5], [0.0, 0.689321]], [-1.0, -1.0, 1.0], [1e-2, 4.798715], [1.0, 1.0]),
    "gelu": ("gelu", [[HALF, 0.5], [-HALF, 0.5], [0.0, 0.687689]], [-1.0, -1.0, 1.0], [1e-2, 2.828427], [1.0, 1.0]),
}


@pytest.mark.parametrize("example", TIGHT.values(), ids=list(TIGHT))
def test_the_safe_step_of_the_elementwise_energy_is_tight(example: Any) -> None:
    name, V, gamma, x, diagonal = example
    # h = (1, 0, ...) and W with gamma in its first column: W h = gamma
    W = torch.zeros(len(gamma), len(x), dtype=torch.float64)
    W[:, 0] = vector(*gamma)
    h = token(1.0, *[0.0] * (len(x) - 1))
    energy = Elementwise(torch.tensor(V, dtype=torch.float64), W, activation(name))
    safe = energy.curvature(energy.remember(h)).safe_step(max(diagonal)).item()
    P = torch.diag(vector(*diagonal))
    assert not rises(energy, token(*x), h, 0.999 * safe, P)
    assert rises(energy, token(*x), h, 1.001 * safe, P)


FLAT = {
    "attention": interaction(),
    "V of zeros": Elementwise(torch.zeros(5, 6).double(), randn(5, 6, seed=0), activation("relu2")),
    "gates of zeros": Elementwise(randn(5, 6, seed=0), torch.zeros(5, 6).double(), activation("relu2")),
    "convexified, monotone": Convexified(randn(5, 6, seed=0), randn(5, 6, seed=1), activation("relu")),
}


@pytest.mark.parametrize("energy", FLAT.values(), ids=list(FLAT))
def test_an_energy_that_bends_nowhere_upwards_allows_any_step(energy: Energy) -> None:
    curvature = energy.curvature(energy.remember(randn(1, 4, 6, seed=2)))
    assert not curvature.upper.any()
    assert bool((curvature.safe_step(1e6) == math.inf).all())


def test_the_convexified_energy_bends_where_the_activation_is_not_monotone() -> None:
    energy = Convexified(randn(4, 3, seed=0), randn(4, 3, seed=1), activation("silu"))
    assert energy.curvature(energy.remember(randn(1, 2, 3, seed=2))).upper.all()


def test_a_cccp_step_of_the_hopfield_energy_is_a_gradient_step_of_size_one_and_its_safe_step_is_two() -> None:
    energy, x, h = Hopfield(0.7), randn(2, 3, 4, seed=0), randn(2, 5, 4, seed=1)
    assert relative_error(energy.cccp_step(x, energy.remember(h)), x - gradient_of(energy, x, h)) <= ROUNDING
    # with patterns of zero the energy is |x|^2 / 2: a step of 2 mirrors x, a longer one raises the energy
    energy, x, h = Hopfield(), token(1.0), token(0.0)
    assert energy.curvature(energy.remember(h)).safe_step().item() == 2.0
    identity = torch.ones(1, 1, dtype=torch.float64)
    assert not rises(energy, x, h, 1.999, identity)
    assert rises(energy, x, h, 2.001, identity)

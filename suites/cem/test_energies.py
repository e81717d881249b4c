"""Energies: their values against plain loops, their gradients against autograd, and how they bend."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cemverify.cem.activations import ACTIVATIONS, Activation, activation
from cemverify.cem.energies import Convexified, Elementwise, Energy, Hopfield, HopfieldMemory, Interaction
from cemverify.cem.positions import SelfCross
from suites.cem.helpers import (
    DIAGONALS,
    POSITIONS,
    ROUNDING,
    SLOPES,
    TO_OTHERS,
    TO_SELF,
    U,
    gradient_of,
    interaction,
    randn,
    relative_error,
    scalar_interaction,
    scalar_mlp,
    token,
    vector,
)

each_diagonal = pytest.mark.parametrize("diagonal", DIAGONALS, ids=lambda d: f"diagonal-{d}")
each_position = pytest.mark.parametrize("position", POSITIONS, ids=lambda p: f"position-{p}")
each_mask = pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
each_activation = pytest.mark.parametrize("sigma", ACTIVATIONS.values(), ids=list(ACTIVATIONS))
monotone_activation = pytest.mark.parametrize(
    "sigma", [s for s in ACTIVATIONS.values() if s.monotone], ids=lambda s: s.name
)


# --- the values, by loops on Python floats: what makes everything else trustworthy --------------------


def naive_bias(position: str, k: int, i: int, j: int) -> float:
    if position == "alibi":
        return -SLOPES[k] * abs(i - j)
    if position == "self-cross":
        return TO_SELF[k] if i == j else TO_OTHERS[k]
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
    """-tau sum_k log sum_j exp(((W_Q x_i).(W_K h_j) + x_i.(d_k * h_j)) / tau + b_ijk), one float at a time."""
    W_Q, W_K, tau = energy.W_Q.tolist(), energy.W_K.tolist(), energy.temperature
    K, D = len(W_Q), x.shape[-1]
    d = torch.zeros(K, D) if energy.diagonal is None else energy.diagonal.expand(K, D)
    values: list[list[float]] = []
    for row, memory in zip(x.tolist(), h.tolist(), strict=True):
        values.append([])
        for i, x_i in enumerate(row):
            value = 0.0
            for k in range(K):
                total = 0.0
                for j, h_j in enumerate(memory):
                    if energy.causal and j > i:
                        continue
                    query, key = naive_product(W_Q[k], x_i), naive_product(W_K[k], h_j)
                    if position == "rotary":
                        query, key = naive_rotation(query, i), naive_rotation(key, j)
                    score = sum(q * c for q, c in zip(query, key, strict=True))
                    score += sum(a * e * c for a, e, c in zip(x_i, d[k].tolist(), h_j, strict=True))
                    total += math.exp(score / tau + naive_bias(position, k, i, j))
                value -= tau * math.log(total)
            values[-1].append(value)
    return torch.tensor(values, dtype=torch.float64)


def naive_elementwise(sigma: Activation, V: Tensor, W: Tensor, x: Tensor, h: Tensor, *, convexified: bool) -> Tensor:
    """-sum_m (W h)_m phi((V x)_m), or -sum_m |(W h)_m| phi(sign((W h)_m) (V x)_m), one float at a time."""
    values = []
    for x_i, h_i in zip(x.reshape(-1, x.shape[-1]).tolist(), h.reshape(-1, h.shape[-1]).tolist(), strict=True):
        value = 0.0
        for gate, z in zip(naive_product(W.tolist(), h_i), naive_product(V.tolist(), x_i), strict=True):
            if convexified:
                value -= abs(gate) * sigma.primitive(vector(math.copysign(1.0, gate) * z)).item()
            else:
                value -= gate * sigma.primitive(vector(z)).item()
        values.append(value)
    return torch.tensor(values, dtype=torch.float64).reshape(x.shape[:-1])


@each_diagonal
@each_position
@each_mask
def test_the_interaction_energy_is_the_formula_in_plain_loops(diagonal: str, position: str, causal: bool) -> None:
    energy = interaction(diagonal=diagonal, position=position, causal=causal)
    x, h = randn(2, 4, 6, seed=10), randn(2, 4, 6, seed=11)
    value = energy(x, energy.remember(h))
    assert relative_error(value, naive_interaction(energy, x, h, position)) <= ROUNDING


@each_activation
@pytest.mark.parametrize("kind", [Elementwise, Convexified], ids=["elementwise", "convexified"])
def test_the_elementwise_energies_are_the_formula_in_plain_loops(
    sigma: Activation, kind: type[Elementwise] | type[Convexified]
) -> None:
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


# --- gradients ----------------------------------------------------------------------------------------


@each_diagonal
@each_position
@each_mask
@pytest.mark.parametrize("temperature", [0.5, 2.0], ids=lambda t: f"tau-{t}")
def test_the_closed_form_is_the_gradient_of_the_interaction_energy(
    diagonal: str, position: str, causal: bool, temperature: float
) -> None:
    energy = interaction(diagonal=diagonal, position=position, causal=causal, temperature=temperature)
    x, h = randn(2, 5, 6, seed=12), randn(2, 5, 6, seed=13)
    assert relative_error(energy.gradient(x, energy.remember(h)), gradient_of(energy, x, h)) <= ROUNDING


@each_diagonal
@each_position
def test_the_head_gradients_sum_to_the_gradient(diagonal: str, position: str) -> None:
    energy = interaction(diagonal=diagonal, position=position)
    x, memory = randn(2, 5, 6, seed=12), energy.remember(randn(2, 5, 6, seed=13))
    assert relative_error(energy.head_gradients(x, memory).sum(dim=1), energy.gradient(x, memory)) <= ROUNDING


@each_diagonal
@each_position
def test_the_energies_of_heads_sum_to_the_energy_and_have_the_gradients_of_heads(
    diagonal: str, position: str
) -> None:
    energy = interaction(diagonal=diagonal, position=position)
    x, memory = randn(2, 5, 6, seed=12).requires_grad_(), energy.remember(randn(2, 5, 6, seed=13))
    heads = energy.of_heads(x, memory)  # (B, K, J)
    assert relative_error(heads.sum(dim=1), energy(x, memory)) <= ROUNDING
    for k in range(energy.heads):
        (own,) = torch.autograd.grad(heads[:, k].sum(), x, retain_graph=True)
        assert relative_error(energy.head_gradients(x, memory)[:, k], own) <= ROUNDING


@each_diagonal
@each_position
def test_a_head_gradient_is_the_gradient_of_that_head_alone(diagonal: str, position: str) -> None:
    energy = interaction(diagonal=diagonal, position=position)
    x, h = randn(1, 5, 6, seed=12), randn(1, 5, 6, seed=13)
    heads = energy.head_gradients(x, energy.remember(h))
    alone = replace(
        energy,
        W_Q=energy.W_Q[:1],
        W_K=energy.W_K[:1],
        diagonal=energy.diagonal[:1] if diagonal == "per-head" and energy.diagonal is not None else energy.diagonal,
        bias=None if energy.bias is None else lambda rows, columns: full_bias(energy, rows, columns)[:1],
    )
    assert relative_error(heads[:, 0], gradient_of(alone, x, h)) <= ROUNDING


def full_bias(energy: Interaction, rows: Tensor, columns: Tensor) -> Tensor:
    assert energy.bias is not None
    return energy.bias(rows, columns)


@each_activation
@pytest.mark.parametrize("kind", [Elementwise, Convexified], ids=["elementwise", "convexified"])
def test_the_closed_form_is_the_gradient_of_the_elementwise_energies(
    sigma: Activation, kind: type[Elementwise] | type[Convexified]
) -> None:
    energy: Energy = kind(randn(7, 4, seed=0), randn(7, 4, seed=1), sigma)
    x, h = randn(2, 5, 4, seed=2), randn(2, 5, 4, seed=3)
    assert relative_error(energy.gradient(x, energy.remember(h)), gradient_of(energy, x, h)) <= ROUNDING


def test_the_hopfield_gradient_is_the_gradient() -> None:
    energy, x, h = Hopfield(0.7), randn(2, 3, 4, seed=0), randn(2, 5, 4, seed=1)
    assert relative_error(energy.gradient(x, energy.remember(h)), gradient_of(energy, x, h)) <= ROUNDING


@each_diagonal
def test_values_other_than_the_keys_give_another_field(diagonal: str) -> None:
    energy = interaction(diagonal=diagonal)
    x, h = randn(1, 5, 6, seed=12), randn(1, 5, 6, seed=13)
    memory = energy.remember(h)
    untied = energy.attention_weights(x, memory) @ torch.einsum("bjd,krd->bkjr", h, randn(2, 4, 6, seed=99))
    field = -torch.einsum("bkjr,krd->bjd", untied, energy.W_Q)
    assert relative_error(field, gradient_of(energy, x, h)) > 0.5


@pytest.mark.parametrize("wrong", ["plain-values", "not-turned-back"])
def test_rotary_attention_that_does_not_turn_its_values_there_and_back_is_not_the_gradient(wrong: str) -> None:
    energy = interaction(position="rotary")
    x, h = randn(1, 5, 6, seed=12), randn(1, 5, 6, seed=13)
    memory = energy.remember(h)
    values = torch.einsum("bjd,krd->bkjr", h, energy.W_K) if wrong == "plain-values" else memory.keys
    field = -torch.einsum("bkjr,krd->bjd", energy.attention_weights(x, memory) @ values, energy.W_Q)
    assert relative_error(field, gradient_of(energy, x, h)) > 0.1


@each_position
def test_decoding_without_a_diagonal_is_torchs_fused_attention(position: str) -> None:
    energy = interaction(diagonal="none", position=position)
    x, memory = randn(2, 5, 6, seed=12), energy.remember(randn(2, 5, 6, seed=13))
    with torch.no_grad(), torch.profiler.profile() as profile:
        energy.gradient(x[:, -1:], memory)
    names = {event.key for event in profile.key_averages()}
    # its other kind copies all keys, to scale them
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in names


@each_diagonal
@each_position
def test_fewer_queries_than_memories_are_its_last_tokens(diagonal: str, position: str) -> None:
    energy = interaction(diagonal=diagonal, position=position)
    x, memory = randn(2, 5, 6, seed=12), energy.remember(randn(2, 5, 6, seed=13))
    assert relative_error(energy(x[:, 3:], memory), energy(x, memory)[:, 3:]) <= ROUNDING
    assert relative_error(energy.gradient(x[:, 3:], memory), energy.gradient(x, memory)[:, 3:]) <= ROUNDING


# --- what the parameters mean -------------------------------------------------------------------------


@pytest.mark.parametrize("c", [0.25, 4.0])
@pytest.mark.parametrize("diagonal", ["none", "shared"])
def test_temperature_is_redundant_with_the_scale_of_the_weights(c: float, diagonal: str) -> None:
    energy = interaction(diagonal=diagonal)
    scaled = replace(
        energy,
        W_Q=c * energy.W_Q,
        diagonal=None if energy.diagonal is None else c * energy.diagonal,
        temperature=c * energy.temperature,
    )
    x, h = randn(1, 4, 6, seed=12), randn(1, 4, 6, seed=13)
    # c is a power of two: nothing rounds differently
    assert torch.equal(scaled(x, scaled.remember(h)), c * energy(x, energy.remember(h)))


def test_only_the_difference_of_the_self_and_cross_biases_matters() -> None:
    plain, shift = interaction(position="self-cross"), 1.5
    assert isinstance(plain.bias, SelfCross)
    shifted = replace(plain, bias=SelfCross(plain.bias.to_self + shift, plain.bias.to_others + shift))
    x, memory = randn(1, 4, 6, seed=12), plain.remember(randn(1, 4, 6, seed=13))
    moved = plain(x, memory) - plain.temperature * plain.heads * shift
    assert relative_error(shifted(x, memory), moved) <= ROUNDING
    assert relative_error(shifted.gradient(x, memory), plain.gradient(x, memory)) <= ROUNDING


def test_the_self_and_cross_biases_do_not_move_the_first_token() -> None:
    with_bias, without = interaction(position="self-cross"), interaction()
    x, memory = randn(1, 4, 6, seed=12), without.remember(randn(1, 4, 6, seed=13))
    difference = with_bias.gradient(x, memory) - without.gradient(x, memory)
    assert difference[:, 0].abs().max() <= ROUNDING
    assert difference[:, 1:].abs().max() > 1e-3


# --- concavity of the interaction energy --------------------------------------------------------------


def rounding(energy: Interaction, h: Tensor, *states: Tensor) -> float:
    """How far off the energies at these states may be: n u times what their scores and biases add up to.

    Every dot product of n terms errs by n u times the product of the norms, and log-sum-exp adds no more than
    its arguments bring; a gradient times a step errs by as much again.
    """
    queries, keys = (torch.linalg.matrix_norm(W, ord=2) for W in (energy.W_Q, energy.W_K))  # (K,)
    per_unit = float(queries @ keys)
    if energy.diagonal is not None:
        per_unit += energy.heads * float(energy.diagonal.abs().max())
    scores = per_unit * float(h.norm(dim=-1).max()) * sum(float(x.norm(dim=-1).max()) for x in states)
    length, dim = h.shape[1:]
    offsets = energy.heads * energy.temperature * (math.log(length) + 2 * length)
    return 4 * (2 * dim + energy.W_Q.shape[1] + length) * U * (scores + offsets)


problems = st.fixed_dictionaries(
    {
        "diagonal": st.sampled_from(DIAGONALS),
        "position": st.sampled_from(POSITIONS),
        "causal": st.booleans(),
        "temperature": st.sampled_from([0.1, 1.0, 10.0]),
        "D": st.integers(1, 6),
        "seed": st.integers(0, 10_000),
    }
)


@given(problem=problems, log_eta=st.floats(-4, 6), rank=st.integers(0, 6), skew=st.sampled_from([0.0, 1.0, 30.0]))
def test_any_step_with_any_positive_semidefinite_p_descends_by_at_least_the_first_order(
    problem: dict[str, Any], log_eta: float, rank: int, skew: float
) -> None:
    energy = interaction(**problem)
    D, eta = energy.W_Q.shape[-1], 10.0**log_eta
    x, h = randn(1, 4, D, seed=1), randn(1, 4, D, seed=2)
    root, turn = randn(D, rank, seed=3), randn(D, D, seed=4)
    P = root @ root.mT + skew * (turn - turn.mT)  # singular for small ranks, and not symmetric
    memory = energy.remember(h)
    g = energy.gradient(x, memory)
    step = eta * g @ P.mT
    first_order = (g * step).sum(-1)
    excess = energy(x - step, memory) - (energy(x, memory) - first_order)
    # g.Pg is computed through the skew part too, which contributes nothing but rounding
    assert excess.max() <= rounding(energy, h, x, x - step, step)


@given(problem=problems, scale=st.sampled_from([0.1, 1.0, 100.0]))
def test_the_interaction_energy_lies_above_its_chords(problem: dict[str, Any], scale: float) -> None:
    energy = interaction(**problem)
    D = energy.W_Q.shape[-1]
    x, y, h = (randn(1, 4, D, seed=s, scale=scale) for s in (1, 2, 3))
    memory = energy.remember(h)
    chord = (energy(x, memory) + energy(y, memory)) / 2
    assert (chord - energy((x + y) / 2, memory)).max() <= rounding(energy, h, x, y)


def test_an_ascending_step_is_seen_by_the_inequality() -> None:
    energy, x, h = interaction(), randn(1, 4, 6, seed=1), randn(1, 4, 6, seed=2)
    memory = energy.remember(h)
    g = energy.gradient(x, memory)
    assert (energy(x + 0.1 * g, memory) > energy(x, memory)).all()


def test_keys_that_moved_with_x_would_lose_the_descent() -> None:
    # A = -1, one token: with the memory at x itself the energy is +x^2, and eta = 2 goes from 1 to -3
    energy, x = scalar_interaction([[-1.0]], [[1.0]]), token(1.0)
    moving = x.clone().requires_grad_()
    value = energy(moving, energy.remember(moving)).sum()
    (g,) = torch.autograd.grad(value, moving)
    there = x - 2 * g
    assert (value.item(), there.item(), energy(there, energy.remember(there)).item()) == (1.0, -3.0, 9.0)
    fixed = energy.remember(x)
    assert energy(x - 2 * energy.gradient(x, fixed), fixed).item() == -1.0


def test_the_interaction_energy_has_no_minimum() -> None:
    # each step gains at least what the first one promised, for gradients grow along a descent of a concave function
    energy, x, h = interaction(), randn(1, 4, 6, seed=1), randn(1, 4, 6, seed=2)
    memory = energy.remember(h)
    start, promised = energy(x, memory), (energy.gradient(x, memory) ** 2).sum(-1)
    for T in range(1, 2001):
        x = x - energy.gradient(x, memory)
        if T in (1, 10, 100, 2000):
            assert (energy(x, memory) <= start - T * promised + T * rounding(energy, h, x)).all()


def test_the_interaction_energy_says_that_it_is_concave() -> None:
    energy = interaction()
    curvature = energy.curvature(energy.remember(randn(1, 4, 6, seed=2)))
    assert not curvature.upper.any()
    assert curvature.safe_step(1e6) == math.inf


# --- the element-wise energy and its safe step --------------------------------------------------------


def magnitude(energy: Elementwise | Convexified, x: Tensor, h: Tensor) -> Tensor:
    """What the terms of the energy, and what an error of u in each V x moves them by, add up to; (B, J)."""
    gate, z = energy.remember(h).gate, x @ energy.V.mT
    reach = energy.V.norm(dim=-1) * x.norm(dim=-1, keepdim=True)
    sigma = energy.activation
    either = [sigma.primitive(s * z).abs() + sigma.sigma(s * z).abs() * reach for s in (-1, 1)]
    return (gate.abs() * torch.maximum(*either)).sum(-1)


@each_activation
@given(seed=st.integers(0, 10_000), fraction=st.floats(0.01, 1.0), scale=st.sampled_from([0.1, 1.0, 3.0]))
def test_a_safe_step_never_raises_the_elementwise_energy(
    sigma: Activation, seed: int, fraction: float, scale: float
) -> None:
    V, W, h = randn(4, 3, seed=seed), randn(4, 3, seed=seed + 1), randn(1, 2, 3, seed=seed + 2)
    x = randn(1, 2, 3, seed=seed + 3, scale=scale)
    energy = Elementwise(V, W, sigma)
    root = randn(3, 3, seed=seed + 4)
    P = root @ root.mT
    memory = energy.remember(h)
    curvature = energy.curvature(memory)
    largest = torch.linalg.eigvalsh(P)[-1]
    eta = fraction * curvature.safe_step(largest)
    g = energy.gradient(x, memory)
    first_order = (g * (g @ P)).sum(-1)
    x_next = x - eta[..., None] * (g @ P)
    promised = torch.where(eta > 0, eta * (1 - eta * curvature.upper * largest / 2) * first_order, 0.0)
    slack = energy(x, memory) - promised - energy(x_next, memory)
    assert (slack >= -16 * U * (magnitude(energy, x, h) + magnitude(energy, x_next, h) + promised)).all()


def rises(energy: Energy, x: Tensor, h: Tensor, eta: float, P: Tensor) -> bool:
    memory = energy.remember(h)
    return bool((energy(x - eta * energy.gradient(x, memory) @ P, memory) > energy(x, memory)).all())


HALF = math.sqrt(0.5)
TIGHT = {
    # (activation, V, gamma, x, diagonal of P); x a little off a critical point at which the bound is the curvature
    "identity": ("identity", [[1.0]], [-1.0], [1.0], [1.0]),
    "identity-with-P": ("identity", [[1.0, 0.0], [0.0, 1.0]], [-1.0, -1.0], [0.0, 1.0], [1.0, 4.0]),
    "tanh": ("tanh", [[1.0]], [-1.0], [1e-2], [1.0]),
    "sigmoid": ("sigmoid", [[1.0], [-1.0]], [-1.0, -1.0], [1e-2], [1.0]),
    "silu": ("silu", [[HALF, 0.5], [-HALF, 0.5], [0.0, 0.689321]], [-1.0, -1.0, 1.0], [1e-2, 4.798715], [1.0, 1.0]),
    "gelu": ("gelu", [[HALF, 0.5], [-HALF, 0.5], [0.0, 0.687689]], [-1.0, -1.0, 1.0], [1e-2, 2.828427], [1.0, 1.0]),
}


@pytest.mark.parametrize("example", TIGHT.values(), ids=list(TIGHT))
def test_the_safe_step_of_the_elementwise_energy_is_tight(
    example: tuple[str, list[list[float]], list[float], list[float], list[float]],
) -> None:
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


@pytest.mark.parametrize(
    ("name", "w", "before", "after"), [("identity", -3.0, 1.5, 6.0), ("silu", -4.0, 1.318, 1.677)]
)
def test_a_step_of_one_can_raise_the_elementwise_energy(name: str, w: float, before: float, after: float) -> None:
    energy, x = scalar_mlp(1.0, w, name), token(1.0)
    memory = energy.remember(x)
    there = x - energy.gradient(x, memory)
    assert energy(x, memory).item() == pytest.approx(before, abs=5e-4)
    assert energy(there, memory).item() == pytest.approx(after, abs=5e-4)


@each_activation
@pytest.mark.parametrize("flat", ["V", "h"])
def test_an_energy_that_is_constant_in_x_allows_any_step(sigma: Activation, flat: str) -> None:
    energy = scalar_mlp(0.0 if flat == "V" else 1.0, 1.0, sigma.name)
    curvature = energy.curvature(energy.remember(token(0.0 if flat == "h" else 1.0)))
    assert not curvature.upper.any()
    assert curvature.safe_step().item() == math.inf


# --- the convexified energy ---------------------------------------------------------------------------


@monotone_activation
@given(seed=st.integers(0, 10_000), log_eta=st.floats(-3, 3))
def test_the_convexified_energy_of_a_monotone_activation_is_concave(
    sigma: Activation, seed: int, log_eta: float
) -> None:
    V, W, x, h = (randn(*shape, seed=seed + i) for i, shape in enumerate([(4, 3), (4, 3), (1, 2, 3), (1, 2, 3)]))
    energy = Convexified(V, W, sigma)
    memory = energy.remember(h)
    g, eta = energy.gradient(x, memory), 10.0**log_eta
    there = x - eta * g
    promised = eta * (g * g).sum(-1)
    excess = energy(there, memory) - (energy(x, memory) - promised)
    assert not energy.curvature(memory).upper.any()
    assert (excess <= 16 * U * (magnitude(energy, x, h) + magnitude(energy, there, h) + promised)).all()


def test_the_convexified_energy_is_not_convex() -> None:
    energy = Convexified(vector(1.0)[None], vector(1.0)[None], activation("identity"))
    memory = energy.remember(token(1.0))
    assert [energy(token(x), memory).item() for x in (-1.0, 0.0, 1.0)] == [-0.5, 0.0, -0.5]


def test_the_convexified_energy_of_silu_is_not_concave() -> None:
    energy = Convexified(vector(1.0)[None], vector(1.0)[None], activation("silu"))
    memory = energy.remember(token(1.0))
    left, middle, right = (energy(token(x), memory).item() for x in (-4.0, -3.0, -2.0))
    assert (left + right) / 2 > middle + 1e-3
    assert energy.curvature(memory).upper.any()


# --- Hopfield -----------------------------------------------------------------------------------------


def test_a_cccp_step_of_the_hopfield_energy_is_a_gradient_step_of_size_one() -> None:
    energy, x, h = Hopfield(0.7), randn(2, 3, 4, seed=0), randn(2, 5, 4, seed=1)
    memory = energy.remember(h)
    assert relative_error(energy.cccp_step(x, memory), x - gradient_of(energy, x, h)) <= ROUNDING


def hopfield_rounding(temperature: float, *states: Tensor) -> float:
    """Scores and squares are at most the sum of all squared norms, tau log S comes on top."""
    squares = sum(float((state * state).sum(-1).max()) for state in states)
    return 32 * U * (2 * squares + temperature * math.log(states[-1].shape[1]))


hopfield_problems = {"seed": st.integers(0, 10_000), "temperature": st.sampled_from([0.1, 1.0, 5.0])}


@given(**hopfield_problems)
def test_a_cccp_step_lowers_the_hopfield_energy_by_half_its_square(seed: int, temperature: float) -> None:
    energy, x, h = Hopfield(temperature), randn(1, 3, 4, seed=seed), randn(1, 5, 4, seed=seed + 1)
    memory = energy.remember(h)
    there = energy.cccp_step(x, memory)
    bound = energy(x, memory) - ((there - x) ** 2).sum(-1) / 2
    assert (energy(there, memory) <= bound + hopfield_rounding(temperature, x, there, h)).all()


@given(**hopfield_problems, eta=st.floats(0.001, 1.999))
def test_a_step_below_two_lowers_the_hopfield_energy(seed: int, temperature: float, eta: float) -> None:
    energy, x, h = Hopfield(temperature), randn(1, 3, 4, seed=seed), randn(1, 5, 4, seed=seed + 1)
    memory = energy.remember(h)
    g = energy.gradient(x, memory)
    there = x - eta * g
    bound = energy(x, memory) - (eta - eta * eta / 2) * (g * g).sum(-1)
    assert (energy(there, memory) <= bound + hopfield_rounding(temperature, x, there, h)).all()


def test_the_safe_step_of_the_hopfield_energy_is_two() -> None:
    # patterns of zero leave |x|^2 / 2: a step of 2 mirrors x, a longer one rises
    energy, x, h = Hopfield(), token(1.0), token(0.0)
    assert energy.curvature(energy.remember(h)).safe_step().item() == 2.0
    identity = torch.ones(1, 1, dtype=torch.float64)
    assert not rises(energy, x, h, 1.999, identity)
    assert rises(energy, x, h, 2.001, identity)


def printed_hopfield(x: Tensor, memory: HopfieldMemory, tau: float) -> Tensor:
    """-(1/tau) log sum_j exp(h_j . x / tau), without |x|^2 / 2 (App. B): (B, J, D) -> (B, J)."""
    return -torch.logsumexp(x @ memory.patterns.mT / tau, -1) / tau


def test_the_hopfield_energy_as_printed_has_a_gradient_of_one_over_tau_squared() -> None:
    tau = 2.0
    x, memory = randn(1, 3, 4, seed=0).requires_grad_(), Hopfield(tau).remember(randn(1, 5, 4, seed=1))
    (g,) = torch.autograd.grad(printed_hopfield(x, memory, tau).sum(), x)
    assert relative_error(g, -Hopfield(tau).cccp_step(x.detach(), memory) / 4) <= ROUNDING


def test_the_hopfield_energy_as_printed_is_concave_where_the_appendix_says_convex() -> None:
    memory = Hopfield().remember(torch.tensor([[[1.0], [-1.0]]], dtype=torch.float64))
    values = [printed_hopfield(token(x), memory, 1.0).item() for x in (-1.0, 0.0, 1.0)]
    assert values == pytest.approx([-1.127, -0.693, -1.127], abs=5e-4)

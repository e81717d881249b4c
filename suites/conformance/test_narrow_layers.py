"""Layers of float32, of rounded constants and of loose solvers: however small, they are judged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cemverify import energy_layer
from cemverify.conformance.judging.verdicts import Record, Verdict
from suites.kit.judging import judged

D, HEADS = 16, 2
GENERATOR = torch.Generator().manual_seed(7)
W_Q, W_K, W_V = (0.15 * torch.randn(HEADS, D, D // HEADS, generator=GENERATOR) for _ in range(3))
NARROW: dict[str, Any] = {"state": ("J", D), "working_dtype": "float32"}


# --- small updates: attention as a freshly initialised model has it -----------------------------------------


def _scores(x: Tensor, h: Tensor) -> Tensor:
    """(B, K, J, J): queries of x, keys of h."""
    q, k = (torch.einsum("bjd,kdr->bkjr", a, w) for a, w in ((x, W_Q), (h, W_K)))
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    scores: Tensor = (q @ k.mT / (D // HEADS) ** 0.5).masked_fill(later, -torch.inf)
    return scores


def _energy(x: Tensor, h: Tensor) -> Tensor:
    return -torch.logsumexp(_scores(x, h), -1).sum(1)


def _attention(scale: float) -> Any:
    def update(x: Tensor) -> Tensor:
        weights = torch.softmax(_scores(x, x), -1)  # (B, K, J, J)
        keys = torch.einsum("bjd,kdr->bkjr", x, W_K)
        step: Tensor = torch.einsum("bkjr,kdr->bjd", weights @ keys, W_Q) / (D // HEADS) ** 0.5
        return scale * step

    return energy_layer(
        update=update, energy=_energy, memory="present state", energy_per="token", step_size=1.0, **NARROW
    )


small_updates = _attention(1.0)
small_updates_too_large = _attention(1.2)
small_updates_uphill = _attention(-1.0)
small_updates_a_tenth_off = _attention(1.1)


# --- a norm inside, whose epsilon is small ------------------------------------------------------------------


def _rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def _normed(scale: float) -> Any:
    W = W_Q.flatten(0, 1)[:D]  # (D, D / HEADS)

    def energy(x: Tensor) -> Tensor:
        return torch.nn.functional.softplus(_rms(x) @ W).sum(-1)

    def update(x: Tensor) -> Tensor:
        mean = x.square().mean(-1, keepdim=True) + 1e-6
        pulled = torch.sigmoid(_rms(x) @ W) @ W.mT  # with respect to the normed state
        inward = x * (x * pulled).mean(-1, keepdim=True) / mean
        return -0.1 * scale * (pulled - inward) * torch.rsqrt(mean)

    return energy_layer(update=update, energy=energy, memory=None, energy_per="token", step_size=0.1, **NARROW)


norm_inside = _normed(1.0)
norm_inside_a_little_off = _normed(1.01)


# --- constants that are rounded -----------------------------------------------------------------------------


def _of_step(eta: float) -> Any:
    return energy_layer(
        update=lambda x: -eta * torch.tanh(x),
        energy=lambda x: torch.logaddexp(x, -x).sum(-1),
        state=("J", 3),
        memory=None,
        energy_per="token",
        step_size=0.2,
    )


step_size = _of_step(0.2)
step_size_of_float32 = _of_step(float(torch.tensor(0.2)))


# --- a solver that stops early ------------------------------------------------------------------------------


def _solver(tolerance: float, misses: float = 0.0) -> Any:
    """x -> the state where x = tanh(x W + h) / 2, by its gradient."""

    A = 0.3 * torch.randn(3, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    H = A @ A.mT + torch.eye(3, dtype=torch.float64)

    def update(x: Tensor, h: Tensor) -> Tensor:
        H_own, start = H.to(x.dtype), x
        for _ in range(200):
            gradient = x @ H_own - h
            if float(gradient.abs().max()) < tolerance:
                break
            x = x - 0.5 * gradient
        return x + misses - start

    return energy_layer(
        update=update,
        energy=lambda x, h: ((x @ H.to(x.dtype)) * x).sum(-1) / 2 - (x * h).sum(-1),
        state=("J", 3),
        memory=("J", 3),
        energy_per="token",
        step="equilibrium",
        tolerance=tolerance,
    )


solver_of_a_loose_tolerance = _solver(1e-4)
solver_of_a_close_tolerance = _solver(1e-7)
solver_that_misses = _solver(1e-7, misses=1e-3)


# --- what holds, and what does not ---

ENERGY = "gradient/layer/energy"
DIFFERENCES = "gradient/layer/derivatives-agree"
WRONG = ["small_updates_too_large", "small_updates_uphill", "small_updates_a_tenth_off", "norm_inside_a_little_off"]
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 12))]


def narrow(name: str, id_: str, seed: int = 0, *, shrink: bool = False) -> Record:
    return judged(globals()[name], id_, examples=24, seed=seed, shrink=shrink)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["small_updates", "norm_inside"])
@pytest.mark.parametrize("property_", [ENERGY, DIFFERENCES, "extremes/layer/zero-states", "training/layer/states"])
def test_a_right_layer_of_float32_holds_by_telling_examples(name: str, property_: str, seed: int) -> None:
    record = narrow(name, property_, seed)
    assert record.verdict == Verdict.HOLDS, record.reason


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_update_of_float32_is_violated_however_small_it_is(name: str, seed: int) -> None:
    record = narrow(name, ENERGY, seed)
    assert record.verdict == Verdict.VIOLATED
    assert record.margin is not None
    assert record.margin > 3


def test_a_constant_that_was_rounded_is_a_constant_factor_and_not_a_matter_of_precision() -> None:
    assert narrow("step_size", ENERGY).verdict == Verdict.HOLDS
    record = narrow("step_size_of_float32", ENERGY, shrink=True)
    assert (record.verdict, record.part) == (Verdict.VIOLATED, "a constant factor")


def test_a_solver_that_stops_early_is_told_how_far_to_go() -> None:
    record = narrow("solver_of_a_loose_tolerance", "training/layer/derivatives-agree")
    assert record.verdict == Verdict.INCONCLUSIVE
    assert "known to within its tolerance of 0.0001: have it stop at 1e-07" in str(record.reason)
    assert narrow("solver_of_a_close_tolerance", "training/layer/derivatives-agree").verdict == Verdict.HOLDS
    assert narrow("solver_that_misses", "descent/layer/stationary").verdict == Verdict.VIOLATED

"""Layers: the Transformer layers they are, how they decode, and how the printed algorithm differs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from cemverify.cem.energies import Interaction
from cemverify.cem.layers import (
    AttentionConfig,
    CEMAttention,
    CEMGatedMLP,
    MLPConfig,
    PositionKind,
    PreconditionerConfig,
)
from cemverify.cem.llama import LlamaAttention, LlamaAttentionConfig
from cemverify.cem.norms import NoNorm, NormKind, RMSNormFolded, RMSNormInside
from cemverify.cem.preconditioners import Diagonal, Identity, LowRank, LowRankPrinted, PreconditionerKind
from cemverify.cem.printed import PrintedAlgorithm1
from suites.cem.helpers import (
    DIAGONALS,
    POSITIONS,
    ROUNDING,
    generator,
    gradients_are_exact,
    randn,
    randomised,
    relative_error,
)

D, K, M = 8, 2, 12

each_diagonal = pytest.mark.parametrize("diagonal", DIAGONALS, ids=lambda d: f"diagonal-{d}")


def attention(seed: int = 0, **options: Any) -> CEMAttention:
    return randomised(CEMAttention(AttentionConfig(D, K, **options), generator(0)), seed)


def mlp(seed: int = 0, **options: Any) -> CEMGatedMLP:
    return randomised(CEMGatedMLP(MLPConfig(D, M, **options), generator(0)), seed)


# --- attention and MLPs as they are built elsewhere ----------------------------------------------------


@pytest.mark.parametrize("diagonal", ["shared", "per-head"])
def test_a_diagonal_is_attention_over_keys_that_carry_the_states(diagonal: str) -> None:
    layer, h = attention(diagonal=diagonal), randn(2, 5, D, seed=1)
    assert layer.diagonal is not None
    d = layer.diagonal.expand(K, D)
    eye = torch.eye(D, dtype=torch.float64).expand(K, D, D)
    wide_Q = torch.cat((layer.W_Q, d[:, :, None] * eye), dim=1)  # (K, R + D, D)
    wide_K = torch.cat((layer.W_K, eye), dim=1)
    wide = Interaction(wide_Q, wide_K, layer.config.tau)
    assert relative_error(layer(h), h - wide.gradient(h, wide.remember(h))) <= ROUNDING


def test_cem_attention_is_llama_attention_with_tied_weights() -> None:
    llama, tied = (
        LlamaAttention(LlamaAttentionConfig(D, K, "alibi"), generator(0)).double(),
        attention(position="alibi"),
    )
    with torch.no_grad():
        for name, weight in (("W_Q", tied.W_Q), ("W_O", tied.W_Q), ("W_K", tied.W_K), ("W_V", tied.W_K)):
            llama.get_parameter(name).copy_(weight)
    h = randn(2, 5, D, seed=1)
    assert relative_error(tied(h), h + llama(h)[0]) <= ROUNDING


# --- Algorithm 1 as printed ---------------------------------------------------------------------------


@pytest.mark.parametrize("per_head", [False, True], ids=["shared-P", "P-per-head"])
def test_the_printed_block_is_algorithm_1_line_by_line(per_head: bool) -> None:
    P = PreconditionerConfig("low-rank-printed", rank=2, per_head=per_head)
    layer = attention(diagonal="per-head", preconditioner=P, norm="channel", norm_eps=0.0, step_size=0.3, steps=2)
    assert layer.diagonal is not None
    gain, matrices = layer.norm.gain, layer.preconditioner().matrix(D).expand(K, D, D)
    h = F.rms_norm(randn(2, 5, D, seed=1), (D,), gain, 0.0)
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    x = h
    for _ in range(2):
        u = F.rms_norm(x, (D,), gain, 0.0)  # the second normalisation
        delta = torch.zeros_like(h)
        for k in range(K):
            keys = h @ layer.W_K[k].mT
            scores = (u @ layer.W_Q[k].mT) @ keys.mT + (u * layer.diagonal[k]) @ h.mT
            weights = (scores / layer.config.tau).masked_fill(future, -math.inf).softmax(-1)
            delta = delta + (weights @ keys) @ layer.W_Q[k] @ matrices[k].mT  # no diagonal in the values
        x = x - 0.3 * delta
    # two steps
    assert relative_error(PrintedAlgorithm1(layer)(randn(2, 5, D, seed=1)), x) <= 2 * ROUNDING


# --- training -----------------------------------------------------------------------------------------


LEARNED: tuple[PreconditionerKind, ...] = ("identity", "diagonal", "low-rank", "low-rank-printed")


@pytest.mark.parametrize("kind", LEARNED)
@pytest.mark.parametrize(
    ("position", "norm"), [("none", "none"), ("rotary", "scalar"), ("self-cross", "folded"), ("none", "channel")]
)
def test_every_parameter_has_the_gradient_of_the_output(
    kind: PreconditionerKind, position: PositionKind, norm: NormKind
) -> None:
    P = PreconditionerConfig(kind, rank=1)
    heads = replace(P, per_head=kind != "identity")
    for layer in (
        CEMAttention(
            AttentionConfig(4, 2, diagonal="shared", position=position, preconditioner=heads, steps=2, norm=norm),
            generator(0),
        ),
        CEMGatedMLP(MLPConfig(4, 3, preconditioner=P, steps=2, norm=norm), generator(0)),
    ):
        assert gradients_are_exact(randomised(layer, 0), randn(1, 3, 4, seed=1))


# --- what a configuration builds -----------------------------------------------------------------------


@pytest.mark.parametrize("make", [attention, mlp])
def test_a_layer_descends_as_it_was_asked_to(make: Callable[..., CEMAttention | CEMGatedMLP]) -> None:
    for kind, built in zip(LEARNED, (Identity, Diagonal, LowRank, LowRankPrinted), strict=True):
        descent = make(preconditioner=PreconditionerConfig(kind), steps=3, step_size=0.25).descent
        assert isinstance(descent.preconditioner, built)
        assert (descent.steps, descent.step_size) == (3, 0.25)
    assert isinstance(make(norm="none").descent.norm, NoNorm)
    norms: dict[NormKind, tuple[type, int]] = {"scalar": (RMSNormInside, 1), "channel": (RMSNormInside, D)}
    for norm_kind, (norm_built, gains) in {**norms, "folded": (RMSNormFolded, D)}.items():
        norm: Any = make(norm=norm_kind, norm_eps=0.5).descent.norm
        assert (type(norm), norm.gain.numel(), norm.eps) == (norm_built, gains, 0.5)


def test_weights_start_with_the_standard_deviation_they_were_asked_for() -> None:
    layer = CEMAttention(AttentionConfig(64, 4, init_std=0.5), generator(0))
    # 4096 numbers: five standard errors of their standard deviation
    assert layer.W_Q.std().item() == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(2 * 4096))


# --- decoding -----------------------------------------------------------------------------------------


@each_diagonal
@pytest.mark.parametrize("position", [*POSITIONS, "alibi-printed"], ids=lambda p: f"position-{p}")
@pytest.mark.parametrize("split", [1, 3])
def test_decoding_from_a_cache_is_the_full_pass_at_every_split(diagonal: str, position: str, split: int) -> None:
    layer, h = attention(diagonal=diagonal, position=position, steps=2, norm="channel"), randn(2, 5, D, seed=1)
    full, _ = layer.residual(h)
    first, past = layer.residual(h[:, :split])
    second, memory = layer.residual(h[:, split:], past)
    assert memory.length == 5
    # two steps
    assert relative_error(torch.cat((first, second), dim=1), full) <= 2 * ROUNDING


def test_a_diagonal_keeps_the_states_beside_the_keys() -> None:
    h = randn(2, 5, D, seed=1)
    _, memory = attention(diagonal="shared").residual(h)
    assert memory.states is not None
    assert torch.equal(memory.states, h)


def test_a_head_dimension_of_its_own_need_not_divide_the_model_dimension() -> None:
    config = AttentionConfig(6, 4, head_dim=3)
    assert CEMAttention(config, generator(0)).W_Q.shape == (4, 3, 6)
    assert config.tau == math.sqrt(3)

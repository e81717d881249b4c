"""Layers: the Transformer layers they are, what a configuration builds, and how the printed algorithm differs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from cemverify.cem.layers import (
    AttentionConfig,
    CEMAttention,
    CEMGatedMLP,
    MLPConfig,
    PreconditionerConfig,
)
from cemverify.cem.llama import LlamaAttention, LlamaAttentionConfig
from cemverify.cem.norms import NoNorm, NormKind, RMSNormFolded, RMSNormInside
from cemverify.cem.preconditioners import Diagonal, Identity, LowRank, LowRankPrinted, PreconditionerKind
from cemverify.cem.printed import PrintedAlgorithm1
from suites.cem.helpers import (
    ROUNDING,
    generator,
    randn,
    randomised,
    relative_error,
)

D, K, M = 8, 2, 12


def attention(seed: int = 0, **options: Any) -> CEMAttention:
    return randomised(CEMAttention(AttentionConfig(D, K, **options), generator(0)), seed)


def mlp(seed: int = 0, **options: Any) -> CEMGatedMLP:
    return randomised(CEMGatedMLP(MLPConfig(D, M, **options), generator(0)), seed)


# --- attention and MLPs as they are built elsewhere ----------------------------------------------------


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


LEARNED: tuple[PreconditionerKind, ...] = ("identity", "diagonal", "low-rank", "low-rank-printed")


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

"""ALiBi as features in fused attention is as exact as attention without ALiBi, and is used only where it is."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cemverify.cem import blocked
from cemverify.cem.beyond import Beyond
from cemverify.cem.energies import features
from cemverify.cem.layers import AttentionConfig, CEMAttention, PositionKind
from cemverify.cem.llama import LlamaAttention, LlamaAttentionConfig
from suites.cem.helpers import generator, randn

J = 384


@pytest.fixture(autouse=True)
def _on_the_cpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "FEATURES_ON", {"cpu"})


def cem(position: PositionKind, R: int = 8, **options: Any) -> CEMAttention:
    return CEMAttention(AttentionConfig(16, 2, R, position=position, init_std=0.5, **options), generator(1))


def llama(position: Any, R: int = 8) -> LlamaAttention:
    return LlamaAttention(LlamaAttentionConfig(2 * R, 2, position, init_std=0.5), generator(1))


def answers(module: nn.Module, h: Tensor, weights: Tensor) -> list[Tensor]:
    """A layer's output on h, and the gradients of h and of its matrices."""
    h = h.clone().requires_grad_()
    out = module(h)
    out = out[0] if isinstance(out, tuple) else out
    return [out.detach(), *torch.autograd.grad(out, (h, *(p for p in module.parameters() if p.dim() > 1)), weights)]


def error(module: nn.Module, dtype: torch.dtype) -> list[float]:
    """The error of a layer in this dtype against float64, each answer relative to its largest value."""
    narrow, dim = module.to(dtype), module.config.dim
    h, weights = (randn(1, J, dim, seed=seed).to(dtype) for seed in (2, 3))  # type: ignore[arg-type]
    actual = answers(narrow, h, weights)
    expected = answers(narrow.double(), h.double(), weights.double())
    return [float((a.double() - e).abs().max() / e.abs().max()) for a, e in zip(actual, expected, strict=True)]


@pytest.mark.parametrize("R", [64, 72, 84])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_with_features_attention_is_as_exact_as_without_alibi(dtype: torch.dtype, R: int) -> None:
    for make in (cem, llama):
        with_alibi, without = (error(make(position, R), dtype) for position in ("alibi", "none"))
        assert max(with_alibi) <= 1.5 * max(without)


def masks(module: nn.Module, dtype: torch.dtype, asked: int = J) -> list[Tensor | None]:
    """The masks that fused attention gets for this many queries."""
    h = randn(1, J, 16, seed=2).to(dtype)
    with patch.object(F, "scaled_dot_product_attention", wraps=F.scaled_dot_product_attention) as fused:
        module.to(dtype)(*((h,) if asked == J else (h[:, -asked:], h)))
    return [call.kwargs.get("attn_mask") for call in fused.call_args_list]


def test_features_are_taken_in_half_precision_where_rows_are_aligned_and_keys_were_made_for_the_temperature() -> None:
    for module in (cem("alibi"), llama("alibi")):
        assert masks(module, torch.bfloat16) == [None]
    with blocked.using("formula"):
        for module, dtype, asked in (
            (cem("alibi"), torch.float32, J),  # scores in the thousands lose digits
            (cem("alibi"), torch.bfloat16, J - 3),
            (cem("alibi", R=254), torch.bfloat16, J),  # too wide for the kernels
        ):
            assert None not in masks(module, dtype, asked)
        cooled = cem("alibi", steps=2, step="learned", beyond=Beyond(cooling=0.5))
        assert [mask is None for mask in masks(cooled, torch.bfloat16)] == [True, False]

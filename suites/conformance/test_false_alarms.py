"""Correct implementations, written in other ways than the reference, are never called wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from cemverify import check_implementation, implementation
from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.budgets import output_budget
from cemverify.conformance.calls import Caller
from cemverify.conformance.contract import Implementation
from cemverify.conformance.golden import golden
from cemverify.conformance.plain import Plain
from cemverify.conformance.reference import reference
from cemverify.conformance.spaces import Space, cases
from cemverify.conformance.verdicts import Verdict

ATTENTION_ONLY = ("diagonal", "position", "preconditioner", "norm", "validation")


def numpy_loops(
    x: NDArray[np.float64], h: NDArray[np.float64], weights: dict[str, NDArray[np.float64]], config: AttentionConfig
) -> NDArray[np.float64]:
    """Attention token by token, head by head."""
    x = x.copy()
    for _ in range(config.steps):
        moved = x.copy()
        for b, i, k in np.ndindex(x.shape[0], x.shape[1], config.heads):
            keys = h[b, : i + 1] @ weights["W_K"][k].T
            logits = keys @ (weights["W_Q"][k] @ x[b, i]) / config.tau
            a = np.exp(logits - logits.max())
            moved[b, i] += config.step_size * (weights["W_Q"][k].T @ (a / a.sum() @ keys))
        x = moved
    return x


def augmented_head(x: Tensor, h: Tensor, weights: dict[str, Tensor], config: AttentionConfig) -> Tensor:
    """The diagonal through wider heads: queries [W_Q x; d x], keys and values [W_K h; h]."""
    d = weights["diagonal"].expand(config.heads, -1)
    for _ in range(config.steps):
        q = torch.cat((torch.einsum("bjd,krd->bkjr", x, weights["W_Q"]), x[:, None] * d[:, None]), -1)
        k = torch.cat(
            (torch.einsum("bjd,krd->bkjr", h, weights["W_K"]), h[:, None].expand(-1, config.heads, -1, -1)), -1
        )
        o = F.scaled_dot_product_attention(q, k, k, is_causal=True, scale=1 / config.tau)
        low, wide = o[..., : config.R], o[..., config.R :]
        x = x + config.step_size * (torch.einsum("bkjr,krd->bjd", low, weights["W_Q"]) + (wide * d[:, None]).sum(1))
    return x


def augmented_or_plain(x: Tensor, h: Tensor, weights: dict[str, Tensor], config: AttentionConfig) -> Tensor:
    if config.diagonal == "none":
        weights = {**weights, "diagonal": torch.zeros(config.dim, dtype=x.dtype)}
    return augmented_head(x, h, weights, config)


BANK: dict[str, Implementation] = {
    "plain": Plain().subject(),
    "numpy-loops": implementation(attention=numpy_loops, arrays="numpy", not_offered=ATTENTION_ONLY),
    "augmented-head": implementation(
        attention=augmented_or_plain, not_offered=("position", "preconditioner", "norm", "validation")
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", BANK)
def test_a_correct_implementation_is_never_called_wrong(name: str, seed: int) -> None:
    records = check_implementation(BANK[name], examples=16, seed=seed)
    assert [r for r in records if r.verdict not in (Verdict.HOLDS, Verdict.NOT_OFFERED)] == []
    assert any(r.verdict == Verdict.HOLDS for r in records)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("subject", [reference, Plain().subject()], ids=["reference", "plain"])
def test_budgets_bound_the_error_of_two_independent_evaluations(subject: Implementation, dtype: torch.dtype) -> None:
    import hypothesis

    space = Space("attention", {"diagonal": "shared", "position": "alibi", "norm": "channel"}, steps=(1, 2, 3))

    @hypothesis.given(cases(space, "dense"))
    def errors_stay_inside(case: object) -> None:
        rounded = case.to(dtype).to(torch.float64)  # type: ignore[attr-defined]
        budget = output_budget(rounded, dtype)
        hypothesis.assume(bool(budget.isfinite().all()))
        assert bool(((Caller(subject, dtype).output(rounded) - golden(rounded)).abs() <= budget).all())

    errors_stay_inside()


def test_budgets_are_tight_enough_to_see_a_part_in_a_trillion() -> None:
    from cemverify.conformance.cases import dense_case

    case = dense_case(AttentionConfig(4, 2, temperature=1.0), 1, 3, seed=0)
    update = golden(case) - case.x
    assert float(output_budget(case, torch.float64).max()) < 1e-12 * float(update.abs().max()) * 10

"""Faults and unusual right layers as they were met in other people's code: each is a row with a layer of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify import energy_layer, implementation
from cemverify.cem.layers import MLPConfig, PreconditionerConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.contract import Subject
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.search import PropertySearch, SuiteBroke
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties import Property, by_id, catalogue
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.contexts import MODES, USUAL, Context, InContext
from cemverify.processes.time_limits import CoreBudget

ABSENT = ("diagonal", "position", "preconditioner", "norm", "validation")
CAUSAL = "structure/layer/causality"


def cem(direction: Callable[[Tensor, Tensor, Any, Any], Tensor], **declared: Any) -> Subject:
    """CEM attention that takes steps in some direction."""

    def attention(x: Tensor, h: Tensor, weights: Any, config: Any) -> Tensor:
        for _ in range(config.steps):
            x = x + config.step_size * direction(x, h, weights, config)
        return x

    return implementation(attention=attention, not_offered=ABSENT, **declared)


def usual(x: Tensor, h: Tensor, weights: Any, config: Any) -> Tensor:
    keys = torch.einsum("krd,bjd->bkjr", weights["W_K"], h)
    scores = torch.einsum("krd,bid,bkjr->bkij", weights["W_Q"], x, keys) / config.temperature
    weighted = torch.softmax(masked(scores), -1) @ keys
    return torch.einsum("krd,bkir->bid", weights["W_Q"], weighted)


def masked(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)


def solved(x: Tensor, h: Tensor, weights: Any, config: Any) -> Tensor:
    """The usual direction as a solver returns it, which has no kernel for bfloat16."""
    eye = torch.eye(x.shape[-1], dtype=x.dtype)
    rows: Tensor = torch.linalg.solve(eye, usual(x, h, weights, config).mT)
    return rows.mT


class ByPointer(torch.autograd.Function):
    """A kernel that is handed the memory of its incoming gradient, and not its strides."""

    @staticmethod
    def forward(_: Any, a: Tensor) -> Tensor:
        return a.clone()

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        if gradient.untyped_storage().nbytes() < gradient.numel() * gradient.element_size():
            gradient = gradient.contiguous()  # it would read beyond the end
        return gradient.as_strided(gradient.shape, torch.empty(gradient.shape, device="meta").stride(), 0).clone()


def by_pointer(array: Tensor) -> Tensor:
    copy: Tensor = ByPointer.apply(array)  # type: ignore[no-untyped-call]
    return copy


def overflowing(x: Tensor, m: Tensor) -> Tensor:
    e = torch.exp(x)
    return torch.sigmoid(m) - torch.where(x > 20, torch.sigmoid(x), e / (1 + e))


def causal(scores: Callable[[Tensor, Tensor], Tensor]) -> Subject:
    """A causal layer that descends -logsumexp of its scores, by autograd."""

    def energy(g: Tensor, m: Tensor) -> Tensor:
        return -torch.logsumexp(scores(g, m), -1)

    def update(x: Tensor, m: Tensor) -> Tensor:
        with torch.enable_grad():
            g = x if x.requires_grad else x.detach().requires_grad_()
            differentiable = x.requires_grad or m.requires_grad
            return -torch.autograd.grad(energy(g, m).sum(), g, create_graph=differentiable)[0]

    return energy_layer(update=update, energy=energy, dim=4)


def capped(scores: Tensor) -> Tensor:
    return 6 * torch.tanh(scores / 6)


WRONG: dict[str, tuple[Callable[[], Subject], str, str]] = {
    "its backward pass reads its incoming gradient by pointer": (
        lambda: cem(lambda *arguments: by_pointer(usual(*arguments))), "training/attention/plain", "*gradient*"),
    "so does that of an energy layer": (
        lambda: energy_layer(update=lambda x, m: by_pointer(m - x), dim=3, causal=False,
                             energy=lambda g, m: (g - m).square().sum(-1) / 2),
        "training/layer/states", "*"),
    "the branch of its `where` that is not taken overflows: a right value and a gradient that is no number": (
        lambda: energy_layer(update=overflowing, dim=3, causal=False,
                             energy=lambda g, m: (F.softplus(g, threshold=40) - g * torch.sigmoid(m)).sum(-1)),
        "training/layer/states", "not finite"),
    "its scores are capped after the mask: later tokens keep the weight e^-6": (
        lambda: causal(lambda g, m: capped(masked(g @ m.mT))), CAUSAL, "* of the first t tokens without*"),
    "its scores grow with the logarithm of the length of the row": (
        lambda: causal(lambda g, m: masked(g @ m.mT) * math.log(1 + m.shape[1])), CAUSAL, "* of the first t tokens*"),
}  # fmt: skip
RIGHT: dict[str, tuple[Callable[[], Subject], str]] = {
    "its scores are capped before the mask": (lambda: causal(lambda g, m: masked(capped(g @ m.mT))), CAUSAL),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_fault_of_others_is_a_violation_for_its_cause(fault: str) -> None:
    layer, property_, cause = WRONG[fault]
    record = judge_property(layer(), by_id(property_), Effort())
    assert record.verdict == Verdict.VIOLATED
    assert fnmatchcase(str(record.cause), cause)


def test_a_missing_kernel_is_no_violation_and_the_feature_to_declare_is_said() -> None:
    record = judge_property(cem(solved), by_id("precision/attention/bfloat16"), Effort())
    assert record.verdict == Verdict.INCONCLUSIVE
    assert "write not_offered=('dtype:bfloat16',)" in str(record.reason)


def exploding() -> Case:
    """relu^2 squares its state in each of nine steps: the right answer is no number any more."""
    x, h, V, W, d = (torch.tensor(a).double() for a in ([[[0, 2]]], [[[-2, 0]]], [[-1, 1]], [[-1, 0]], [0, 0]))
    config = MLPConfig(2, 1, activation="relu2", steps=9, preconditioner=PreconditionerConfig("diagonal"))
    return Case(config, x, h, {"V": V, "W": W, "P_d": d})


@pytest.mark.parametrize("property_", [p for p in catalogue() if "/mlp/" in p.id], ids=lambda p: p.id)
def test_where_the_right_answer_overflows_no_property_calls_an_answer_wrong(property_: Property) -> None:
    modes = MODES if property_.family == "contexts" else (USUAL,)
    for mode in modes:
        question = InContext(exploding(), Context(mode)) if property_.family == "contexts" else exploding()
        search = PropertySearch(Caller(reference, property_.dtype or torch.float64), property_, CoreBudget(60.0))
        with suppress(SuiteBroke):  # the case of a sequence is another
            search.look_at(question)
        assert search.tally.violation is None


@pytest.mark.parametrize("layer", RIGHT)
def test_an_unusual_layer_that_is_right_holds(layer: str) -> None:
    right, property_ = RIGHT[layer]
    record = judge_property(right(), by_id(property_), Effort())
    assert record.verdict == Verdict.HOLDS, record.reason

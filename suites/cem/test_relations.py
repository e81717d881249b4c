"""Changes to a case whose effect on the reference's answer is known, whatever the answer is.

Nobody else is asked them: a layer that equals the oracle has these relations because the oracle has. Changes are
exact in floating point (powers of two, permutations, sums of numbers of few bits), so that both sides are within
their budgets of one truth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cemverify.cem.layers import PreconditionerConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.oracle.budgets import energy_budget, output_budget
from cemverify.conformance.properties.base import Offer, Over
from cemverify.conformance.properties.structure import led_by_heads
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.spaces import Space, mixed

CALLER = Caller(reference)
SEEDS = range(3)
H = torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]], dtype=torch.float64) / 2


def changed(case: Case, **changes: Callable[[Tensor], Tensor]) -> Case:
    return replace(case, weights={n: changes[n](w) if n in changes else w for n, w in case.weights.items()})


def all_of(case: Case, names: Any, change: Callable[[Tensor], Tensor]) -> Case:
    return changed(case, **dict.fromkeys(names, change))


def by_head(w: Tensor) -> Tensor:  # 2, -2, 2 ... (K, 1, 1)
    return (2.0 * (-1.0) ** torch.arange(w.shape[0], dtype=w.dtype))[:, None, None]


def hotter(case: Case, steps: float = 1) -> Case:
    """Twice A and tau; the step size times `steps`."""
    twice = changed(case, W_K=lambda w: 2 * w, diagonal=lambda d: 2 * d)
    return twice.having(temperature=2 * case.attention.tau, step_size=steps * case.attention.step_size)


def turned(values: Tensor) -> Tensor:
    """Blocks of four features turned by half a Hadamard matrix; the rest stays."""
    n = values.shape[-1]
    blocks = [H] * (n // 4) + [torch.eye(n % 4, dtype=torch.float64)] * (n % 4 > 0)
    whole: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return values @ whole.mT


def rotated(case: Case) -> Case:
    return replace(all_of(case, ("W_Q", "W_K", "V", "W"), turned), x=turned(case.x), h=turned(case.h))


def split(case: Case) -> Case:
    twice = changed(case, V=lambda V: torch.cat((V, V)), W=lambda W: torch.cat((W / 2, W / 2)))
    return twice.having(hidden=2 * case.mlp.hidden)


def same(values: Tensor) -> Tensor:
    return values


ATTENTION, MLP = mixed("attention", steps=(1, 2)), mixed("mlp", steps=(1, 2))
UNBIASED = {"diagonal": ("none", "shared", "per-head"), "position": ("none", "self-cross", "rotary")}
TURNING = {"position": ("none", "alibi", "self-cross", "rotary"), "norm": ("none", "scalar")}
LOW_RANK = (PreconditionerConfig("low-rank", rank=1),)

# where, the change of the case, and its effect on the update
RELATIONS: dict[str, tuple[Space, Callable[[Case], Case], Callable[[Tensor], Tensor]]] = {
    "W_Q times c and W_K over c change nothing": (
        ATTENTION, lambda c: changed(c, W_Q=lambda w: w * by_head(w), W_K=lambda w: w / by_head(w)), same),
    "A and tau doubled at half the step size change nothing": (ATTENTION, lambda c: hotter(c, 0.5), same),
    "the order of the heads does not matter": (
        Space("attention", choices=UNBIASED, steps=(1, 2)),
        lambda c: all_of(c, led_by_heads(c), lambda w: w.roll(1, 0)), same),
    "the order of the features of a head does not matter": (
        Space("attention", choices={"diagonal": UNBIASED["diagonal"]}, steps=(1, 2)),
        lambda c: all_of(c, ("W_Q", "W_K"), lambda w: w.flip(1)), same),
    "attention turns with its tokens": (Space("attention", choices=TURNING, steps=(1, 2)), rotated, turned),
    "a constant added to every bias changes nothing": (
        Space("attention", {"position": "self-cross"}, steps=(1, 2)),
        lambda c: all_of(c, ("to_self", "to_others"), lambda b: b + 1), same),
    "gain and tau doubled change nothing": (
        Space("attention", choices={"norm": ("scalar", "channel"), "diagonal": UNBIASED["diagonal"]}, steps=(1, 2)),
        lambda c: changed(c, gain=lambda g: 2 * g).having(temperature=2 * c.attention.tau), same),
    "U and V of a preconditioner may be exchanged": (
        replace(MLP, preconditioners=LOW_RANK),
        lambda c: replace(c, weights={**c.weights, "P_U": c.weights["P_V"], "P_V": c.weights["P_U"]}), same),
    "half the step size moves half as far": (
        mixed("attention"), lambda c: c.having(step_size=c.attention.step_size / 2), lambda u: u / 2),
    "the MLP is linear in its gate": (mixed("mlp"), lambda c: changed(c, W=lambda w: -2 * w), lambda u: -2 * u),
    "the order of the hidden units does not matter": (
        MLP, lambda c: all_of(c, ("V", "W"), lambda w: w.flip(0)), same),
    "the MLP turns with its tokens": (
        Space("mlp", choices={"norm": ("none", "scalar")}, steps=(1, 2)), rotated, turned),
    "a hidden unit may be two of half the gate": (MLP, split, same),
    "the order of the batch rows does not matter": (
        replace(mixed("block", apart=False), batch=2),
        lambda c: replace(c, x=c.x.flip(0), h=c.h.flip(0)), lambda u: u.flip(0)),
}  # fmt: skip


def drawn(space: Space, seed: int) -> Case:
    """A case whose numbers have the eight bits of bfloat16, so that sums of a few of them are exact."""
    case = Over(replace(space, textures=("plain",))).scattered(Offer(), seed)
    assert isinstance(case, Case)
    return case.to(torch.bfloat16).to(torch.float64)


def close(got: Tensor, expected: Tensor, *budgets: Tensor) -> bool:
    return bool(((got - expected).abs() <= sum(budgets)).all())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("space", "change", "effect"), RELATIONS.values(), ids=RELATIONS)
def test_the_update_changes_as_its_formula_says(
    space: Space, change: Callable[[Case], Case], effect: Callable[[Tensor], Tensor], seed: int
) -> None:
    case = drawn(space, seed)
    other = change(case)
    before, after = (CALLER.output(c) - c.x for c in (case, other))
    budget = output_budget(case, torch.float64)
    wider = budget.sum(-1, keepdim=True) if effect is turned else effect(budget).abs()
    assert before.abs().max() > 100 * budget.max()
    assert close(after, effect(before), wider, output_budget(other, torch.float64))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_energy_scales_with_its_temperature_and_falls_with_its_bias(seed: int) -> None:
    case = drawn(Space("attention", {"position": "self-cross"}), seed)
    louder, biased = hotter(case), all_of(case, ("to_self", "to_others"), lambda b: b + 1)
    energy, budget = CALLER.energy(case), energy_budget(case, case.x, torch.float64)
    assert close(CALLER.energy(louder), 2 * energy, 2 * budget, energy_budget(louder, case.x, torch.float64))
    lower = energy - case.attention.tau * case.attention.heads
    assert close(CALLER.energy(biased), lower, budget, energy_budget(biased, case.x, torch.float64))


@pytest.mark.parametrize("layer", ["attention", "mlp"])
@pytest.mark.parametrize("seed", SEEDS)
def test_steps_compose_and_are_not_the_layer_used_again(layer: Any, seed: int) -> None:
    case = drawn(Space(layer, steps=(2, 3, 4), step_sizes=(0.5, 0.25)), seed)
    case = replace(case, x=case.h)
    composed = reused = case.x
    for _ in range(case.layer_config.steps):
        composed = CALLER.output(replace(case, x=composed).having(steps=1))
        reused = CALLER.output(replace(case, x=reused, h=reused).having(steps=1))
    budget = output_budget(case, torch.float64)
    assert close(CALLER.output(case), composed, 2 * budget)
    assert not close(CALLER.output(case), reused, 2 * budget)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu-tanh"])
def test_the_updates_of_v_and_minus_v_are_that_of_the_identity(activation: str) -> None:
    case = drawn(Space("mlp", {"activation": activation}), 0)
    cases = case, changed(case, V=lambda V: -V), case.having(activation="identity")
    one, other, linear = (CALLER.output(c) - c.x for c in cases)
    assert close(one + other, linear, *(output_budget(c, torch.float64) for c in cases))


@pytest.mark.parametrize("seed", SEEDS)
def test_equal_tokens_get_equal_answers_whatever_the_bias(seed: int) -> None:
    case = drawn(Space("attention", choices={"position": ("none", "alibi", "self-cross")}, steps=(1, 2)), seed)
    case = replace(case, x=case.x[:, :1].expand_as(case.x), h=case.h[:, :1].expand_as(case.h))
    got, budget = CALLER.output(case), output_budget(case, torch.float64)
    assert close(got, got[:, :1].expand_as(got), budget, budget[:, :1])

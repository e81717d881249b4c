"""Drawn mutants are what they say, and what became of a sample is published as it was measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.properties import select
from cemverify.conformance.questions.cases import Case, dense_case
from cemverify.power.bank import plain
from cemverify.power.mutants.grammar import CONDITIONS, KINDS, PLACES, Call, Drawn, drawn
from suites.blind.drawing import killer, measure, samples

LOW_RANK = PreconditionerConfig("low-rank", rank=1)
ATTENTION = dense_case(AttentionConfig(6, 2, head_dim=3, norm="channel", preconditioner=LOW_RANK), 2, 5, seed=0)
MLP = dense_case(MLPConfig(6, 8, norm="channel", preconditioner=LOW_RANK), 2, 5, seed=0)
_SHARED = {"preconditioner", "root", "norm", "advance"}


def test_a_sample_depends_on_its_seed_alone() -> None:
    assert drawn(1, 200) == drawn(1, 200)
    assert drawn(1, 200) != drawn(2, 200)
    assert len(set(drawn(1, 200))) == 200


def test_every_word_of_the_grammar_is_drawn() -> None:
    sample = drawn(0, 2000)
    assert {mutant.place for mutant in sample} == set(PLACES)
    assert {mutant.kind for mutant in sample} == set(KINDS)
    assert {condition for mutant in sample for condition in mutant.conditions} == set(CONDITIONS)


@pytest.mark.parametrize("case", [ATTENTION, MLP], ids=["attention", "mlp"])
@pytest.mark.parametrize("place", PLACES)
def test_a_fault_shows_where_its_condition_holds_and_nowhere_else(place: str, case: Case) -> None:
    mutant = Drawn(place, "is one part in a thousand too large", ("for an odd number of tokens",)).subject()

    def differs(tokens: int) -> bool:
        arguments = (case.x[:, :tokens], case.h[:, :tokens], case.weights, case.config)
        right = plain.functions[case.layer](*arguments)
        return not torch.equal(mutant.functions[case.layer](*arguments), right)

    assert not differs(4)
    method_of_this_layer = {
        "attention": {"queries", "keys", "attend", "scaled", "attention_direction", *_SHARED},
        "mlp": {"sigma", "gated", "mlp_direction", *_SHARED},
    }[case.layer]
    assert differs(5) == (place in method_of_this_layer)


def a_call(**changed: Any) -> Call:
    """A call at which few conditions hold, but for what is changed."""
    x, h, weights = ATTENTION.x, ATTENTION.h, dict(ATTENTION.weights)
    return replace(Call(x, h, weights, ATTENTION.config, inference=False, thread=1), **changed)


def recording(array: Tensor) -> Tensor:
    return array.clone().requires_grad_()


def of_options(**options: Any) -> Call:
    return a_call(config=replace(ATTENTION.attention, **options))


def after(**changed: Any) -> Call:
    return a_call(before=a_call(**changed))


def zeroed(array: Tensor) -> Tensor:
    array = array.clone()
    array[:, 0] = 0.0
    return array


W = ATTENTION.weights
ROWS = torch.zeros(5, 7, 6, dtype=torch.float64)
LONG = torch.zeros(1, 14, 6, dtype=torch.float64)
WIDE = torch.zeros(1, 4, 18, dtype=torch.float64)
# for each condition a call at which it holds, and one at which it does not
HOLDING: Mapping[str, tuple[Callable[[], Call], Callable[[], Call]]] = {
    "beyond 12 tokens": (lambda: a_call(h=LONG), a_call),
    "beyond 17 features": (lambda: a_call(h=WIDE), a_call),
    "for more than 3 rows": (lambda: a_call(h=ROWS), a_call),
    "for an odd number of tokens": (a_call, lambda: a_call(h=LONG)),
    "for more than 2 steps": (lambda: of_options(steps=3), a_call),
    "for more than 3 steps": (lambda: of_options(steps=4), lambda: of_options(steps=3)),
    "for more than 5 heads": (lambda: of_options(heads=6), a_call),
    "for more than 20 hidden units": (lambda: a_call(config=replace(MLP.mlp, hidden=21)), a_call),
    "at step sizes above 2": (lambda: of_options(step_size=3.0), a_call),
    "at step sizes below 0.01": (lambda: of_options(step_size=1e-3), a_call),
    "at temperatures above 20": (lambda: of_options(temperature=30.0), a_call),
    "at temperatures below 0.05": (lambda: of_options(temperature=0.01), a_call),
    "where a token of the memory is zero": (lambda: a_call(h=zeroed(ATTENTION.h)), a_call),
    "where a weight is zero": (lambda: a_call(weights={**W, "W_K": zeroed(W["W_K"])}), a_call),
    "where states are below 1e-100": (lambda: a_call(h=ATTENTION.h * 1e-120), a_call),
    "where a state exceeds 3": (lambda: a_call(x=ATTENTION.x * 9), lambda: a_call(x=ATTENTION.x / 9)),
    "where a weight exceeds 30": (lambda: a_call(weights={**W, "W_K": 99 * W["W_K"]}), a_call),
    "where two rows are alike": (lambda: a_call(h=ROWS), a_call),
    "where x equals h": (lambda: a_call(x=ATTENTION.h), a_call),
    "where x alone records gradients": (lambda: a_call(x=recording(ATTENTION.x)), a_call),
    "where h alone records gradients": (lambda: a_call(h=recording(ATTENTION.h)), a_call),
    "where weights alone record gradients": (lambda: a_call(weights={"W_Q": recording(W["W_Q"])}), a_call),
    "where everything records gradients": (
        lambda: a_call(x=recording(ATTENTION.x), h=recording(ATTENTION.h), weights={"W_Q": recording(W["W_Q"])}),
        lambda: a_call(x=recording(ATTENTION.x)),
    ),
    "where nothing records gradients": (a_call, lambda: a_call(x=recording(ATTENTION.x))),
    "in inference mode": (lambda: a_call(inference=True), a_call),
    "where the memory is no contiguous array": (lambda: a_call(h=ATTENTION.h[..., ::2]), a_call),
    "where a weight is no contiguous array": (lambda: a_call(weights={**W, "W_K": W["W_K"][..., ::2]}), a_call),
    "after a call in inference mode": (lambda: after(inference=True), after),
    "after a call of other sizes": (lambda: after(h=LONG), after),
    "after a call in another dtype": (lambda: after(h=ATTENTION.h.float()), after),
    "after a call of another thread": (lambda: after(thread=2), after),
}


@pytest.mark.parametrize("condition", HOLDING)
def test_a_condition_holds_where_it_says_and_not_elsewhere(condition: str) -> None:
    holding, other = HOLDING[condition]
    assert CONDITIONS[condition](holding())
    assert not CONDITIONS[condition](other())


def test_every_condition_is_tried() -> None:
    # the surroundings of a call itself
    seen: list[bool] = []
    with torch.autocast("cpu", torch.bfloat16):
        assert CONDITIONS["under autocast"](a_call())
    assert not CONDITIONS["under autocast"](a_call())

    def look(h: Tensor) -> Tensor:
        seen.append(CONDITIONS["under vmap"](a_call(h=h)))
        return h

    torch.func.vmap(look)(ATTENTION.h)
    assert seen == [True]
    assert {*HOLDING, "under autocast", "under vmap"} == set(CONDITIONS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_fault_changes_numbers_or_gradients(kind: str) -> None:
    array = torch.linspace(1.0, 9.0, 12, dtype=torch.float64).reshape(3, 4).requires_grad_()
    spoiled = KINDS[kind](array)
    assert spoiled.shape == array.shape
    assert not torch.equal(spoiled, array) or not spoiled.requires_grad


def test_a_mutant_is_killed_by_the_first_property_that_it_violates(tmp_path: Path) -> None:
    effort = Effort(examples=12, shrink=False)
    always = Drawn("sigma", "is one part in a thousand too large", ("where nothing records gradients",))
    assert killer(always.subject(), select(["gradient/mlp/silu"]), effort) == "gradient/mlp/silu"
    assert killer(plain, select(["gradient/mlp/silu"]), effort) is None


def test_a_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    series = tmp_path / "series.jsonl"
    monkeypatch.setattr("suites.blind.drawing.chosen_properties", lambda: list(select(["gradient/mlp/silu"])))
    measure(2, 3, "abc", series)
    before = series.read_text()
    measure(3, 3, "abc", series)
    assert series.read_text().startswith(before)
    assert [json.loads(line)["mutant"] for line in series.read_text().splitlines()] == [str(m) for m in drawn(3, 3)]
    (sample,) = samples(series)
    assert (sample.tested, sample.died, len(sample.survivors)) == (3, sample.died, 3 - sample.died)

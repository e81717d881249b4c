"""What the oracle remembers: the same case is computed once, and whatever differs is another case."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.plain import Plain
from cemverify.conformance.judging import engine
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.oracle import golden as golden_answers
from cemverify.conformance.oracle.functions import function_of
from cemverify.conformance.oracle.golden import golden, products
from cemverify.conformance.oracle.perturbation import Perturbed
from cemverify.conformance.oracle.remembering import remembered, remembering
from cemverify.conformance.properties import by_id
from cemverify.conformance.properties.training import products_are_right
from cemverify.conformance.questions.cases import Case, dense_case


@pytest.fixture
def case() -> Case:
    return dense_case(AttentionConfig(dim=4, heads=2, head_dim=2), 1, 3, seed=0)


def test_a_case_of_the_same_numbers_is_computed_once(case: Case) -> None:
    computed: list[Case] = []

    @remembered
    def answer(case: Case, scale: float) -> Tensor:
        computed.append(case)
        return scale * case.x

    with remembering():
        first = answer(case, 2.0)
        assert answer(case.to(torch.float64), 2.0) is first
        answer(case, 3.0)
        answer(case.to(torch.float32), 2.0)
        answer(case.having(steps=2), 2.0)
        answer(replace(case, x=case.x + 1), 2.0)
        answer(replace(case, h=case.x), 2.0)
        answer(replace(case, h=case.x.clone()), 2.0)  # other products: x and h are two arrays
        answer(replace(case, weights={**case.weights, "W_K": case.weights["W_Q"]}), 2.0)
        assert len(computed) == 8
    answer(case, 2.0)
    assert len(computed) == 9


def test_products_of_arrays_that_lie_otherwise_in_memory_are_computed_anew(case: Case) -> None:
    apart = replace(case, x=case.x.mT.contiguous().mT)
    assert torch.equal(apart.x, case.x)
    assert apart.x.stride() != case.x.stride()
    with remembering():
        assert golden(case) is golden(case)
        assert golden(apart) is not golden(case)


def test_one_number_of_every_other_is_a_case_too(case: Case) -> None:
    apart = replace(case, x=torch.stack((case.x, case.x), -1)[:1, :1, :, 0], h=case.h[:1, :1])
    with remembering():
        assert torch.equal(golden(apart), golden(replace(apart, x=apart.x.contiguous())))


def test_within_a_block_another_remembers_the_same(case: Case) -> None:
    with remembering():
        with remembering():
            first = golden(case)
        assert golden(case) is first
    assert golden(case) is not first


@pytest.mark.parametrize("name", ["attention", "attention_energy"])
def test_the_golden_products_of_a_case_are_computed_once(
    name: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Case] = []

    def counted(case: Case, *arguments: Any) -> dict[str, Tensor]:
        calls.append(case)
        return products(case, *arguments)

    monkeypatch.setattr(golden_answers, "products", counted)
    caller = Caller(reference.reference)
    with remembering():
        first = products_are_right(caller, case, function_of(name))
        computed = len(calls)
        assert (
            products_are_right(caller, case, function_of(name)).comparisons[1].expected
            is first.comparisons[1].expected
        )
    assert computed > 0
    assert len(calls) == computed


@pytest.mark.parametrize(
    "id_", ["gradient/attention/plain", "training/attention/plain", "descent/attention/along-steps"]
)
def test_what_is_remembered_changes_no_record(id_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    records = []
    for remember in (remembering, nullcontext):
        monkeypatch.setattr(engine, "remembering", remember)
        record = engine.judge_property(Plain().subject(), by_id(id_), Effort(examples=15))
        records.append({**record.describe(), "seconds": 0})
    assert records[0] == records[1]


def test_what_autograd_or_a_dispatch_mode_watches_is_computed(case: Case) -> None:
    cotangent = torch.ones_like(case.x)
    expected = products(case, cotangent)
    with remembering():
        exact = golden(case)
        with Perturbed(torch.Generator().manual_seed(0)):
            assert not torch.equal(golden(case), exact)
        remembered_products = products(case, cotangent)
    assert all(torch.equal(remembered_products[name], product) for name, product in expected.items())

"""A relation between two answers of a layer is violated by what breaks it, not by the roundoff of another fault."""

from __future__ import annotations

import pytest
import torch

from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.oracle.budgets import output_budget
from cemverify.conformance.oracle.relations import relation_budget
from cemverify.conformance.questions.cases import dense_case
from suites.kit.examples import README_MISTAKEN, defined
from suites.kit.judging import judged

mistaken = defined(README_MISTAKEN)

OBEYED = (
    "structure/attention/head-order",
    "structure/attention/causality",
    "structure/attention/batch-independence",
    "metamorphic/attention/equal-tokens",
    "metamorphic/attention/head-permutation",
    "metamorphic/attention/batch-permutation",
    "metamorphic/attention/step-size",
    "recursion/attention/steps-compose",
)


@pytest.mark.parametrize("id_", OBEYED)
def test_a_faulty_layer_keeps_the_relations_that_it_obeys(id_: str) -> None:
    for seed in range(3):
        record = judged(mistaken, id_, seed=seed)
        assert record.verdict == Verdict.HOLDS, record.reason


@pytest.mark.parametrize("id_", ["gradient/attention/plain", "metamorphic/attention/rescaled-heads"])
def test_and_violates_those_that_its_fault_breaks(id_: str) -> None:
    assert judged(mistaken, id_).verdict == Verdict.VIOLATED


def test_for_a_right_layer_the_bound_is_its_budget() -> None:
    case = dense_case(AttentionConfig(6, 2, head_dim=3, temperature=1.0), 2, 5, 1)
    answer = Caller(reference).output(case)
    bound, budget = relation_budget(case, answer, torch.float64), output_budget(case, torch.float64)
    torch.testing.assert_close(bound, budget, rtol=1e-9, atol=0.0)

"""Verdicts, denominators and determinism of a run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cemverify import check_implementation, energy_layer, implementation
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.faults import Discard
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property, not_offered
from cemverify.conformance.judging.verdicts import Record, Verdict, counts, exit_code
from cemverify.conformance.oracle.evidence import Comparison, Evidence
from cemverify.conformance.properties import select
from cemverify.conformance.properties.base import By
from cemverify.conformance.questions.cases import Case

PLAIN = select(["gradient/attention/plain"])[0]


def judge(attention: Callable[..., Any], effort: Effort | None = None) -> Record:
    return judge_property(implementation(attention=attention), PLAIN, effort or Effort(examples=20))


def test_the_same_seed_gives_the_same_record() -> None:
    first, second = (judge(reference.attention) for _ in range(2))
    assert (first.margin, first.examples, first.telling) == (second.margin, second.examples, second.telling)


def test_another_seed_asks_other_questions() -> None:
    assert judge(reference.attention).margin != judge(reference.attention, Effort(examples=20, seed=1)).margin


def test_a_violation_carries_the_smallest_case_and_both_sides() -> None:
    record = judge(lambda x, h, w, c: 2 * reference.attention(x, h, w, c))
    assert record.verdict == Verdict.VIOLATED
    assert record.counterexample is not None
    assert record.counterexample["case"]["tokens"] == record.counterexample["case"]["dim"] == 1
    assert record.counterexample["comparison"]["got"] != record.counterexample["comparison"]["expected"]


def test_modes_and_defaults_that_a_call_changes_are_restored() -> None:
    def meddles(x: Tensor, h: Tensor, w: dict[str, Tensor], c: Any) -> Tensor:
        output = reference.attention(x, h, w, c)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float16)
        torch.set_default_device("meta")
        os.chdir("/")
        return output

    before = os.getcwd()
    assert judge(meddles).verdict == Verdict.HOLDS
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_default_device().type == "cpu"
    assert os.getcwd() == before


def test_what_the_drawing_of_questions_raises_is_the_suites_error() -> None:
    def broken(source: str, offer: object) -> Any:
        raise RuntimeError("no questions")

    record = judge_property(reference.reference, replace(PLAIN, questions=By(broken)), Effort())
    assert record.verdict == Verdict.SUITE_ERROR
    assert record.reason is not None
    assert "no questions" in record.reason


def test_a_budget_of_time_ends_a_search_of_any_number_of_examples() -> None:
    started = time.monotonic()
    record = judge(reference.attention, Effort(examples=10**6, seconds=1.0))
    assert record.verdict == Verdict.INCONCLUSIVE
    assert time.monotonic() - started < 20


def test_an_implementation_that_changes_its_mind_is_inconclusive_or_violated_but_never_green() -> None:
    calls = iter(range(10**9))

    def moody(x: Tensor, h: Tensor, w: dict[str, Tensor], c: Any) -> Tensor:
        return reference.attention(x, h, w, c) + (1.0 if next(calls) == 7 else 0.0)

    record = judge(moody)
    assert record.verdict == Verdict.INCONCLUSIVE
    assert record.reason is not None
    assert "non-deterministic" in record.reason


def test_a_violation_that_cannot_be_judged_again_stands() -> None:
    judged: list[str] = []

    def check(caller: Caller, case: Case) -> Evidence:
        judged.append("once")
        if len(judged) > 1:
            raise Discard("it would take too long now")
        return Evidence([Comparison("wrong", torch.ones(1), torch.zeros(1), torch.zeros(1))])

    scattered_alone = replace(PLAIN, check=check, sources=(), scattered=1.0)
    record = judge_property(reference.reference, scattered_alone, Effort(examples=4, shrink=False))
    assert record.verdict == Verdict.VIOLATED, record.reason
    assert len(judged) > 1


def test_one_difference_is_proof_enough_against_determinism() -> None:
    # three calls an example: the ninth repeats the seventh
    calls = iter(range(10**9))

    def moody(x: Tensor, h: Tensor, w: dict[str, Tensor], c: Any) -> Tensor:
        return reference.attention(x, h, w, c) + (1.0 if next(calls) == 8 else 0.0)

    (determinism,) = select(["contract/attention/determinism"])
    record = judge_property(implementation(attention=moody), determinism, Effort())
    assert record.verdict == Verdict.VIOLATED


def test_a_number_that_is_none_is_worse_than_any_other() -> None:
    good = Comparison("good", torch.zeros(1), torch.zeros(1), torch.zeros(1))
    bad = Comparison("bad", torch.full((1,), torch.nan), torch.zeros(1), torch.ones(1))
    assert Evidence([good, bad]).worst.claim == "bad"


def test_properties_for_the_other_kind_only_are_refused() -> None:
    with pytest.raises(ValueError, match="none of these properties applies to this kind of implementation"):
        check_implementation(reference.reference, properties=["gradient/layer"])


def test_an_unusable_device_is_refused_before_any_question() -> None:
    with pytest.raises(ValueError, match="device 'cuda:99' is not available"):
        check_implementation(reference.reference, device="cuda:99")


def test_a_dtype_that_is_not_offered_is_not_asked() -> None:
    subject = implementation(mlp=reference.mlp, not_offered=("dtype:bfloat16",))
    record = judge_or_absence(subject, "gradient/mlp/silu", torch.bfloat16)
    assert record is not None
    assert record.verdict == Verdict.NOT_OFFERED


def test_options_of_which_none_is_offered_leave_a_property_unasked() -> None:
    subject = implementation(mlp=reference.mlp, not_offered=("activation",))
    record = judge_or_absence(subject, "gradient/mlp/any-options", torch.float64)
    assert record is not None
    assert record.reason == "activation: none is offered"


def judge_or_absence(subject: Any, id_: str, dtype: torch.dtype) -> Record | None:
    """The record of a property that is not asked, if it is not."""
    (property_,) = select([id_])
    return not_offered(property_, subject.not_offered, dtype)


def test_a_spent_time_budget_is_inconclusive() -> None:
    record = judge(reference.attention, Effort(examples=50, seconds=1e-9))
    assert record.verdict == Verdict.INCONCLUSIVE
    assert record.examples == 0


def test_a_property_whose_examples_tell_nothing_is_not_green() -> None:
    layer = energy_layer(update=lambda x, m: 0 * x, energy=lambda x, m: 0 * x[..., 0], dim=2)
    record = judge_property(layer, select(["gradient/layer/energy"])[0], Effort(examples=10))
    assert record.verdict == Verdict.INCONCLUSIVE
    assert record.examples > 0


def test_a_declared_absence_is_counted_with_its_reason() -> None:
    records = check_implementation(
        implementation(attention=reference.attention, not_offered=("norm",)), properties=["gradient/attention/norm-*"]
    )
    assert counts(records) == {
        "applicable": 3,
        "run": 0,
        "holds": 0,
        "violated": 0,
        "known": 0,
        "not_enforced": 0,
        "inconclusive": 0,
        "not_offered": 3,
        "not_asked": 0,
        "suite_error": 0,
    }
    assert all(r.reason and "declared" in r.reason for r in records)


def test_a_check_can_end_at_the_first_violation() -> None:
    wrong = implementation(attention=lambda x, h, w, c: 2 * reference.attention(x, h, w, c))
    properties = ["gradient/mlp/silu", "gradient/attention/plain", "gradient/attention/norm-scalar"]
    results = check_implementation(wrong, properties=properties, examples=5, first=True)
    offered = [record for record in results if record.verdict != Verdict.NOT_OFFERED]
    assert [record.id for record in offered] == ["gradient/attention/plain"]
    assert results.finished.unasked == ["gradient/attention/norm-scalar"]
    assert "1 not asked" in str(results)


def test_what_is_not_declared_absent_is_tested() -> None:
    def without_norm(x: Tensor, h: Tensor, w: dict[str, Tensor], c: Any) -> Tensor:
        if c.norm != "none":
            raise NotImplementedError("no norm inside")
        return reference.attention(x, h, w, c)

    records = check_implementation(
        implementation(attention=without_norm), properties=["gradient/attention/norm-scalar"], examples=5
    )
    assert [r.verdict for r in records] == [Verdict.VIOLATED]


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["holds"], 0),
        (["holds", "not offered"], 0),
        (["holds", "violated", "inconclusive"], 1),
        (["holds", "inconclusive"], 2),
        (["holds", "suite error"], 2),
        (["not offered"], 2),
        ([], 2),
    ],
)
def test_exit_codes(verdicts: list[str], code: int) -> None:
    assert exit_code([Record("a/b", "", "", Verdict(v)) for v in verdicts]) == code


def test_an_attention_only_implementation_with_few_features_is_asked_only_what_it_can_answer() -> None:
    def standard(x: Tensor, h: Tensor, w: dict[str, Tensor], c: Any) -> Tensor:
        assert x is h or torch.equal(x, h)
        assert c.steps == 1
        assert c.step_size == 1.0
        assert c.heads * c.R == c.dim
        return reference.attention(x, h, w, c)

    options = ("diagonal", "position", "preconditioner", "norm", "validation", "vmap", "compile")
    absent = ("start", "steps", "step-size", "temperature", "head-dim", *options)
    records = check_implementation(implementation(attention=standard, not_offered=absent), examples=6)
    assert {r.verdict for r in records} == {Verdict.HOLDS, Verdict.NOT_OFFERED}

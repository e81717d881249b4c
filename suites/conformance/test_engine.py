"""Verdicts, denominators and determinism of a run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cemverify import check_implementation, energy_layer, implementation
from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.faults import Discard
from cemverify.conformance.judging.controls import control
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property, not_offered
from cemverify.conformance.judging.search import PropertySearch, SuiteBroke
from cemverify.conformance.judging.verdicts import Record, Verdict, counts, exit_code
from cemverify.conformance.oracle.evidence import Comparison, Evidence
from cemverify.conformance.properties import Property, catalogue, select
from cemverify.conformance.properties.base import CONTROLS, By
from cemverify.conformance.questions.cases import Case, dense_case
from cemverify.conformance.questions.contexts import MODES, USUAL, Context, InContext
from cemverify.processes.time_limits import CoreBudget
from suites.kit.judging import judged

PLAIN = select(["gradient/attention/plain"])[0]


def judge(attention: Callable[..., Any], effort: Effort | None = None) -> Record:
    return judge_property(implementation(attention=attention), PLAIN, effort or Effort(examples=20))


def test_the_same_seed_gives_the_same_record_and_another_seed_asks_other_questions() -> None:
    first, second, other = (judge(reference.attention, Effort(examples=20, seed=seed)) for seed in (0, 0, 1))
    assert other.margin != first.margin
    assert (first.margin, first.examples, first.telling) == (second.margin, second.examples, second.telling)


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
    assert "no questions" in str(record.reason)


@pytest.mark.parametrize("seconds", [1e-9, 1.0])
def test_a_budget_of_time_ends_a_search_of_any_number_of_examples(seconds: float) -> None:
    started = time.monotonic()
    record = judge(reference.attention, Effort(examples=10**6, seconds=seconds))
    assert record.verdict == Verdict.INCONCLUSIVE
    assert (record.examples > 0) == (seconds == 1.0)
    assert time.monotonic() - started < 20


def moody(call: int) -> Any:
    """Attention whose answer to this call is another than to all others."""
    calls = iter(range(10**9))

    def attention(x: Tensor, h: Tensor, w: dict[str, Tensor], c: Any) -> Tensor:
        return reference.attention(x, h, w, c) + (1.0 if next(calls) == call else 0.0)

    return attention


def test_an_implementation_that_changes_its_mind_is_inconclusive_or_violated_but_never_green() -> None:
    record = judge(moody(7))
    assert record.verdict == Verdict.INCONCLUSIVE
    assert "non-deterministic" in str(record.reason)
    # one difference is proof enough against determinism: three calls an example, and the ninth repeats the seventh
    (determinism,) = select(["contract/attention/determinism"])
    assert judge_property(implementation(attention=moody(8)), determinism, Effort()).verdict == Verdict.VIOLATED


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


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"properties": ["gradient/layer"]}, "none of these properties applies to this kind of implementation"),
        ({"device": "cuda:99"}, "device 'cuda:99' is not available"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_any_question(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_implementation(reference.reference, **options)


@pytest.mark.parametrize(
    ("absent", "id_", "dtype", "reason"),
    [
        ("dtype:bfloat16", "gradient/mlp/silu", torch.bfloat16, "dtype:bfloat16"),
        ("activation", "gradient/mlp/any-options", torch.float64, "activation: none is offered"),
    ],
)
def test_what_is_not_offered_is_not_asked(absent: str, id_: str, dtype: torch.dtype, reason: str) -> None:
    (property_,) = select([id_])
    record = not_offered(property_, implementation(mlp=reference.mlp, not_offered=(absent,)).not_offered, dtype)
    assert record is not None
    assert record.verdict == Verdict.NOT_OFFERED
    assert reason in str(record.reason)


def test_a_property_whose_examples_tell_nothing_is_not_green() -> None:
    layer = energy_layer(update=lambda x, m: 0 * x, energy=lambda x, m: 0 * x[..., 0], dim=2)
    record = judge_property(layer, select(["gradient/layer/energy"])[0], Effort(examples=10))
    assert record.verdict == Verdict.INCONCLUSIVE
    assert record.examples > 0


def test_a_declared_absence_is_counted_with_its_reason() -> None:
    records = check_implementation(
        implementation(attention=reference.attention, not_offered=("norm",)), properties=["gradient/attention/norm-*"]
    )
    assert {name: n for name, n in counts(records).items() if n} == {"applicable": 3, "not_offered": 3}
    assert all(r.reason and "declared" in r.reason for r in records)


def test_a_check_can_end_at_the_first_violation() -> None:
    wrong = implementation(attention=lambda x, h, w, c: 2 * reference.attention(x, h, w, c))
    properties = ["gradient/attention/plain", "gradient/attention/norm-scalar"]
    results = check_implementation(wrong, properties=properties, examples=5, first=True)
    assert [record.id for record in results] == properties[:1]
    assert results.finished.unasked == properties[1:]


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


# --- controls ---


def anything_goes(caller: Caller, case: Case) -> Evidence:
    """A check that cannot fail."""
    got = caller.output(case)
    return Evidence([Comparison("whatever", got, got, torch.zeros(()))])


def rarely_tells(caller: Caller, case: Case) -> Evidence:
    """A check whose examples tell only for a single token of a single dimension in a single row."""
    return replace(anything_goes(caller, case), telling=case.x.numel() == 1)


def controlled(**changes: Any) -> Record:
    return judge_property(reference.reference, replace(PLAIN, **changes), Effort(examples=15))


def test_every_control_fails_a_property_that_discriminates() -> None:
    record = controlled(controls=frozenset({"identity", "zero", "constant", "random", "shuffled"}))
    assert record.verdict == Verdict.HOLDS
    assert set(record.controls.values()) == {"failed"}


def test_a_property_that_a_control_passes_is_inconclusive_and_names_it() -> None:
    record = controlled(check=anything_goes, controls=frozenset({"identity"}))
    assert record.verdict == Verdict.INCONCLUSIVE
    assert record.controls == {"identity": "passed"}
    assert record.reason is not None
    assert "returns x unchanged" in record.reason


def test_too_few_telling_examples_are_inconclusive_with_premise_and_share() -> None:
    record = controlled(check=rarely_tells, premise="one number is all there is", floor=0.9)
    assert record.verdict == Verdict.INCONCLUSIVE
    assert record.reason is not None
    assert "one number is all there is" in record.reason
    assert record.share is not None
    assert f"{100 * record.share:.3g} %" in record.reason
    described = record.describe()
    assert described["share_telling"] == round(record.telling / record.examples, 4)
    assert described["premise"] == "one number is all there is"


def test_a_control_gives_the_same_answer_twice_and_keeps_the_shape() -> None:
    case = dense_case(AttentionConfig(4, 2, temperature=1.0), 2, 3, 0)
    for name in CONTROLS:
        caller = control(name, Caller(reference.reference))
        first, second = caller.output(case), caller.output(case)
        assert first.shape == case.x.shape
        assert torch.equal(first, second)


# --- where there is no right answer, or no kernel ---


def test_a_missing_kernel_is_no_violation_and_the_feature_to_declare_is_said() -> None:
    def attention(*arguments: Any) -> Tensor:
        rows = reference.attention(*arguments)
        moved: Tensor = torch.linalg.solve(torch.eye(rows.shape[-1], dtype=rows.dtype), rows.mT).mT
        return moved

    record = judged(implementation(attention=attention), "precision/attention/bfloat16")
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
        search = PropertySearch(
            Caller(reference.reference, property_.dtype or torch.float64), property_, CoreBudget(60.0)
        )
        with suppress(SuiteBroke):  # the case of a sequence is another
            search.look_at(question)
        assert search.tally.violation is None

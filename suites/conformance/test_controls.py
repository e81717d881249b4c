"""A green that a trivial answer would have got too is no green, nor is one whose examples told nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations import reference
from cemverify.conformance.judging.controls import control
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge
from cemverify.conformance.properties import select
from cemverify.conformance.properties.base import CONTROLS
from cemverify.conformance.questions.cases import Case, dense_case

PLAIN = select(["gradient/attention/plain"])[0]
FEW = Effort(examples=15)


def anything_goes(caller: Caller, case: Case) -> Evidence:
    """A check that cannot fail."""
    got = caller.output(case)
    return judge(Comparison("whatever", got, got, torch.zeros(())))


def rarely_tells(caller: Caller, case: Case) -> Evidence:
    """A check whose examples tell only for a single token of a single dimension in a single row."""
    return replace(anything_goes(caller, case), telling=case.x.numel() == 1)


def judged(**changes: Any) -> Record:
    return judge_property(reference.reference, replace(PLAIN, **changes), FEW)


def test_every_control_fails_a_property_that_discriminates() -> None:
    record = judged(controls=frozenset({"identity", "zero", "constant", "random", "shuffled"}))
    assert record.verdict == Verdict.HOLDS
    assert set(record.controls.values()) == {"failed"}


def test_a_property_that_a_control_passes_is_inconclusive_and_names_it() -> None:
    record = judged(check=anything_goes, controls=frozenset({"identity"}))
    assert record.verdict == Verdict.INCONCLUSIVE
    assert record.controls == {"identity": "passed"}
    assert record.reason is not None
    assert "returns x unchanged" in record.reason


def test_too_few_telling_examples_are_inconclusive_with_premise_and_share() -> None:
    record = judged(check=rarely_tells, premise="one number is all there is", floor=0.9)
    assert record.verdict == Verdict.INCONCLUSIVE
    assert record.reason is not None
    assert "one number is all there is" in record.reason
    assert record.share is not None
    assert f"{100 * record.share:.3g} %" in record.reason
    described = record.describe()
    assert described["share_telling"] == round(record.telling / record.examples, 4)
    assert described["premise"] == "one number is all there is"


def test_a_control_gives_the_same_answer_twice_and_keeps_the_shape() -> None:
    case = dense_case(reference_config(), 2, 3, 0)
    for name in CONTROLS:
        caller = control(name, Caller(reference.reference))
        first, second = caller.output(case), caller.output(case)
        assert first.shape == case.x.shape
        assert torch.equal(first, second)


def reference_config() -> Any:
    from cemverify.cem.layers import AttentionConfig

    return AttentionConfig(4, 2, temperature=1.0)


def test_an_unknown_control_is_an_error() -> None:
    case = dense_case(reference_config(), 1, 2, 0)
    with pytest.raises(Exception, match="clever"):
        control("clever", Caller(reference.reference)).output(case)

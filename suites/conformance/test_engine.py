"""Verdicts, denominators and determinism of a run."""

from __future__ import annotations

import gc
import itertools
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis.errors import StopTest
from torch import Tensor

from cemverify import check_implementation, implementation
from cemverify.catalogue.budgets import Asked
from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.process_state import ProcessState
from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.faults import Discard
from cemverify.conformance.judging.conclusion import conclude
from cemverify.conformance.judging.controls import control
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.search import PropertySearch, SearchTally, SuiteBroke
from cemverify.conformance.judging.verdicts import Record, Verdict, counts, exit_code
from cemverify.conformance.oracle.evidence import Comparison, Evidence
from cemverify.conformance.properties import Property, catalogue, select
from cemverify.conformance.properties.base import CONTROLS
from cemverify.conformance.questions.aims import Questions
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


def test_modes_and_defaults_that_a_call_changes_are_restored() -> None:
    def meddles(x: Tensor, h: Tensor, w: dict[str, Tensor], c: Any) -> Tensor:
        output = reference.attention(x, h, w, c)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float16)
        torch.set_default_device("meta")
        os.chdir("/")
        return output

    def state() -> tuple[object, ...]:
        return torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_default_device(), os.getcwd()

    before = state()
    assert judge(meddles).verdict == Verdict.HOLDS
    assert state() == before


def test_what_the_drawing_of_questions_raises_is_the_suites_error() -> None:
    class Broken(Questions):
        def search(self, offer: object) -> Any:
            raise RuntimeError("no questions")

    record = judge_property(reference.reference, replace(PLAIN, questions=Broken()), Effort())
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
    """Attention with a different answer in one call."""
    calls = iter(range(10**9))

    def attention(x: Tensor, h: Tensor, w: dict[str, Tensor], c: Any) -> Tensor:
        return reference.attention(x, h, w, c) + (1.0 if next(calls) == call else 0.0)

    return attention


def test_an_implementation_that_changes_its_mind_is_inconclusive_or_violated_but_never_green() -> None:
    record = judge(moody(7))
    assert record.verdict == Verdict.INCONCLUSIVE
    assert "non-deterministic" in str(record.reason)
    # one difference refutes determinism: an example makes three calls, and the ninth repeats the seventh
    assert judged(implementation(attention=moody(8)), "contract/attention/determinism").verdict == Verdict.VIOLATED


def test_a_violation_that_cannot_be_judged_again_stands() -> None:
    judged: list[str] = []

    def check(caller: Caller, case: Case) -> Evidence:
        judged.append("once")
        if len(judged) > 1:
            raise Discard("it would take too long now")
        return Evidence([Comparison("wrong", torch.ones(1), torch.zeros(1), torch.zeros(1))])

    scattered_alone = replace(PLAIN, check=check, asked=Asked(small=0))
    record = judge_property(reference.reference, scattered_alone, Effort(examples=4, shrink=False))
    assert record.verdict == Verdict.VIOLATED, record.reason
    assert len(judged) > 1


def test_a_declared_absence_is_counted_with_its_reason() -> None:
    without = implementation(attention=reference.attention, not_offered=("norm",))
    records = check_implementation(without, properties=["gradient/attention/norm-*"])
    assert {name: n for name, n in counts(records).items() if n} == {"applicable": 3, "not_offered": 3}
    assert all(r.reason and "declared" in r.reason for r in records)


def test_a_check_can_end_at_the_first_violation() -> None:
    wrong = implementation(attention=lambda x, h, w, c: 2 * reference.attention(x, h, w, c))
    properties = ["gradient/attention/plain", "gradient/attention/norm-scalar"]
    results = check_implementation(wrong, properties=properties, examples=5, first=True)
    (record,) = results
    assert {record.id, *results.finished.unasked} == set(properties)


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


def test_an_mlp_of_relu_alone_beside_attention_is_asked_no_other_activation() -> None:
    both = implementation(
        attention=reference.attention,
        mlp=lambda x, h, w, c: reference.mlp(x, h, w, replace(c, activation="relu")),
        not_offered=[f"activation:{name}" for name in ACTIVATIONS if name != "relu"],
    )
    assert {r.verdict for r in check_implementation(both, properties=["contract/all/*"])} == {Verdict.HOLDS}


def anything_goes(caller: Caller, case: Case) -> Evidence:
    """A check that cannot fail."""
    got = caller.output(case)
    return Evidence([Comparison("whatever", got, got, torch.zeros(()))])


def controlled(**changes: Any) -> Record:
    return judge_property(reference.reference, replace(PLAIN, **changes), Effort(examples=15))


def test_a_property_that_a_control_passes_is_inconclusive_and_names_it() -> None:
    record = controlled(check=anything_goes, controls=frozenset({"identity"}))
    assert (record.verdict, record.controls) == (Verdict.INCONCLUSIVE, {"identity": "passed"})
    assert "returns x unchanged" in str(record.reason)


def test_too_few_telling_examples_are_inconclusive_with_premise_and_share() -> None:
    record = controlled(
        check=lambda caller, case: replace(anything_goes(caller, case), telling=case.x.numel() == 1),
        premise="one number is all there is",
        floor=0.9,
    )
    share, described = record.telling / record.examples, record.describe()
    assert record.verdict == Verdict.INCONCLUSIVE
    assert "one number is all there is" in str(record.reason)
    assert f"{100 * share:.3g} %" in str(record.reason)
    assert (described["share_telling"], described["premise"]) == (round(share, 4), "one number is all there is")


def test_few_examples_do_not_undecide_a_right_layer() -> None:
    ids = ("precision/attention/bfloat16-any-options", "training/mlp/any-options", "sizes/mlp/bfloat16")
    for id_, seed in itertools.product(ids, range(4)):
        record = judged(reference.reference, id_, examples=10, seed=seed)
        assert record.verdict == Verdict.HOLDS, record.reason


def test_a_control_gives_the_same_answer_twice_and_keeps_the_shape() -> None:
    case = dense_case(AttentionConfig(4, 2, temperature=1.0), 2, 3, 0)
    for name in CONTROLS:
        caller = control(name, Caller(reference.reference))
        first, second = caller.output(case), caller.output(case)
        assert first.shape == case.x.shape
        assert torch.equal(first, second)


def test_a_missing_kernel_is_no_violation_and_the_feature_to_declare_is_said() -> None:
    def attention(*arguments: Any) -> Tensor:
        rows = reference.attention(*arguments)
        moved: Tensor = torch.linalg.solve(torch.eye(rows.shape[-1], dtype=rows.dtype), rows.mT).mT
        return moved

    record = judged(implementation(attention=attention), "precision/attention/bfloat16")
    assert record.verdict == Verdict.INCONCLUSIVE
    assert "write not_offered=('dtype:bfloat16',)" in str(record.reason)


def exploding() -> Case:
    """relu^2 squares its state in each of nine steps: the right answer is no longer a finite number."""
    x, h, V, W, d = (torch.tensor(a).double() for a in ([[[0, 2]]], [[[-2, 0]]], [[-1, 1]], [[-1, 0]], [0, 0]))
    config = MLPConfig(2, 1, activation="relu2", steps=9, preconditioner=PreconditionerConfig("diagonal"))
    return Case(config, x, h, {"V": V, "W": W, "P_d": d})


@pytest.mark.parametrize("property_", [p for p in catalogue() if "/mlp/" in p.id], ids=lambda p: p.id)
def test_where_the_right_answer_overflows_no_property_calls_an_answer_wrong(property_: Property) -> None:
    modes = MODES if property_.family == "contexts" else (USUAL,)
    for mode in modes:
        question = InContext(exploding(), Context(mode)) if property_.family == "contexts" else exploding()
        caller = Caller(reference.reference, property_.dtype or torch.float64)
        search = PropertySearch(caller, property_, CoreBudget(60.0))
        with suppress(SuiteBroke):  # a property of sequences takes another kind of case
            search.look_at(question)
        assert search.tally.violation is None


(UNTOUCHED,) = select(["contract/attention/inputs-unchanged"])
QUICKLY = Effort(examples=4, shrink=False)
WRONG, NOT_AN_ARRAY = "update = -eta P grad energy, T times", "not an array"


def answering(change: Callable[[Tensor], Any], arrays: Literal["torch", "numpy"] = "torch") -> Any:
    """An implementation whose attention applies `change` to the right answer."""

    def attention(x: Any, h: Any, w: Any, c: Any) -> Any:
        x, h = (torch.as_tensor(np.asarray(a)) for a in (x, h))
        return change(reference.attention(x, h, {name: torch.as_tensor(np.asarray(a)) for name, a in w.items()}, c))

    return implementation(attention=attention, mlp=reference.mlp, arrays=arrays)


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def _raise(error: BaseException) -> None:
    raise error


def _recur(_: Tensor) -> None:
    _recur(_)


class _Liar(Tensor):
    """An array of zeros that lies about itself, or raises."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return True


# a change of the right answer, the cause of the verdict (None: it holds), and words of the reason
ANSWERS: dict[str, tuple[Callable[[Tensor], Any], str | None, str]] = {
    # unusual, but right
    "that records gradients": (lambda r: r.clone().requires_grad_(), None, ""),
    "with strides": (lambda r: torch.stack((0 * r, r), -1)[..., 1], None, ""),
    "with a lazy conjugate": (lambda r: torch.complex(r, torch.zeros_like(r)).conj().real, None, ""),
    "of a subclass": (lambda r: r.as_subclass(type("Silent", (Tensor,), {})), None, ""),
    "in NumPy": (Tensor.numpy, None, ""),
    "in NumPy, not writable": (lambda r: np.broadcast_to(r.numpy(), tuple(r.shape)), None, ""),
    "in NumPy, in the other byte order": (lambda r: r.numpy().astype(">f8"), None, ""),
    "in NumPy, long double": (lambda r: r.numpy().astype(np.longdouble), None, ""),
    # not an array, or not one of numbers
    "nothing": (lambda r: None, NOT_AN_ARRAY, ""),
    "a memory view": (lambda r: memoryview(r.numpy().tobytes()), NOT_AN_ARRAY, ""),
    "a pair with the answer first": (lambda r: (r, None), NOT_AN_ARRAY, ""),
    "an endless iterator": (lambda r: itertools.count(), NOT_AN_ARRAY, ""),
    "a protocol that raises": (lambda r: type("Odd", (), {"__array__": lambda *_, **__: 1 / 0})(), NOT_AN_ARRAY, ""),
    "complex numbers": (lambda r: r.to(torch.complex64), NOT_AN_ARRAY, ""),
    "sparse rows": (lambda r: r[0].to_sparse_csr(), NOT_AN_ARRAY, ""),
    "on no device": (lambda r: torch.empty_like(r, device="meta"), NOT_AN_ARRAY, ""),
    "an array of strings": (lambda r: np.full(tuple(r.shape), "0.5"), NOT_AN_ARRAY, ""),
    "an array of complex numbers": (lambda r: r.numpy().astype(complex), NOT_AN_ARRAY, ""),
    # exceptions, including those that a test runner treats as its own
    "an error": (lambda _: 1 / 0, "raised", "ZeroDivisionError"),
    "an error that cannot be told": (lambda _: _raise(_Unspeakable()), "raised", "its message cannot be read"),
    "a long message": (lambda _: _raise(ValueError("x" * 10**6)), "raised", "it raised ValueError: xxx"),
    "no characters": (lambda _: _raise(ValueError("\ud800\x00\n")), "raised", "it raised ValueError"),
    "a broken class": (lambda _: _raise(type("\ud800\n" * 200, (Exception,), {})()), "raised", "raised "),
    "several errors": (lambda _: _raise(BaseExceptionGroup("two", [KeyboardInterrupt()])), "raised", "two"),
    "SystemExit": (lambda _: sys.exit(0), "raised", "it raised SystemExit: 0"),
    "no end of calls": (_recur, "raised", "RecursionError"),
    "the end of a Hypothesis test": (lambda _: _raise(StopTest(0)), "raised", "it raised StopTest"),
    "a discard of ours": (lambda _: _raise(Discard("not today")), "raised", "not today"),
    "a skip of pytest": (lambda _: pytest.skip("not today"), "raised", "not today"),
    # wrong numbers
    "with one row for all": (lambda r: r[:, :1], "wrong shape", ""),
    "with one number for all": (lambda r: r.mean(), "wrong shape", ""),
    "that is empty": (lambda r: r[:0], "wrong shape", ""),
    "that is as large as the universe": (lambda r: r.new_zeros(1).expand(2**40), "wrong shape", ""),
    "in whole numbers": (lambda r: (10 * r).round().long(), WRONG, ""),
    "in float32": (Tensor.float, WRONG, ""),
    "with one number that is none": (lambda r: r.where(torch.arange(r.shape[-1]) > 0, torch.nan), "not finite", ""),
    "with a masked array": (lambda r: np.ma.array(np.full(tuple(r.shape), 7.0), mask=True), WRONG, ""),
    "that lies about itself": (lambda r: torch.zeros_like(r).as_subclass(_Liar), WRONG, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_holds_if_its_numbers_are_right_and_else_has_its_cause_in_a_short_printable_line(name: str) -> None:
    change, cause, words = ANSWERS[name]
    layer = answering(change, "numpy" if name.startswith("in NumPy") else "torch")
    record = judge_property(layer, PLAIN, replace(QUICKLY, examples=1 if cause in ("raised", NOT_AN_ARRAY) else 4))
    verdict = Verdict.HOLDS if cause is None else Verdict.VIOLATED
    assert (record.verdict, record.cause) == (verdict, cause), record.reason
    reason = record.reason or ""
    assert words in reason
    assert len(reason) < 600
    assert reason.isprintable()
    gc.collect(1)  # the test's objects are young; collecting among all imported objects takes half a second


@pytest.mark.parametrize(
    "edit",
    [
        lambda x, h: x.add_(1),
        lambda x, h: x.numpy().fill(0),
        lambda x, h: x.resize_(1, 1, 1),
        lambda x, h: x.set_(torch.zeros_like(x)),
        lambda x, h: h.transpose_(0, 1).zero_(),
    ],
    ids=["adds to x", "writes x through NumPy", "shrinks x", "gives x other numbers", "transposes h"],
)
def test_an_edited_question_violates_a_property_of_its_own_and_spoils_no_other(edit: Callable[..., Any]) -> None:
    def attention(x: Any, h: Any, w: Any, c: Any) -> Any:
        answer = reference.attention(x, h, w, c).clone()
        edit(x, h)
        return answer

    layer = implementation(attention=attention, mlp=reference.mlp)
    assert judge_property(layer, UNTOUCHED, QUICKLY).verdict == Verdict.VIOLATED
    record = judge_property(layer, PLAIN, replace(QUICKLY, examples=2))
    assert record.verdict == Verdict.HOLDS, record.reason


def test_a_deleted_folder_is_left_and_functions_that_trace_are_taken_off(tmp_path: Path) -> None:
    before = ProcessState.now()
    os.chdir(tmp_path)
    tmp_path.rmdir()
    assert before.restore() == ["folder"]
    assert ProcessState.now().restore() == []
    before = ProcessState.now()
    here = sys.gettrace(), sys.getprofile()
    sys.setprofile(lambda *_: None)
    sys.settrace(lambda *_: None)
    before.restore()
    assert (sys.gettrace(), sys.getprofile()) == here


@pytest.mark.parametrize(
    ("examples", "discarded", "words"),
    [
        (0, 134, "ran out after 134 examples, none of which could be judged"),
        (1, 1, "ran out after 2 of about 4 examples; --seconds 2 would do"),
        (0, 0, "ran out after 0 of about 4 examples; give more with --seconds"),
    ],
)
def test_where_the_time_ran_out_it_says_how_far_it_came(examples: int, discarded: int, words: str) -> None:
    tally = SearchTally(planned=4, examples=examples, discarded=discarded, cut_short=True)
    assert (conclude(PLAIN, tally, seconds=0.5).reason or "").endswith(words)

"""The table of contexts is asked whole, and each of its values does what it says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest
import torch

from cemverify import implementation
from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.contexts import answered_in, products_in
from cemverify.conformance.asking.differentiation import arguments_of
from cemverify.conformance.implementations.arrays import JAX, is_traced
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.search import PropertySearch
from cemverify.conformance.properties import by_id
from cemverify.conformance.properties.base import Offer
from cemverify.conformance.questions.cases import dense_case
from cemverify.conformance.questions.contexts import (
    ARRAYS,
    BEFORE,
    BETWEEN,
    OTHER_OPTIONS,
    RECORDED,
    SECOND_STEP,
    THE_SAME,
    Context,
    InContext,
    Table,
    factors,
)
from cemverify.power.bank import plain
from cemverify.power.mutants.base import around
from cemverify.processes.time_limits import CoreBudget
from suites.kit.judging import mutant

OFFER = Offer(frozenset())
PROPERTY = by_id("contexts/attention/any-options")


def questions(count: int, id_: str = PROPERTY.id) -> Sequence[InContext]:
    table = by_id(id_).questions
    assert isinstance(table, Table)
    return [table.scattered(OFFER, seed) for seed in range(count)]


@pytest.mark.parametrize("layer", ["attention", "mlp"])
def test_a_default_run_asks_a_layer_in_every_pair_of_circumstances(layer: str) -> None:
    property_ = by_id(f"contexts/{layer}/any-options")
    count = round(Effort().examples / 3 * property_.scattered)
    assert isinstance(property_.questions, Table)
    offered = factors(property_.questions.space, OFFER)
    drawn = questions(count, property_.id)
    for one, other in combinations(("mode", "before", "arrays"), 2):
        met = {(getattr(q.context, one), getattr(q.context, other)) for q in drawn}
        assert met == set(product(offered[one], offered[other]))
    assert {(q.context.mode, max(q.sizes["T"], 1)) for q in drawn} == set(product(offered["mode"], offered["steps"]))
    between = {(q.context.mode, q.context.between) for q in drawn}
    assert between == {*product(RECORDED, BETWEEN), *product(set(offered["mode"]) - set(RECORDED), BETWEEN[:1])}
    one_array = {(q.context.mode, q.case.x is q.case.h) for q in drawn}
    # x that is h records no gradient of its own
    assert one_array == {*product(offered["mode"], (False, True))} - {("x records gradients", True)}


def test_an_implementation_that_compiles_is_asked_a_case_in_every_context() -> None:
    table = PROPERTY.questions
    assert isinstance(table, Table)
    drawn = [table.scattered(Offer(kind=JAX), seed) for seed in range(66)]
    assert len({str(question.case.config) for question in drawn}) == 1
    offered = factors(table.space, Offer(kind=JAX))
    assert {(q.context.mode, q.context.before) for q in drawn} == set(product(offered["mode"], offered["before"]))
    assert "in inference mode" not in offered["mode"]  # which is torch's


def test_a_run_of_few_questions_takes_them_from_all_over_the_table() -> None:
    contexts = [question.context for question in questions(20, "contexts/decode/any-options")]
    assert len({context.mode for context in contexts}) >= 7
    assert {context.before for context in contexts} == set(BEFORE)
    assert {context.arrays for context in contexts} == set(ARRAYS) - {"read-only"}  # which NumPy alone has


def test_every_value_of_the_table_does_what_it_says() -> None:
    seen: list[tuple[bool, bool, bool, bool, torch.dtype]] = []

    def look(_: str, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            h, weights = arguments[-3:-1]
            seen.append(
                (
                    torch.is_inference_mode_enabled(),
                    torch.is_autocast_enabled("cpu"),
                    any(map(is_traced, (h, *weights.values()))),
                    h.is_contiguous(),
                    h.dtype,
                )
            )
            return function(*arguments)

        return call

    caller, case = Caller(around(plain, look)), questions(1)[0].case
    case = case.to(torch.float64)

    def last(**context: str) -> tuple[bool, bool, bool, bool, torch.dtype]:
        seen.clear()
        answered_in(caller, "attention", case, Context(**context), case.x.shape)
        return seen[-1]

    assert last() == (False, False, False, True, torch.float64)
    assert last(mode="in inference mode")[0]
    assert last(mode="under autocast")[1]
    assert last(mode="mapped")[2]
    assert not last(arrays="in windows")[3]
    assert not last(arrays="in Fortran order")[3]
    for before in set(BEFORE) - {"as usual"}:
        last(before=before)
        assert len(seen) >= 2, before
    last(before="after another dtype")
    assert [dtype for *_, dtype in seen] == [torch.float32, torch.float64]
    seen.clear()
    products_in(caller, case, torch.ones_like(case.x), "attention", ("h",), Context("h records gradients"))
    assert seen


def test_what_comes_between_an_answer_and_its_products_does_what_it_says() -> None:
    seen: list[tuple[float, int, float]] = []

    def look(_: str, function: Any) -> Any:
        def call(x: Any, h: Any, weights: Any, config: Any) -> Any:
            seen.append((config.temperature, id(h), float(h.detach().flatten()[0])))
            return function(x, h, weights, config)

        return call

    caller, case = Caller(around(plain, look)), questions(1)[0].case.to(torch.float64)

    def calls(between: str) -> list[tuple[float, int, float]]:
        seen.clear()
        context = Context("everything records gradients", between=between)
        names = tuple(arguments_of(case, "attention"))
        *_, changed = products_in(caller, case, torch.ones_like(case.x), "attention", names, context)
        assert not changed
        return list(seen)

    (own, array, number), another = calls("as usual")
    assert another == (own, another[1], number / 2)
    assert calls(OTHER_OPTIONS)[1][0] == 2 * own
    (_, array, _), again = calls(THE_SAME)
    assert again == (own, array, number)
    (_, array, before), (_, same, now), _ = calls(SECOND_STEP)
    assert (array, before, now) == (same, number / 2, number)


def test_the_smallest_violation_keeps_only_the_circumstances_that_it_takes() -> None:
    fault = mutant("windows-misread-when-mapped")
    search = PropertySearch(Caller(fault.subject()), by_id(fault.property), CoreBudget(60.0))
    search.look(Effort())
    assert search.tally.violation is not None
    context = search.tally.violation.question.context
    assert context.mode == "mapped"
    assert context.arrays in ("in windows", "in Fortran order")
    assert context.before == "as usual"


def test_a_smallest_violation_with_one_array_stays_one_array_and_gets_small() -> None:
    fault = mutant("one-array-trained-once")
    search = PropertySearch(Caller(fault.subject()), by_id(fault.property), CoreBudget(60.0))
    search.look(Effort())
    assert search.tally.violation is not None
    case = search.tally.violation.question.case
    assert case.x is case.h
    assert max(case.sizes.values()) <= 3


@pytest.mark.parametrize("unlocks", [False, True])
def test_an_array_that_was_read_only_must_stay_so(unlocks: bool) -> None:
    def attention(x: Any, h: Any, weights: Any, config: Any) -> Any:
        h.setflags(write=unlocks)  # it owns its data, so that it could be written
        return x + h

    case = dense_case(AttentionConfig(4, 2, head_dim=2), 1, 3, 0)
    caller = Caller(implementation(attention=attention, arrays="numpy"))
    _, changed = answered_in(caller, "attention", case, Context(arrays="read-only"), case.x.shape)
    assert changed == (["h"] if unlocks else [])

"""Questions around numbers in the code: within the contract, for the right quantity, and determined by the seed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.judging.aiming import Aiming
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import by_id
from cemverify.conformance.properties.base import Offer
from cemverify.conformance.questions.aimed import aimed_case, quantities
from cemverify.conformance.questions.aims import MOST, OPTIONS, Aim, aims, in_order
from cemverify.conformance.questions.spaces import Space, mixed
from cemverify.conformance.source.reach.summary import Trail
from cemverify.conformance.source.reading.code import OwnCode
from cemverify.conformance.source.reading.numbers import COMPARED, OTHER, Number
from examples.energy_layers.energy_transformer import mine as coupled

NUMBERS = (Number(20.0, COMPARED, frozenset({("a.py", 3)})), Number(64.0, OTHER), Number(1e-6, OTHER))
SPACES = {
    "attention": mixed("attention", steps=(1, 2)),
    "mlp": mixed("mlp", steps=(1, 2)),
    "block": mixed("block", steps=(1, 2), apart=False),
    "plain": Space("attention"),
}


@pytest.mark.parametrize("name", SPACES)
def test_every_case_has_the_quantity_that_it_was_drawn_for(name: str) -> None:
    space, had = SPACES[name], Counter[str]()
    for seed, aim in enumerate(aims(NUMBERS, *quantities(space))):
        if (aim.quantity == "J" and aim.size > 70) or (case := aimed_case(space, aim, seed)) is None:
            continue
        had[aim.quantity] += 1
        config, sizes = getattr(case.config, "attention", case.config), case.sizes
        if aim.quantity in sizes:
            assert sizes[aim.quantity] == aim.size
        elif aim.quantity in OPTIONS:
            assert getattr(config, aim.quantity) == aim.value
        elif aim.quantity in ("x", "h"):
            assert float(getattr(case, aim.quantity).abs().max()) == pytest.approx(aim.value)
        elif aim.quantity == "logits":
            assert isinstance(config, AttentionConfig)
            q = torch.einsum("krd,bid->bkir", case.weights["W_Q"], case.x)
            k = torch.einsum("krd,bjd->bkjr", case.weights["W_K"], case.h)
            assert float((q @ k.mT).abs().max()) / config.tau == pytest.approx(aim.value)
        elif aim.quantity in ("P_d", "diagonal", "gain", "to_self"):
            ends = [w.abs().max() for key, w in case.weights.items() if key.split(".")[-1] == aim.quantity]
            assert float(max(ends)) >= aim.value * (1 - 1e-9)
    axes, _ = quantities(space)
    assert set(axes) - {"T"} <= set(had)


def test_no_aim_is_beyond_what_may_be_asked_and_no_case_for_one_that_its_space_lacks() -> None:
    huge = (Number(1e6, COMPARED), Number(1e-30, COMPARED), Number(3.5, COMPARED))
    for space in SPACES.values():
        for aim in aims(huge, *quantities(space)):
            assert aim.value <= MOST.get(aim.quantity, 1e4)
            least, most = OPTIONS.get(aim.quantity, (0.0, 1e4))
            assert least <= aim.value <= most
    number = NUMBERS[0]
    assert aimed_case(Space("mlp"), Aim("temperature", 2.0, number), 0) is None
    assert aimed_case(Space("attention"), Aim("T", 4, number), 0) is None
    assert aimed_case(Space("attention", step_sizes=(1.0,)), Aim("step_size", 2.0, number), 0) is None
    assert aimed_case(Space("attention", tokens=3), Aim("J", 2, number), 0) is None
    assert aimed_case(Space("attention", square=True), Aim("D", 64, number), 0) is None


def test_numbers_take_turns_and_every_other_aim_is_of_a_branch_that_was_not_taken() -> None:
    drawn = list(aims(NUMBERS, *quantities(SPACES["attention"])))
    usual = in_order(drawn, 1, frozenset())
    assert {aim.number.value for aim in usual[:9]} == {20.0, 64.0, 1e-6}
    assert usual == in_order(drawn, 1, frozenset()) != in_order(drawn, 2, frozenset())
    guarded = in_order(drawn, 1, frozenset({("a.py", 3)}))
    assert [aim.number.value == 20.0 for aim in guarded[:8]] == [True, False] * 4
    assert Counter(guarded) == Counter(drawn)


def judged(id_: str, numbers: tuple[Number, ...], subject: Any = reference) -> tuple[Record, Aiming]:
    aiming = Aiming(OwnCode(numbers=numbers), Trail)
    return judge_property(subject, by_id(id_), Effort(), aiming=aiming), aiming


def test_without_numbers_the_questions_are_the_same_and_with_them_there_are_more() -> None:
    property_, (plain, nothing) = by_id("gradient/attention/plain"), judged("gradient/attention/plain", ())
    usual = judge_property(reference, property_, Effort())
    assert (plain.examples, plain.margin, plain.telling) == (usual.examples, usual.margin, usual.telling)
    assert nothing.around == set()
    more, aiming = judged("gradient/attention/plain", NUMBERS)
    assert (more.verdict, more.examples) == (Verdict.HOLDS, usual.examples + property_.asked.most)
    assert aiming.around == {20.0, 64.0, 1e-6}


def test_energy_layers_are_asked_around_numbers_too() -> None:
    assert isinstance(coupled, EnergyLayer)
    record, aiming = judged("gradient/layer/energy", NUMBERS, coupled)
    assert (record.verdict, aiming.around) == (Verdict.HOLDS, {20.0, 64.0, 1e-6})
    questions = by_id("gradient/layer/energy").questions
    offer = Offer(frozenset(), coupled)
    question: Any = questions.aimed(offer, Aim("J", 21, NUMBERS[0]), 5)
    assert next(iter(question.x.values())).shape[1] == 21
    assert questions.aimed(offer, Aim("J", 10**6, NUMBERS[0]), 5) is None

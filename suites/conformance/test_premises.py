"""A shrunk case is still a case of its property: what the claim says of it is true of it.

A walk takes one smaller form after another at random, as a search would if every one of them failed. It ends at the
barest case there is. That is either outside the property's premise, and then not judged, or within it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from cemverify import energy_layer
from cemverify.conformance.asking.boxes import form_of
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.contract import Subject
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.faults import Discard
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties import Property, by_id, catalogue
from cemverify.conformance.properties.base import Offer, Over
from cemverify.conformance.properties.layers.base import Cases
from cemverify.conformance.questions.black_boxes import Question
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.contexts import InContext
from cemverify.conformance.questions.spaces import Space

STEPS = 16
TRIED = 8  # smaller forms that are looked at before one is taken

pulled: EnergyLayer = energy_layer(
    update=lambda x, m: m - x,
    energy=lambda x, m: ((x - m) ** 2).sum(-1) / 2,
    state=("J", 3),
    memory=("J", 3),
    lagrangian=lambda x: (x**2).sum(-1) / 2,
)
OFFERS = {"CEM implementation": Offer(), "energy layer": Offer(layer=pulled)}
SUBJECTS: dict[str, Subject] = {"CEM implementation": reference, "energy layer": pulled}


def barest(property_: Property, seed: int) -> Any:
    """Where a walk of smaller forms ends; None where the property draws no scattered questions."""
    offer, choose = OFFERS[property_.kind], random.Random(seed)  # noqa: S311
    question = property_.questions.scattered(offer, seed)
    for _ in range(STEPS if question is not None else 0):
        forms = list(islice(property_.questions.smaller(offer, question), TRIED))
        if not forms:
            break
        question = choose.choice(forms)
    return question


def asked_of(property_: Property, question: Any) -> Any:
    """The case as the layer is asked it; None if the property does not judge it."""
    try:
        evidence = property_.check(Caller(SUBJECTS[property_.kind], property_.dtype or torch.float64), question)
    except Discard:
        return None
    return question if evidence.case is None else evidence.case


def _logit(case: Case) -> float:
    q, k = (torch.einsum("bjd,krd->bkjr", a, case.weights[n]) for a, n in ((case.x, "W_Q"), (case.h, "W_K")))
    return float((q @ k.mT).tril().abs().amax()) / case.attention.tau


def _preactivation(case: Case) -> float:
    return float((case.x @ case.weights["V"].mT).abs().amax())


def _subnormal(x: Tensor) -> bool:
    return bool((x != 0).any()) and float(x.abs().max()) < torch.finfo(torch.float64).tiny


# What the claim of a property says of its cases, beside their sizes and options.
PREMISES: Mapping[str, Callable[[Any], bool]] = {
    "extremes/attention/large-logits": lambda case: _logit(case) >= 4e3,
    "extremes/attention/energy-large-logits": lambda case: _logit(case) >= 4e3,
    "extremes/attention/subnormal-states": lambda case: _subnormal(case.x),
    "extremes/mlp/subnormal-states": lambda case: _subnormal(case.x),
    "extremes/attention/long-row": lambda case: case.h.abs().amax((0, 2)).argmax() < 20 and case.h.shape[1] > 128,
    "extremes/attention/exact-ties": lambda case: not case.x.any(),
    "extremes/attention/zero-memory": lambda case: not case.h.any(),
    "extremes/mlp/zero-memory": lambda case: not case.h.any(),
    "extremes/mlp/large-preactivations": lambda case: _preactivation(case) >= 4e3,
    "extremes/mlp/energy-large-preactivations": lambda case: _preactivation(case) >= 4e3,
    "extremes/mlp/every-magnitude": lambda case: _preactivation(case) >= 350,
    "extremes/mlp/energy-every-magnitude": lambda case: _preactivation(case) >= 350,
    "extremes/attention/large-preconditioner": lambda case: float(case.weights["P_d"].max()) >= 4e3,
    "extremes/mlp/large-preconditioner": lambda case: float(case.weights["P_d"].max()) >= 4e3,
    "extremes/attention/preconditioner-every-magnitude": lambda case: not case.x.any(),
    "extremes/mlp/preconditioner-every-magnitude": lambda case: not case.x.any(),
    "extremes/layer/huge-states": lambda q: float(q.x["x"].abs().max()) >= 64,
    "extremes/layer/huge-memory": lambda q: float(q.memory["memory"].abs().max()) >= 64,
    "extremes/layer/huge": lambda q: min(float(a.abs().max()) for a in (q.x["x"], q.memory["memory"])) >= 64,
    "extremes/layer/huge-lagrangian": lambda q: float(q.x["x"].abs().max()) >= 64,
    "extremes/layer/zero-states": lambda q: not q.x["x"][:, 0].any(),
    "extremes/layer/ties": lambda q: bool((q.x["x"][:, :-1] == q.x["x"][:, :1]).all()),
    "extremes/layer/long-rows": lambda q: max(q.x["x"].shape[:2]) >= 32,
    "recursion/attention/is-not-reuse": lambda case: torch.equal(case.x, case.h),
    "recursion/mlp/is-not-reuse": lambda case: torch.equal(case.x, case.h),
    "metamorphic/attention/equal-tokens": lambda case: bool((case.h == case.h[:, :1]).all()),
}

DRAWN = [p for p in catalogue() if isinstance(p.questions, Over | Cases)]


@pytest.mark.parametrize("property_", DRAWN, ids=lambda p: p.id)
def test_the_barest_case_has_the_sizes_and_options_of_its_property(property_: Property) -> None:
    question = barest(property_, 1)
    if isinstance(property_.questions, Over):
        spaces: tuple[Space, ...] = (property_.questions.space,)
        case = question.case if isinstance(question, InContext) else question
        assert any(_within(space, case) for space in spaces)
    else:
        assert isinstance(property_.questions, Cases)
        form, least = form_of(pulled), property_.questions.least
        assert question.batch >= least.get("B", 1)
        assert question.x["x"].shape[1] >= max(form.shortest, least.get("J", 1))


def _within(space: Space, case: Case) -> bool:
    options = {**{name: (value,) for name, value in space.options.items()}, **space.choices}
    parts = [case.part("attention"), case.part("mlp")] if case.layer == "block" else [case]
    configs = [part.layer_config for part in parts]
    return (
        case.layer == space.layer
        and case.h.shape[0] >= space.batch
        and case.h.shape[1] >= space.tokens
        and all(getattr(c, name) in values for c in configs for name, values in options.items() if hasattr(c, name))
        and all(config.steps in space.steps for config in configs)
        and (space.apart or torch.equal(case.x, case.h))
    )


@pytest.mark.parametrize("id_", PREMISES)
def test_what_the_claim_says_is_true_of_the_barest_case(id_: str) -> None:
    judged = 0
    for seed in range(6):
        case = asked_of(by_id(id_), barest(by_id(id_), seed))
        judged += case is not None
        assert case is None or PREMISES[id_](case)
        drawn = by_id(id_).questions.scattered(OFFERS[by_id(id_).kind], seed)
        case = asked_of(by_id(id_), drawn)
        assert case is None or PREMISES[id_](case)
        judged += case is not None
    assert judged, "some case is judged"


def test_every_claim_about_extreme_cases_has_its_premise_here() -> None:
    assert {p.id for p in catalogue() if p.family == "extremes"} <= PREMISES.keys()


@pytest.mark.parametrize("id_", [f"extremes/layer/{name}" for name in ("huge-states", "zero-states", "ties")])
def test_a_layer_that_is_wrong_everywhere_is_shown_wrong_within_the_premise(id_: str) -> None:
    wrong = energy_layer(
        update=lambda x, m: x - m + 1, energy=lambda x, m: ((x - m) ** 2).sum(-1) / 2, state=("J", 3), memory=("J", 3)
    )
    record = judge_property(wrong, by_id(id_), Effort(examples=12))
    assert record.verdict == Verdict.VIOLATED
    assert record.counterexample is not None
    case = record.counterexample["case"]
    assert PREMISES[id_](Question({"x": torch.tensor(case["x"])}, {}))

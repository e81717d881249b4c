"""A default run asks every pair of options: faults like to live where two of them meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch

from cemverify.conformance.implementations.arrays import JAX
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge
from cemverify.conformance.properties import catalogue, select
from cemverify.conformance.properties.base import Offer, Over, Property
from cemverify.conformance.questions.cases import Case, Layer
from cemverify.conformance.questions.contexts import InContext
from cemverify.conformance.questions.coverage import covering, meetings


def test_every_two_values_meet_in_a_covering_array_of_few_rows() -> None:
    for levels in ((3, 4, 4, 7, 4), (4, 9, 4, 4), (2,), (1, 1), (5, 5)):
        rows = covering(levels)
        expected = {
            (i, a, j, b)
            for i, j in combinations(range(len(levels)), 2)
            for a in range(levels[i])
            for b in range(levels[j])
        }
        assert set().union(*(meetings(row) for row in rows)) == expected
        assert all({row[k] for row in rows} == set(range(values)) for k, values in enumerate(levels))
        largest = sorted(levels)[-2:]
        assert len(rows) <= 1.5 * largest[0] * largest[-1]


@pytest.mark.parametrize("layer", ["attention", "mlp", "block"])
def test_a_default_run_asks_every_pair_of_options(layer: Layer) -> None:
    (property_,) = select([f"gradient/{layer}/any-options"])
    seen: set[tuple[str, Any, str, Any]] = set()
    judge_property(reference, _noting(property_, seen), Effort(shrink=False))
    assert not [pair for pair in _pairs(property_) if pair not in seen]


def asked_of_jax(property_: Property, count: int) -> list[Case]:
    """Cases as they are asked of an implementation that is compiled for each of them."""
    questions: list[Any] = [property_.questions.scattered(Offer(kind=JAX), seed) for seed in range(count)]
    questions = [question.case if isinstance(question, InContext) else question for question in questions]
    return [case for case in questions if isinstance(case, Case)]


OF_CASES = [p for p in catalogue() if p.kind == "CEM implementation" and isinstance(p.questions, Over)]


@pytest.mark.parametrize("property_", OF_CASES, ids=lambda p: p.id)
def test_an_implementation_that_compiles_each_case_is_asked_many_of_few_shapes_and_options(
    property_: Property,
) -> None:
    every = property_.id in [f"gradient/{layer}/any-options" for layer in ("attention", "mlp", "block")]
    cases = asked_of_jax(property_, 60)
    compiled = {(str(case.config), *(tuple(a.shape) for a in (case.x, *case.weights.values()))) for case in cases}
    assert 2 <= len(compiled) <= (60 if every else 8)
    assert len({case.h.numpy().tobytes() for case in cases}) > 50  # their numbers are their own


@pytest.mark.parametrize("layer", ["attention", "mlp"])
def test_all_pairs_of_options_are_asked_of_an_implementation_that_compiles_too(layer: Layer) -> None:
    (property_,) = select([f"gradient/{layer}/any-options"])
    cases = asked_of_jax(property_, 80)
    met = {pair for case in cases for pair in combinations(sorted(_options(case).items()), 2)}
    assert met >= {((a, u), (b, v)) for a, u, b, v in _pairs(property_)}


def _noting(property_: Property, seen: set[tuple[str, Any, str, Any]]) -> Property:
    """The property with a check that writes down which options it was asked about."""

    def check(caller: Any, case: Case) -> Evidence:
        options = sorted(_options(case).items())
        seen.update((a, u, b, v) for (a, u), (b, v) in combinations(options, 2))
        return judge(Comparison("asked", torch.zeros(1), torch.zeros(1), torch.zeros(1)))

    return replace(property_, check=check)


def _options(case: Case) -> dict[str, Any]:
    if case.layer == "block":
        return _options(case.part("attention")) | {"activation": case.part("mlp").mlp.activation}
    config = case.layer_config
    options: dict[str, Any] = {
        "norm": config.norm,
        "steps": config.steps,
        "preconditioner": _kind(config.preconditioner),
    }
    if case.layer == "mlp":
        return options | {"activation": case.mlp.activation}
    return options | {"diagonal": case.attention.diagonal, "position": case.attention.position}


def _kind(config: Any) -> str:
    return f"{config.kind}{' per head' if config.per_head else ''}"


def _pairs(property_: Property) -> Iterator[tuple[str, Any, str, Any]]:
    assert isinstance(property_.questions, Over)
    space = property_.questions.space
    values: dict[str, tuple[Any, ...]] = {**space.choices, "steps": space.steps}
    values["preconditioner"] = tuple(_kind(kind) for kind in space.preconditioners)
    for a, b in combinations(sorted(values), 2):
        yield from ((a, u, b, v) for u in values[a] for v in values[b])

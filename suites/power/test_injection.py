"""Injection: the mutants' faults, put into other implementations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.implementations.contract import implementation, load
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.questions.cases import dense_case
from cemverify.power.cells import IntroductionCell, introduce
from cemverify.power.code import Code
from cemverify.power.injection import falling_short, inject
from cemverify.power.mutants.base import sound
from suites.kit.judging import judged
from suites.kit.judging import mutant as mutant_of

_NUMPY = "examples.attention_numpy:mine"


def lives_on(id_: str, subject: Any) -> bool:
    """Whether the mutant's property kills its fault in another implementation, for its cause."""
    mutant = mutant_of(id_)
    return mutant.is_killed(judged(inject(mutant, subject), mutant.property, shrink=False))


@pytest.mark.parametrize(
    "id_", ["ascent", "softmax-over-queries", "attention-head-off-by-1e-9", "wrong-on-views", "edits-its-input"]
)
def test_a_fault_in_a_numpy_implementation_is_killed_for_its_cause(id_: str) -> None:
    assert lives_on(id_, load(_NUMPY))


@pytest.mark.parametrize("id_", ["detached-update", "straight-through-gate", "off-when-mapped", "off-while-training"])
def test_a_fault_of_gradients_or_modes_lives_on_in_the_torch_implementation_that_gets_it(id_: str) -> None:
    assert lives_on(id_, reference)


def test_faults_of_gradients_cannot_be_put_into_numpy_and_arrays_of_jax_not_be_edited_in_place() -> None:
    with pytest.raises(ValueError, match="it takes numpy arrays"):
        inject(mutant_of("detached-update"), load(_NUMPY))
    pytest.importorskip("jax", reason="the extra `jax` is not installed")
    subject = implementation(attention=lambda x, h, weights, config: x, arrays="jax")
    with pytest.raises(ValueError, match="cannot be edited in place"):
        inject(mutant_of("edits-its-input"), subject)


def test_an_injected_fault_is_the_mutants_own_difference() -> None:
    case = dense_case(AttentionConfig(4, 2, temperature=1.0), 1, 3, seed=0)
    mutant = mutant_of("mean-over-heads")
    faulty: Any = inject(mutant, load(_NUMPY))
    own: Any = mutant.subject()
    weights = {name: w.numpy() for name, w in case.weights.items()}
    answer = faulty.functions["attention"](case.x.numpy(), case.h.numpy(), weights, case.config)
    expected = own.functions["attention"](case.x, case.h, case.weights, case.config)
    assert torch.allclose(torch.from_numpy(answer), expected, atol=1e-14)


def test_faults_of_absent_features_do_not_apply_and_an_energy_layer_gets_those_of_layers() -> None:
    reasons = introduce(IntroductionCell(_NUMPY, Code.here(_NUMPY)))["inapplicable"]
    assert "position:rotary" in reasons["unrotated-values"]
    assert reasons["rotary-loses-the-diagonal"] == "not offered: diagonal:per-head, position:rotary"
    assert "another kind" in reasons["layer-ascent"]
    assert "ascent" not in reasons
    assert lives_on("layer-doubled-energy", load("examples.energy_layer:mine"))


@pytest.mark.parametrize("place", ["feature", "position"])
def test_an_update_falls_short_in_its_last_place_only(place: str) -> None:
    case = dense_case(AttentionConfig(4, 2, temperature=1.0), 2, 3, seed=0)
    subjects: Any = sound(), falling_short(sound(), place, 0.5)
    plain, shorter = (s.functions["attention"](case.x, case.h, case.weights, case.config) for s in subjects)
    grown = (shorter - case.x) / (plain - case.x)
    expected = torch.ones_like(grown)
    expected[(slice(None), -1) if place == "position" else (..., -1)] = 0.5
    assert torch.allclose(grown, expected)

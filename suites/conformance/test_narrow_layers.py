"""Small updates in float32 are judged, a small epsilon in a norm is no violation, and loose solvers get advice."""

from __future__ import annotations

import pytest

from cemverify.conformance.judging.verdicts import Record, Verdict
from suites.conformance import narrow_layers
from suites.kit.judging import judged

ENERGY = "gradient/layer/energy"
DIFFERENCES = "gradient/layer/derivatives-agree"
WRONG = ["small_updates_too_large", "small_updates_uphill", "small_updates_a_tenth_off", "norm_inside_a_little_off"]
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 12))]


def narrow(name: str, id_: str, seed: int = 0, *, shrink: bool = False) -> Record:
    return judged(getattr(narrow_layers, name), id_, examples=24, seed=seed, shrink=shrink)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["small_updates", "norm_inside"])
@pytest.mark.parametrize("property_", [ENERGY, DIFFERENCES, "extremes/layer/zero-states", "training/layer/states"])
def test_a_right_layer_of_float32_holds_by_telling_examples(name: str, property_: str, seed: int) -> None:
    record = narrow(name, property_, seed)
    assert record.verdict == Verdict.HOLDS, record.reason


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_update_of_float32_is_violated_however_small_it_is(name: str, seed: int) -> None:
    record = narrow(name, ENERGY, seed)
    assert record.verdict == Verdict.VIOLATED
    assert record.margin is not None
    assert record.margin > 3


def test_a_constant_that_was_rounded_is_a_constant_factor_and_not_a_matter_of_precision() -> None:
    assert narrow("step_size", ENERGY).verdict == Verdict.HOLDS
    record = narrow("step_size_of_float32", ENERGY, shrink=True)
    assert (record.verdict, record.part) == (Verdict.VIOLATED, "a constant factor")


def test_a_solver_that_stops_early_is_told_how_far_to_go() -> None:
    record = narrow("solver_of_a_loose_tolerance", "training/layer/derivatives-agree")
    assert record.verdict == Verdict.INCONCLUSIVE
    assert "known to within its tolerance of 0.0001: have it stop at 1e-07" in str(record.reason)
    assert narrow("solver_of_a_close_tolerance", "training/layer/derivatives-agree").verdict == Verdict.HOLDS
    assert narrow("solver_that_misses", "descent/layer/stationary").verdict == Verdict.VIOLATED

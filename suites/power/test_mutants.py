"""Detection: every mutant is killed by its property for its cause, and every property has a mutant to kill."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch

from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties import Property, catalogue
from cemverify.power.mutants import Mutant, mutants
from suites.kit.judging import killed

_BY_ID = {p.id: p for p in catalogue()}
_ALSO = [
    (m, p)
    for m in mutants()
    if m.also_killed_by
    for p in catalogue()
    if m.kills(p.id) and p.id != m.property and p.kind == _BY_ID[m.property].kind
]
_OWNERS = {m.property for m in mutants()}


def _also() -> list[Any]:
    """Pairs as parameters of a test. By default each property without a mutant of its own has to kill one."""
    unarmed = {p.id for p in catalogue()} - _OWNERS
    parameters = []
    for mutant, property_ in _ALSO:
        marks = [] if property_.id in unarmed else [pytest.mark.thorough]
        unarmed.discard(property_.id)
        parameters.append(pytest.param(mutant, property_, id=f"{mutant.id}-by-{property_.id}", marks=marks))
    return parameters


@pytest.mark.parametrize("mutant", mutants(), ids=lambda m: m.id)
def test_a_mutant_is_killed_by_its_property_for_its_cause(mutant: Mutant, pytestconfig: pytest.Config) -> None:
    _skip_without_device(_BY_ID[mutant.property])
    record = killed(mutant, _BY_ID[mutant.property], thorough=pytestconfig.getoption("--thorough"))
    assert mutant.is_killed(record), record


@pytest.mark.parametrize(("mutant", "property_"), _also())
def test_a_mutant_is_killed_by_other_properties_too(
    mutant: Mutant, property_: Property, pytestconfig: pytest.Config
) -> None:
    _skip_without_device(property_)
    record = killed(mutant, property_, thorough=pytestconfig.getoption("--thorough"))
    assert record.verdict == Verdict.VIOLATED, record


def _skip_without_device(property_: Property) -> None:
    if "cuda" in property_.needs and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device on this machine")


def test_every_property_has_a_mutant_that_it_must_kill() -> None:
    unarmed = [p.id for p in catalogue() if not any(m.kills(p.id) for m in mutants())]
    assert not unarmed


def test_every_pattern_of_a_mutant_names_properties_that_there_are() -> None:
    patterns = [(m.id, pattern) for m in mutants() for pattern in (m.property, *m.also_killed_by)]
    assert [each for each in patterns if not any(fnmatchcase(id_, each[1]) for id_ in _BY_ID)] == []


def test_mutants_have_names_of_their_own_and_say_their_fault() -> None:
    names = [m.id for m in mutants()]
    assert len(names) == len(set(names)) >= 80
    assert all(m.fault.endswith(".") and m.family for m in mutants())


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("mutant", mutants()[::12], ids=lambda m: m.id)
def test_a_mutant_dies_under_other_seeds_too(mutant: Mutant, seed: int) -> None:
    _skip_without_device(_BY_ID[mutant.property])
    record = judge_property(mutant.subject(), _BY_ID[mutant.property], Effort(seed=seed, shrink=False))
    assert mutant.is_killed(record), record

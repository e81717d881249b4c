"""Detection: every mutant is killed by the properties that must kill it, and every property has a mutant to kill."""

from __future__ import annotations

import pytest

from cemverify.conformance.engine import Effort, judge_property
from cemverify.conformance.mutants import Mutant, mutants
from cemverify.conformance.properties import Property, catalogue
from cemverify.conformance.verdicts import Verdict

_PAIRS = [(m, p) for m in mutants() for p in catalogue() if m.kills(p.id)]


@pytest.mark.parametrize(("mutant", "property_"), _PAIRS, ids=[f"{m.id}-by-{p.id}" for m, p in _PAIRS])
def test_a_mutant_is_killed_by_its_property(mutant: Mutant, property_: Property) -> None:
    record = judge_property(mutant.subject(), property_, Effort(shrink=False))
    assert record.verdict == Verdict.VIOLATED, record


def test_every_property_has_a_mutant_that_it_must_kill() -> None:
    unarmed = [p.id for p in catalogue() if not any(m.kills(p.id) for m in mutants())]
    assert not unarmed


def test_every_pattern_of_a_mutant_names_a_property() -> None:
    for mutant in mutants():
        for pattern in mutant.killed_by:
            assert any(Mutant("", "", (pattern,), mutant.subject).kills(p.id) for p in catalogue()), (
                mutant.id,
                pattern,
            )


def test_mutants_have_names_of_their_own_and_say_their_fault() -> None:
    names = [m.id for m in mutants()]
    assert len(names) == len(set(names)) >= 15
    assert all(m.fault.endswith(".") for m in mutants())


@pytest.mark.parametrize("index", range(0, len(_PAIRS), 12))
def test_a_mutant_dies_under_other_seeds_too(index: int) -> None:
    mutant, property_ = _PAIRS[index]
    for seed in (1, 2, 3):
        assert (
            judge_property(mutant.subject(), property_, Effort(seed=seed, shrink=False)).verdict == Verdict.VIOLATED
        )

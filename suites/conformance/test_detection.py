"""Which properties detect which mutants: the table says what is so, and the most telling are asked first."""

from __future__ import annotations

import pytest

from cemverify.catalogue.detection import detected, most_telling_first, share
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties import by_id, catalogue
from cemverify.power.mutants import Mutant, mutants
from suites.kit.judging import killed

BY_NAME = {m.id: m for m in mutants()}
OF_CEM = [p.id for p in catalogue() if p.kind == "CEM implementation"]
# what is not the pair that the mutant itself names, of which every mutant is tried by the tests of power
PAIRS = [
    (BY_NAME[name], row.id)
    for row in detected().values()
    for name in row.kills
    if name in BY_NAME and BY_NAME[name].property != row.id
]


def test_the_table_has_the_properties_of_the_catalogue_and_every_mutant() -> None:
    pytest.importorskip("jax", reason="the extra `jax` is not installed: some mutants are not there")
    again = "run python -m cemverify.commands.detection --missing"
    assert list(detected()) == [p.id for p in catalogue()], again
    named = {mutant: row.id for row in detected().values() for mutant in row.named}
    assert named == {m.id: m.property for m in mutants()}, again
    dead = {mutant for row in detected().values() for mutant in row.kills}
    assert dead == BY_NAME.keys(), again


@pytest.mark.parametrize(("mutant", "property_id"), [
    pytest.param(*pair, id=f"{pair[0].id}-{pair[1]}", marks=[pytest.mark.thorough] if number % 40 else [])
    for number, pair in enumerate(PAIRS)])  # fmt: skip
def test_a_property_kills_the_mutants_that_the_table_says(
    mutant: Mutant, property_id: str, pytestconfig: pytest.Config
) -> None:
    record = killed(mutant, by_id(property_id), thorough=pytestconfig.getoption("--thorough"))
    assert record.verdict == Verdict.VIOLATED


def test_all_properties_kill_all_mutants_and_none_kill_none() -> None:
    everything, nothing = share(OF_CEM, OF_CEM, ()), share((), OF_CEM, ())
    assert everything.killed == everything.of > 400
    assert (nothing.killed, nothing.percent) == (0, 0.0)


def test_a_mutant_that_needs_what_is_absent_does_not_count() -> None:
    assert share((), OF_CEM, {"diagonal:shared", "position:alibi"}).of < share((), OF_CEM, ()).of


def test_a_tenth_of_the_properties_in_order_kills_most_mutants() -> None:
    in_order = most_telling_first(OF_CEM, ())
    assert sorted(in_order) == sorted(OF_CEM)
    few = share(in_order[: len(in_order) // 10], OF_CEM, ())
    last = share(in_order[-len(in_order) // 10 :], OF_CEM, ())
    assert few.percent > 50 > 10 > last.percent


def test_what_the_table_does_not_know_is_asked_last() -> None:
    assert most_telling_first(["own/layer/mine", OF_CEM[0]], ()) == [OF_CEM[0], "own/layer/mine"]

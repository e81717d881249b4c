"""Detection: its property kills every mutant for its cause, and every property has a mutant to kill."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch

from cemverify.catalogue.detection import detected, most_telling_first, share
from cemverify.conformance.asking.process_state import SETTINGS
from cemverify.conformance.implementations.features import FUNCTIONS
from cemverify.conformance.judging.conclusion import conclude
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties import by_id, catalogue
from cemverify.power.mutants import Mutant, mutants
from cemverify.power.mutants.base import sound
from cemverify.power.mutants.settings import CHANGES, changing
from suites.kit.judging import judged, searched

_BY_NAME = {m.id: m for m in mutants()}
# pairs of a mutant and a further property that it declares, beside the one that it names
_ALSO = [
    (m.id, p.id)
    for m in mutants()
    if m.also_killed_by
    for p in catalogue()
    if m.kills(p.id) and p.id != m.property and p.kind == by_id(m.property).kind
]
_OWNERS = {m.property for m in mutants()}


def _own() -> list[Any]:
    """Mutants with their properties as parameters of a test: by default one for each property, one of each family."""
    first = {key: m.id for m in reversed(mutants()) for key in (m.property, m.family)}
    marks = {m.id: [pytest.mark.thorough] * (m.id not in first.values()) for m in mutants()}
    return [pytest.param(m, m.property, id=m.id, marks=marks[m.id]) for m in mutants()]


def _also() -> list[Any]:
    """Pairs as parameters of a test: by default one for each property that no mutant names."""
    unarmed = {p.id for p in catalogue()} - _OWNERS
    marks = {}
    for pair in _ALSO:
        marks[pair] = [pytest.mark.thorough] * (pair[1] not in unarmed)
        unarmed.discard(pair[1])
    return [pytest.param(_BY_NAME[pair[0]], pair[1], id="-by-".join(pair), marks=marks[pair]) for pair in marks]


@pytest.mark.parametrize(("mutant", "id_"), [*_own(), *_also()])
def test_a_mutant_is_killed_by_its_property_for_its_cause_and_by_the_others_that_it_declares(
    mutant: Mutant, id_: str, pytestconfig: pytest.Config
) -> None:
    """By a few scattered questions; by a full search if it survives these, or in a thorough run."""
    property_ = by_id(id_)
    if "cuda" in property_.needs and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device on this machine")
    is_dead = mutant.is_killed if id_ == mutant.property else lambda record: record.verdict == Verdict.VIOLATED
    record = conclude(property_, searched(mutant.subject(), property_).tally)
    if pytestconfig.getoption("--thorough") or not is_dead(record):
        record = judged(mutant.subject(), id_, shrink=False)
    assert is_dead(record), record


def test_every_property_has_a_mutant_and_every_mutant_a_name_a_fault_and_properties_that_there_are() -> None:
    unarmed = [p.id for p in catalogue() if not any(m.kills(p.id) for m in mutants())]
    assert not unarmed
    patterns = [(m.id, pattern) for m in mutants() for pattern in (m.property, *m.also_killed_by)]
    assert [each for each in patterns if not any(fnmatchcase(p.id, each[1]) for p in catalogue())] == []
    names = [m.id for m in mutants()]
    assert len(names) == len(set(names)) >= 80
    assert all(m.fault.endswith(".") and m.family for m in mutants())


OF_CEM = [p.id for p in catalogue() if p.kind == "CEM implementation"]


def test_the_table_has_all_properties_and_mutants() -> None:
    pytest.importorskip("jax", reason="the extra `jax` is not installed: some mutants are not there")
    again = "run python -m docs.making.detection --missing"
    assert list(detected()) == [p.id for p in catalogue()], again
    named = {mutant: row.id for row in detected().values() for mutant in row.named}
    assert named == {m.id: m.property for m in mutants()}, again
    dead = {mutant for row in detected().values() for mutant in row.kills}
    assert dead == _BY_NAME.keys(), again


def test_all_properties_kill_all_mutants_none_kill_none_and_what_is_absent_does_not_count() -> None:
    everything, nothing = share(OF_CEM, OF_CEM, ()), share((), OF_CEM, ())
    assert everything.killed == everything.of > 350
    assert (nothing.killed, nothing.percent) == (0, 0.0)
    assert share((), OF_CEM, {"diagonal:shared", "position:alibi"}).of < share((), OF_CEM, ()).of


def test_what_a_layer_states_comes_first_then_what_kills_most_mutants_and_last_what_the_table_does_not_know() -> None:
    in_order = most_telling_first(OF_CEM, ())
    assert sorted(in_order) == sorted(OF_CEM)
    few, most = (share(in_order[: len(in_order) * part // 10], OF_CEM, ()) for part in (1, 9))
    assert few.percent > 60
    assert most.percent > 99
    of_layers = [p.id for p in catalogue() if "/layer/" in p.id]
    stated = {"gradient/layer/energy", "descent/layer/stationary", "structure/layer/reference"}
    assert set(most_telling_first(of_layers, ())[:3]) == stated
    assert most_telling_first(["own/layer/mine", OF_CEM[0]], ()) == [OF_CEM[0], "own/layer/mine"]


def test_every_setting_has_a_mutant() -> None:
    assert {setting.name for setting in SETTINGS} == {name for name in CHANGES if not name.startswith("random state")}


@pytest.mark.thorough
@pytest.mark.parametrize("function", [name.replace("_", "-") for name in FUNCTIONS])
@pytest.mark.parametrize("setting", CHANGES)
def test_no_function_changes_a_setting_unseen(setting: str, function: str) -> None:
    if setting.startswith("JAX"):
        pytest.importorskip("jax", reason="the extra `jax` is not installed")
    id_ = f"contract/{function}/settings-unchanged"
    record = judged(changing(CHANGES[setting], sound()), id_, examples=6, shrink=False)
    assert record.key == ("setting", setting), record

"""Every setting that a call must leave alone has a mutant that changes it, and every function is watched."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from cemverify.conformance.asking.process_state import SETTINGS
from cemverify.conformance.implementations.features import FUNCTIONS
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.properties import select
from cemverify.power.mutants.base import sound
from cemverify.power.mutants.settings import CHANGES, changing


def test_every_setting_has_a_mutant() -> None:
    assert {setting.name for setting in SETTINGS} == {name for name in CHANGES if not name.startswith("random state")}


@pytest.mark.thorough
@pytest.mark.parametrize("function", [name.replace("_", "-") for name in FUNCTIONS])
@pytest.mark.parametrize("setting", CHANGES)
def test_no_function_changes_a_setting_unseen(setting: str, function: str) -> None:
    if setting.startswith("JAX") and importlib.util.find_spec("jax") is None:
        pytest.skip("the extra `jax` is not installed")
    if setting.startswith("JAX"):
        importlib.import_module("jax")
    (property_,) = select([f"contract/{function}/settings-unchanged"])
    record = judge_property(changing(CHANGES[setting], sound()), property_, Effort(examples=6, shrink=False))
    assert (record.cause or "").startswith(f"the process keeps its {setting}"), record

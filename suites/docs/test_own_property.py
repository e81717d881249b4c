"""The how-tos of a property of one's own and of one of the catalogue, followed literally."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cemverify.conformance.implementations.edited import module_of
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties.base import of_module
from cemverify.power.bank import plain
from cemverify.power.mutants import Mutant
from suites.docs.blocks import TUTORIAL, blocks
from suites.kit.commands import Told
from suites.kit.source import ROOT

PAGE = {block.title: block.text for block in blocks(ROOT / "docs" / "how-to" / "own-property.md")}
CHECK = "cemverify check adapter:mine --properties-from myproperties.py --properties own --workers 1"


@pytest.fixture
def folder(here: Path) -> Path:
    """The reader's folder: the layer of the tutorial after its fix, and the files of the page."""
    (here / "layer.py").write_text(TUTORIAL["layer.py"].replace(TUTORIAL["wrong"], TUTORIAL["right"]))
    (here / "adapter.py").write_text(TUTORIAL["adapter.py"])
    for name in ("myproperties.py", "hopfield_properties.py", "test_own.py"):
        (here / name).write_text(PAGE[name])
    return here


def test_the_property_holds_until_the_layer_sees_too_much(folder: Path, told: Told) -> None:
    assert told(CHECK).out.startswith(PAGE["holds"])
    layer = folder / "layer.py"
    layer.write_text(layer.read_text().replace("triu(1)", "triu(2)"))
    os.utime(layer, (1e9, 1e9))  # or a server that writes bytecode would take it for what it was
    output = told(f"{CHECK} -v --save-counterexamples found", 1).out
    assert PAGE["violation"] in output
    assert "--properties own/first-token-reads-itself --properties-from myproperties\n" in output
    told("cemverify replay found/own-first-token-reads-itself.json", 1)
    layer.write_text(layer.read_text().replace("triu(2)", "triu(1)"))
    os.utime(layer, (2e9, 2e9))
    told("cemverify replay found/own-first-token-reads-itself.json")


@pytest.mark.usefixtures("folder")
def test_the_property_of_an_energy_layer_holds_in_the_example(told: Told) -> None:
    asked = "--properties-from hopfield_properties.py --properties own --workers 1"
    told(f"cemverify check examples.energy_layer:mine {asked}")


@pytest.mark.usefixtures("folder")
def test_the_tests_of_the_page_are_collected() -> None:
    import importlib

    marks = importlib.import_module("test_own").test_layer.pytestmark
    assert [parameter.id for parameter in marks[0].args[1]] == ["own/first-token-reads-itself"]


OF_CATALOGUE = {block.title: block.text for block in blocks(ROOT / "docs" / "how-to" / "new-property.md")}
FAMILY = ROOT / "cemverify" / "conformance" / "properties" / "structure.py"
MUTANTS = ROOT / "cemverify" / "power" / "mutants" / "mlp.py"


def test_the_blocks_of_the_page_are_a_property_and_a_mutant_that_dies_of_it() -> None:
    family, mutants = (
        module_of(f"{file.read_text()}\n\n{OF_CATALOGUE[block]}", f"{file.stem}_with_one_more")
        for file, block in ((FAMILY, "check"), (MUTANTS, "mutant"))
    )
    (property_,) = (each for each in of_module(family) if each.id == "structure/mlp/idle-unit")
    for right in (reference, plain):
        assert judge_property(right, property_, Effort()).verdict == Verdict.HOLDS
    mutant: Mutant = mutants.ZOO[-1]
    assert mutant.property == property_.id
    assert mutant.is_killed(judge_property(mutant.subject(), property_, Effort()))

"""Pages followed to the letter: their files are written, their commands run, and the output is as shown."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from cemverify import TrainedModel, check_implementation, energy_layer
from cemverify.catalogue.versions import RELEASED
from cemverify.conformance.implementations.edited import module_of
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties.base import of_module
from cemverify.conformance.trained.activations import random_tokens
from cemverify.conformance.trained.records import judge_trained, prepare
from cemverify.power.bank import plain
from cemverify.power.mutants import Mutant
from cemverify.results import envelope
from cemverify.start.writing import recipe
from suites.docs.blocks import TUTORIAL, Block, blocks
from suites.kit.commands import Told
from suites.kit.examples import defined
from suites.kit.source import ROOT
from synthetic.studies.engine.pages import write_page


def how_to(name: str) -> tuple[Block, ...]:
    return blocks(ROOT / "docs" / "how-to" / f"{name}.md")


# --- the tutorial ---

ASKED = ["gradient/attention/plain", "contract/attention/one-array"]


def test_the_check_finds_the_mistake_as_the_page_shows_it_and_after_the_fix_no_more() -> None:
    layer, wrong, right = (TUTORIAL[name] for name in ("layer.py", "wrong", "right"))
    assert layer.count(wrong) == 1
    adapter = TUTORIAL["adapter.py"].replace("from layer import Attention\n", "")
    mistaken = check_implementation(defined(f"{layer}\n{adapter}"), properties=ASKED)
    assert str(mistaken[0]).startswith(TUTORIAL["violation"])
    mended = check_implementation(defined(f"{layer.replace(wrong, right)}\n{adapter}"), properties=ASKED)
    assert [record.verdict for record in mended] == [Verdict.HOLDS] * 2


def test_the_tests_of_the_tutorial_are_collected_and_its_recipe_is_what_init_writes(here: Path) -> None:
    for name in ("layer.py", "adapter.py", "test_layer.py"):
        (here / name).write_text(TUTORIAL[name])
    importlib.invalidate_caches()
    marks = importlib.import_module("test_layer").test_layer.pytestmark
    assert "gradient/attention/plain" in {parameter.id for parameter in marks[0].args[1]}
    assert TUTORIAL["tox.ini"] == recipe("tox").replace("NAME", "adapter").replace("CATALOGUE", RELEASED[-1])


# --- a property of one's own, and one of the catalogue ---

OWN = {block.title: block.text for block in how_to("own-property")}
CHECK = "cemverify check adapter:mine --properties-from myproperties.py --properties own --workers 1"


@pytest.fixture
def folder(here: Path) -> Path:
    """The reader's folder: the layer of the tutorial after its fix, and the files of the page."""
    (here / "layer.py").write_text(TUTORIAL["layer.py"].replace(TUTORIAL["wrong"], TUTORIAL["right"]))
    (here / "adapter.py").write_text(TUTORIAL["adapter.py"])
    for name in ("myproperties.py", "hopfield_properties.py", "test_own.py"):
        (here / name).write_text(OWN[name])
    return here


def test_the_property_holds_until_the_layer_sees_too_much(folder: Path, told: Told) -> None:
    assert told(CHECK).out.startswith(OWN["holds"])
    layer = folder / "layer.py"
    layer.write_text(layer.read_text().replace("triu(1)", "triu(2)"))
    os.utime(layer, (1e9, 1e9))  # or a server that writes bytecode would not see the change
    output = told(f"{CHECK} -v --save-counterexamples found", 1).out
    assert OWN["violation"] in output
    assert "--properties own/first-token-reads-itself --properties-from myproperties\n" in output
    told("cemverify replay found/own-first-token-reads-itself.json", 1)
    layer.write_text(layer.read_text().replace("triu(2)", "triu(1)"))
    os.utime(layer, (2e9, 2e9))
    told("cemverify replay found/own-first-token-reads-itself.json")


@pytest.mark.usefixtures("folder")
def test_the_property_of_an_energy_layer_holds_in_the_example_and_the_tests_are_collected(told: Told) -> None:
    asked = "--properties-from hopfield_properties.py --properties own --workers 1"
    told(f"cemverify check examples.energy_layer:mine {asked}")
    marks = importlib.import_module("test_own").test_layer.pytestmark
    assert [parameter.id for parameter in marks[0].args[1]] == ["own/first-token-reads-itself"]


def test_the_blocks_of_the_page_are_a_property_and_a_mutant_that_dies_of_it() -> None:
    shown = {block.title: block.text for block in how_to("new-property")}
    family, mutants = (
        module_of(f"{(ROOT / 'cemverify' / file).read_text()}\n\n{shown[block]}", f"{block}_with_one_more")
        for file, block in (("conformance/properties/structure.py", "check"), ("power/mutants/mlp.py", "mutant"))
    )
    (property_,) = (each for each in of_module(family) if each.id == "structure/mlp/idle-unit")
    for right in (reference, plain):
        assert judge_property(right, property_, Effort()).verdict == Verdict.HOLDS
    mutant: Mutant = mutants.ZOO[-1]
    assert mutant.property == property_.id
    assert mutant.is_killed(judge_property(mutant.subject(), property_, Effort()))


# --- a study of one's own ---


def test_a_study_of_ones_own_is_the_two_files_that_the_page_shows(here: Path, told: Told) -> None:
    files = [block for block in how_to("new-study") if block.title]
    assert [block.title for block in files] == ["gains/rows.py", "gains/conclusion.py"]
    for block in files:
        path = here / block.title
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.text)
    commands = [block.text.replace("\\\n", " ") for block in how_to("new-study") if block.language == "bash"]
    estimate, study = (told(command.removeprefix("python -m ")).out for command in commands)
    assert "Cost of gains, mlp, at size tiny" in estimate
    assert "One gain instead of many is " in study
    page = (here / "gains.md").read_text()
    assert page.startswith("# Does the norm need a gain for each channel?\n\n**One gain instead of many is ")
    assert "one gain / a gain for each channel" in page
    assert "--page gains.md`; on a CPU" in page
    assert "--workers" not in page
    readings = envelope.read(here / "gains.json")
    assert (readings["study"], readings["replicates"]) == ("gains-mlp", "2 seeds")
    assert [(r["model"], r["baseline"]) for r in readings["ratios"]] == [("one gain", "a gain for each channel")]
    again = here / "again" / "gains.md"
    write_page(again, envelope.read(here / "out" / "gains-mlp-tiny.json"))
    assert again.read_text() == page  # from the result file alone


# --- a Hugging Face model, whose layer is judged as the table at the end of the page says ---


@pytest.fixture
def llama(here: Path) -> Any:
    """The file on the page, as a module."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    (file,) = (block for block in how_to("hugging-face") if block.title)
    (here / file.title).write_text(file.text)
    torch.manual_seed(0)
    return importlib.import_module("llama")


def verdict(built: TrainedModel) -> Verdict:
    """The verdict on the first property of the page's layer."""
    tokens = random_tokens(built.model, 2, 16, 0)
    findings = judge_trained(prepare(built, "model.layers.0.self_attn", tokens, "cpu"), "llama:build")
    (record,) = (record for record in findings.finished.records if record.id == "trained/update")
    return record.verdict


@pytest.mark.slow
def test_tied_weights_hold_and_those_that_are_drawn_do_not(llama: Any) -> None:
    built = llama.build()
    assert verdict(built) == Verdict.VIOLATED
    llama.tied(built.model)
    assert verdict(built) == Verdict.HOLDS


@pytest.mark.slow
def test_a_softmax_in_float32_is_right_for_a_layer_in_float32(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    llama.CONFIG._attn_implementation = "eager"
    built = llama.build()
    llama.tied(built.model)
    assert verdict(built) == Verdict.VIOLATED
    monkeypatch.setattr(llama, "energy_layer", lambda **named: energy_layer(**named, working_dtype="float32"))
    assert verdict(built) == Verdict.HOLDS

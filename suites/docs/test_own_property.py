"""The how-to of a property of one's own, followed literally."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cemverify.cli import main
from suites.docs.blocks import blocks

ROOT = Path(__file__).parents[2]
PAGE = {block.title: block.text for block in blocks(ROOT / "docs" / "how-to" / "own-property.md")}
TUTORIAL = {block.title: block.text for block in blocks(ROOT / "docs" / "tutorial.md")}
CHECK = ["check", "adapter:mine", "--properties-from", "myproperties.py", "--properties", "own", "--workers", "1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The reader's folder: the layer of the tutorial after its fix, and the files of the page."""
    layer = TUTORIAL["layer.py"].replace(TUTORIAL["wrong"], TUTORIAL["right"])
    (tmp_path / "layer.py").write_text(layer)
    (tmp_path / "adapter.py").write_text(TUTORIAL["adapter.py"])
    for name in ("myproperties.py", "hopfield_properties.py", "test_own.py"):
        (tmp_path / name).write_text(PAGE[name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the layer is changed within its clock's resolution
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_the_property_holds_until_the_layer_sees_too_much(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(CHECK) == 0
    assert capsys.readouterr().out.startswith(PAGE["holds"])
    layer = folder / "layer.py"
    layer.write_text(layer.read_text().replace("triu(1)", "triu(2)"))
    os.utime(layer, (1e9, 1e9))  # or a server that writes bytecode would take it for what it was
    assert main([*CHECK, "-v", "--save-counterexamples", "found"]) == 1
    output = capsys.readouterr().out
    assert PAGE["violation"] in output
    assert output.endswith("--properties own/first-token-reads-itself --properties-from myproperties\n")
    assert main(["replay", "found/own-first-token-reads-itself.json"]) == 1
    layer.write_text(layer.read_text().replace("triu(2)", "triu(1)"))
    os.utime(layer, (2e9, 2e9))
    assert main(["replay", "found/own-first-token-reads-itself.json"]) == 0


@pytest.mark.usefixtures("folder")
def test_the_property_of_an_energy_layer_holds_in_the_example() -> None:
    command = ["check", "examples.energy_layer:mine", "--properties-from", "hopfield_properties.py"]
    assert main([*command, "--properties", "own", "--workers", "1"]) == 0


@pytest.mark.usefixtures("folder")
def test_the_tests_of_the_page_are_collected() -> None:
    import importlib

    marks = importlib.import_module("test_own").test_layer.pytestmark
    assert [parameter.id for parameter in marks[0].args[1]] == ["own/first-token-reads-itself"]

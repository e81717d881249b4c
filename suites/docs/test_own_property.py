"""The how-tos of a property of one's own and of one of the catalogue, followed literally."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cemverify.cli import main
from suites.docs.blocks import TUTORIAL, blocks
from suites.kit.source import ROOT

PAGE = {block.title: block.text for block in blocks(ROOT / "docs" / "how-to" / "own-property.md")}
CHECK = ["check", "adapter:mine", "--properties-from", "myproperties.py", "--properties", "own", "--workers", "1"]


@pytest.fixture
def folder(here: Path) -> Path:
    """The reader's folder: the layer of the tutorial after its fix, and the files of the page."""
    (here / "layer.py").write_text(TUTORIAL["layer.py"].replace(TUTORIAL["wrong"], TUTORIAL["right"]))
    (here / "adapter.py").write_text(TUTORIAL["adapter.py"])
    for name in ("myproperties.py", "hopfield_properties.py", "test_own.py"):
        (here / name).write_text(PAGE[name])
    return here


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


# --- a new property of the catalogue ------------------------------------------------------------------


OF_CATALOGUE = {block.title: block.text for block in blocks(ROOT / "docs" / "how-to" / "new-property.md")}
FAMILY = Path("cemverify/conformance/properties/structure.py")
MUTANTS = Path("cemverify/power/mutants/mlp.py")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The source with the page's two blocks where the page says that they stand."""
    leave_out = shutil.ignore_patterns("__pycache__")
    for folder in ("cemverify", "suites/power", "suites/kit", "docs/making"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=leave_out)
    for name in ("suites/__init__.py", "docs/__init__.py", "conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    family = tmp_path / FAMILY
    family.write_text(f"{family.read_text()}\n\n{OF_CATALOGUE['check']}")
    mutants = tmp_path / MUTANTS
    mutants.write_text(f"{mutants.read_text()}\n\n{OF_CATALOGUE['mutant']}")
    return tmp_path


# Runs commands as a shell would, but in one process: each import of torch takes seconds.
DRIVER = """
import runpy, shlex, sys
import pytest
from cemverify.cli import main
for line in sys.argv[1:]:
    program, *words = shlex.split(line)
    if program == "python":
        sys.argv = words[1:]
        try:
            runpy.run_module(words[1], run_name="__main__")
        except SystemExit as end:
            code = end.code
    else:
        code = main(words) if program == "cemverify" else pytest.main(["-p", "no:cacheprovider", *words])
    assert not code, (line, code)
"""


@pytest.mark.slow
def test_the_steps_of_the_page_add_a_property_and_a_mutant_that_dies_of_it(copy: Path) -> None:
    listing = copy / "cemverify" / "catalogue" / "listing.jsonl"
    before = listing.read_text().splitlines()
    commands = [*OF_CATALOGUE["list"].splitlines(), *OF_CATALOGUE["try"].splitlines()]
    assert [shlex.split(command)[0] for command in commands] == ["python", "cemverify", "cemverify", "pytest"]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *commands],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    after = listing.read_text().splitlines()
    (added,) = set(after) - set(before)
    assert '"id": "structure/mlp/idle-unit"' in added
    assert set(before) < set(after)
    assert " ".join(done.stdout.split()).count("1 run: 1 hold") == 2
    assert re.search(r"\d+ passed", done.stdout)

"""The files of the tutorial, and its notebook: the same text and code, and its cells print what is in it."""

from __future__ import annotations

import importlib
from pathlib import Path

import nbformat

from cemverify.start.writing import recipe
from docs.making.notebook import NOTEBOOK, notebook, run
from suites.docs.blocks import TUTORIAL

AGAIN = "make it again: python -m docs.making.notebook"


def test_the_notebook_is_the_tutorial_and_its_cells_print_what_is_in_it() -> None:
    stored = nbformat.read(NOTEBOOK, as_version=4)
    made = notebook()
    assert [cell.source for cell in stored.cells] == [cell.source for cell in made.cells], AGAIN
    outputs = [cell.outputs for cell in stored.cells if cell.cell_type == "code"]
    assert outputs == [cell.outputs for cell in run(made).cells if cell.cell_type == "code"], AGAIN


def test_the_notebook_finds_the_mistake_of_the_tutorial_and_then_no_more() -> None:
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    mistaken, mended = ("".join(output.text for output in cell.outputs) for cell in cells if cell.outputs)
    assert TUTORIAL["violation"] in mistaken
    assert "VIOLATED" not in mended
    assert mended.count("HOLDS") == 2


def test_the_tests_of_the_tutorial_are_collected_and_its_fix_is_at_one_place(here: Path) -> None:
    for name in ("layer.py", "adapter.py", "test_layer.py"):
        (here / name).write_text(TUTORIAL[name])
    assert TUTORIAL["layer.py"].count(TUTORIAL["wrong"]) == 1
    importlib.invalidate_caches()
    marks = importlib.import_module("test_layer").test_layer.pytestmark
    assert "gradient/attention/plain" in {parameter.id for parameter in marks[0].args[1]}


def test_the_recipe_of_the_tutorial_is_what_init_writes() -> None:
    assert TUTORIAL["tox.ini"] == recipe("tox").replace("NAME", "adapter").replace("CATALOGUE", "2026.11")

"""The notebook is the tutorial: the same text and code, and its cells print what is in it."""

from __future__ import annotations

import nbformat

from docs.making.notebook import NOTEBOOK, TUTORIAL, notebook, run

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
    explained = TUTORIAL.read_text(encoding="utf-8").partition('title="violation"\n')[2].partition("```")[0]
    assert explained in mistaken
    assert "VIOLATED" not in mended
    assert mended.count("HOLDS") == 2

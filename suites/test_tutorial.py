"""The tutorial's files; that its violation and its fix are what is printed, suites/docs/test_notebook.py says."""

from __future__ import annotations

import importlib
from pathlib import Path

from cemverify.start.recipes import RECIPES
from suites.docs.blocks import TUTORIAL


def test_the_tests_of_the_tutorial_are_collected_and_its_fix_is_at_one_place(here: Path) -> None:
    for name in ("layer.py", "adapter.py", "test_layer.py"):
        (here / name).write_text(TUTORIAL[name])
    assert TUTORIAL["layer.py"].count(TUTORIAL["wrong"]) == 1
    importlib.invalidate_caches()
    marks = importlib.import_module("test_layer").test_layer.pytestmark
    assert "gradient/attention/plain" in {parameter.id for parameter in marks[0].args[1]}


def test_the_recipe_of_the_tutorial_is_what_init_writes() -> None:
    assert TUTORIAL["tox.ini"] == RECIPES["tox"].filled("adapter", "2026.11")

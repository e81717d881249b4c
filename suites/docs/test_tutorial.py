"""The files of the tutorial: the check prints what it shows, its fix holds, and its tests are collected."""

from __future__ import annotations

import importlib
from pathlib import Path

from cemverify import check_implementation
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.start.writing import recipe
from suites.docs.blocks import TUTORIAL
from suites.kit.examples import defined

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
    assert TUTORIAL["tox.ini"] == recipe("tox").replace("NAME", "adapter").replace("CATALOGUE", "2026.11")

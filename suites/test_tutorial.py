"""The tutorial, followed literally; that its violation is what is printed, suites/docs/test_notebook.py says."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cemverify.conformance.implementations.contract import kind_of
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import applicable, judge_property
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import select
from cemverify.start.recipes import RECIPES
from suites.docs.tutorial import COMMANDS, layer

PAGE = (Path(__file__).parent.parent / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', PAGE, flags=re.DOTALL))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's folder, with the files of the first two sections."""
    for name in ("layer.py", "adapter.py"):
        (tmp_path / name).write_text(BLOCKS[name])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the file is changed within its clock's resolution
    return tmp_path


def adapter() -> ModuleType:
    """The reader's adapter, as it is in a new process."""
    for name in ("layer", "adapter"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return importlib.import_module("adapter")


def judged(*patterns: str) -> list[Record]:
    subject = adapter().mine
    effort = Effort()
    offered = {p.id for p in applicable(kind_of(subject), select(patterns))}
    records = [judge_property(subject, p, effort) for p in select(patterns) if p.id in offered]
    return [record for record in records if record.verdict != Verdict.NOT_OFFERED]


def test_the_fix_is_one_line_after_which_the_properties_hold(folder: Path) -> None:
    assert BLOCKS["layer.py"].count(BLOCKS["wrong"]) == 1
    (folder / "layer.py").write_text(BLOCKS["layer.py"].replace(BLOCKS["wrong"], BLOCKS["right"]))
    records = judged("gradient/attention/plain", "gradient/attention/any-options", "contract/attention/one-array")
    assert len(records) == 3
    assert {record.verdict for record in records} == {Verdict.HOLDS}


def test_the_tests_of_the_tutorial_are_collected(folder: Path) -> None:
    (folder / "test_layer.py").write_text(BLOCKS["test_layer.py"])
    adapter()
    marks = importlib.import_module("test_layer").test_layer.pytestmark
    sys.modules.pop("test_layer")
    assert "gradient/attention/plain" in {parameter.id for parameter in marks[0].args[1]}


def test_the_recipe_of_the_tutorial_is_what_init_writes() -> None:
    assert BLOCKS["tox.ini"] == RECIPES["tox"].filled("adapter", "2026.11")


def test_the_script_that_follows_the_tutorial_types_what_the_page_says() -> None:
    typed = [command for command, _, _ in COMMANDS]
    for command in dict.fromkeys(typed):
        assert f"    {command}\n" in PAGE or f"`{command}`" in PAGE, command
    commands = re.findall(r"^    ((?:cemverify|pytest) .*)$", PAGE, flags=re.MULTILINE)
    assert set(commands) <= set(typed)
    assert layer(mended=True) != layer(mended=False)

"""An implementation is named by module, by file or by an installed name; a wrong name gets a helpful sentence."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from cemverify.conformance.implementations import contract, naming
from cemverify.conformance.implementations.naming import LoadError, settled
from cemverify.conformance.workers import nursery
from cemverify.console.errors import Refusal
from suites.kit.commands import Told
from suites.kit.examples import PULL


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a package with code and a folder in it, a plain folder, and a source folder."""
    for name in ("package", "package/folder", "plain", "src/sources", "not-a-name"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "layers.py").write_text(PULL)
    (tmp_path / "package/__init__.py").write_text("import os\n")
    (tmp_path / "src/sources/__init__.py").write_text('"""Nothing but words."""\n')
    (tmp_path / "secretive.py").write_text(f"{PULL}\nglobals()['hidden'] = mine\n")
    (tmp_path / "lazy.py").write_text(f"{PULL}\ndef __getattr__(name):\n    return mine\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("plain/layers.py:mine", "plain.layers:mine"),
        ("package/layers.py:mine.update", "package.layers:mine.update"),
        ("package/:os", "package:os"),
        ("src/sources/layers.py:mine", "sources.layers:mine"),
        ("reference", "reference"),
        # these are found only by importing
        ("secretive:anything", "secretive:anything"),
        ("lazy.py:anything", "lazy:anything"),
        ("package.made_up:mine", "package.made_up:mine"),
        ("package/folder/layers.py:mine", "package.folder.layers:mine"),
    ],
)
def test_a_file_stands_for_its_module_and_what_could_be_there_is_not_refused(
    text: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder / "src"))
    assert settled(text) == name
    assert settled(str(folder / "plain" / "layers.py:mine")) == "plain.layers:mine"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nowhere:mine", "no module 'nowhere' (to load 'nowhere:mine'); is it on the Python path?"),
        ("pakage:mine", "no module 'pakage' (to load 'pakage:mine'); did you mean 'package'?"),
        ("plain.layer:mine", "no module 'plain.layer'"),
        ("plain.layers:mein", "module 'plain.layers' has no attribute 'mein'; did you mean plain.layers:mine?"),
        ("plain.layers:zzz", "module 'plain.layers' has no attribute 'zzz'; it defines mine"),
        ("plain/layers.py", "'plain/layers.py' is a file: name an object in it, plain/layers.py:mine"),
        ("plain.layers", "'plain.layers' is a module: name an object in it, plain.layers:mine"),
        ("plain/layer.py:mine", "there is no file 'plain/layer.py'; did you mean plain/layers.py?"),
        ("not-a-name/layers.py:mine", "is not a Python name; go to its folder, or rename it"),
        ("/layers.py:mine", "there is no file '/layers.py'"),
        (f"{300 * 'a'}.py:mine", "there is no file"),
        (":mine", "':mine' has no module before the colon: give module:attribute"),
        ("refrence", "unknown implementation 'refrence'; did you mean 'reference'?"),
        ("zzz", "unknown implementation 'zzz': give module:attribute, file.py:attribute, or one of the installed"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_is_not_there_is_refused_without_importing_anything(text: str, sentence: str) -> None:
    before = set(sys.modules)
    with pytest.raises(LoadError, match=re.escape(sentence)):
        settled(text)
    assert {"plain", "package", "src"}.isdisjoint(set(sys.modules) - before)


def test_a_file_out_of_reach_is_refused_with_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(LoadError, match="go to its folder, or add it to PYTHONPATH"):
        settled("../plain/layers.py:mine")


def test_whoever_imports_says_the_same_and_sees_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "secretive", raising=False)
    for path, words in (("hidden_one", "did you mean secretive:hidden?"), ("zzz", "it defines mine, hidden")):
        with pytest.raises(LoadError, match=rf"module 'secretive' has no attribute '{path}'.*{re.escape(words)}"):
            contract.attribute(f"secretive:{path}")
    assert contract.attribute("secretive.py:hidden") is contract.attribute("secretive:mine")
    sys.modules.pop("secretive")


def test_a_name_is_refused_before_torch_is_imported_and_that_before_the_server_of_workers_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    def started(_: str) -> None:
        raise Refusal("the server starts")

    with monkeypatch.context() as without_torch:
        without_torch.setitem(sys.modules, "torch", None)
        assert "it defines mine" in told("cemverify check plain.layers:zzz", 2).err
    monkeypatch.setattr(nursery, "get_ready", started)
    assert "the server starts" in told(f"cemverify check {folder / 'plain' / 'layers.py:mine'}", 2).err
    without_workers = told("cemverify check plain.layers:mine --checkpoint c.safetensors", 2).err
    assert "the server starts" not in without_workers
    assert "it defines mine" in told("cemverify power plain.layers:zzz", 2).err
    assert naming.parts("plain/layers.py:mine") == ("plain.layers", "mine")


def test_a_folder_that_python_hides_is_named(folder: Path) -> None:
    (folder / "calendar").mkdir()
    hidden = naming.no_module("calendar.a", "calendar/a.py:b")
    assert "the folder 'calendar' has the name of a Python module" in hidden
    assert "is it on the Python path?" in naming.no_module("zoneinfo.a", "zoneinfo.a:b")

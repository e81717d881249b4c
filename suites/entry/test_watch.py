"""`cemverify check --watch`, as a user sees it: a save, a briefly broken file, an editor that renames."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from cemverify.commands.watching import run
from cemverify.conformance.judging.offered import applicable
from cemverify.conformance.properties import select
from cemverify.conformance.properties.own import forget_properties, own_properties
from cemverify.processes.watching import Seen, look, wait
from suites.kit.examples import TIED, UNTIED
from suites.kit.processes import soon


def test_a_file_that_is_deleted_is_a_change_once_it_has_been_missing_for_a_while(tmp_path: Path) -> None:
    mine, helper = tmp_path / "mine.py", tmp_path / "helper.py"
    for each in (mine, helper):
        each.write_text("a = 1\n")
    helper_is_there = look([mine, helper])
    slept = 0

    def sleep(_: float) -> None:
        nonlocal slept
        slept += 1
        assert slept < 100, "a deleted file is waited for"

    helper.unlink()
    assert wait([mine, helper], helper_is_there, sleep) == [helper]
    helper_is_gone, waited, slept = look([mine, helper]), slept, 0
    mine.write_text("a = 22\n")
    assert wait([mine, helper], helper_is_gone, sleep) == [mine]
    assert slept < waited


class _Done(Exception):
    """Ends the loop."""


@pytest.mark.parametrize("saved", ["mine.py", "stated.py"])
def test_files_of_properties_and_a_module_that_was_deleted_and_comes_back_are_noticed(saved: str, here: Path) -> None:
    for name in ("mine.py", "stated.py"):
        (here / name).write_text("")
    checks = 0

    def check(_: object, is_saved: Callable[[], bool]) -> None:
        nonlocal checks
        checks += 1
        assert not is_saved()
        if checks == 3:
            raise _Done
        if checks == 1:
            (here / saved).unlink()
        else:
            (here / saved).write_text("a = 1\n")
        assert is_saved()

    with pytest.raises(_Done):
        run("mine:layer", ["stated"], check)


@pytest.mark.parametrize(
    ("refused", "sentence"),
    [
        (lambda: select(["own/renamed"]), "no property matches 'own/renamed'"),
        (lambda: applicable("energy layer", []), "none of these properties applies"),
        (lambda: int("a library's sentence"), None),
    ],
)
def test_properties_that_a_save_took_away_are_waited_for(
    refused: Callable[[], object], sentence: str | None, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.py").write_text("")
    checks = 0

    def check(*_: object) -> None:
        nonlocal checks
        checks += 1
        if checks == 2:
            raise _Done
        (here / "mine.py").write_text("a = 1\n")
        refused()

    with pytest.raises(ValueError if sentence is None else _Done):
        run("mine:layer", [], check)
    assert (sentence or "") in capsys.readouterr().err


def test_a_file_that_only_the_last_check_reached_is_looked_at(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, helper = here / "mine.py", here / "helper.py"
    for each in (mine, helper):
        each.write_text("")
    reach = SimpleNamespace(files=[SimpleNamespace(file=SimpleNamespace(path=str(helper)))])

    def waiting(paths: Iterable[Path], before: Seen) -> list[Path]:
        assert set(paths) == set(before) == {mine, helper}
        raise _Done

    monkeypatch.setattr("cemverify.commands.watching.wait", waiting)
    with pytest.raises(_Done):
        run("mine:layer", [], lambda *_: (0, SimpleNamespace(reach=reach, records=[])))  # type: ignore[arg-type]


def test_properties_are_read_anew_after_a_save(here: Path) -> None:
    stated = '@layer_property(claim="A step is no step.", source="us")\ndef {}(layer, question):\n    return None\n'
    ids = []
    for names in (["one"], ["one", "another"]):
        text = "".join(map(stated.format, names))
        (here / "stated_anew.py").write_text(f"from cemverify import layer_property\n{text}")
        forget_properties(["stated_anew"])
        ids.append([property_.id for property_ in own_properties(["stated_anew"])])
    assert ids == [["own/one"], ["own/one", "own/another"]]


def test_a_save_that_changes_neither_time_nor_size_and_a_new_file_are_noticed(tmp_path: Path) -> None:
    file, other = tmp_path / "mine.py", tmp_path / "other.py"
    for each, text in ((file, "a = 1\n"), (other, "a = 2\n")):
        each.write_text(text)
        os.utime(each, (1, 1))
    before = look([file])
    other.replace(file)
    assert look([file]) != before
    before = look([tmp_path])
    (tmp_path / "new.py").write_text("")
    assert wait([tmp_path], before) == [tmp_path / "new.py"]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="sends a signal")
def test_every_save_is_checked_and_a_broken_file_is_waited_for_until_ctrl_c(tmp_path: Path) -> None:
    layer, log = tmp_path / "mylayer.py", tmp_path / "told"
    layer.write_text(TIED)
    command = [sys.executable, "-m", "cemverify", "check", "mylayer:mine", "--watch", "--examples", "5", "--workers"]
    command += ["1", "--properties", "gradient/attention/plain", "structure/attention/causality"]
    with log.open("w") as out:
        watcher = subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=subprocess.STDOUT)
    try:
        _until(log, 1)
        assert "2 run: 2 hold" in log.read_text()
        layer.write_text(TIED.replace("    return x", "    return x)"))
        _until(log, 2)
        assert "SyntaxError" in log.read_text()
        aside = tmp_path / "mylayer.py~"
        aside.write_text(UNTIED)
        aside.rename(layer)
        _until(log, 3)
        assert "1 of 2 violated" in log.read_text()
        layer.write_text(TIED)
        _until(log, 4)
        after = log.read_text().rpartition("checking again")[2]
        assert "first the 2 properties that failed or reach what changed" in after
        assert after.index("gradient/attention/plain") < after.index("structure/attention/causality")
        assert "2 run: 2 hold" in after
        watcher.send_signal(signal.SIGINT)
        assert watcher.wait(60) == 130
    finally:
        watcher.kill()
        watcher.wait()


def _until(log: Path, times: int) -> None:
    assert soon(lambda: log.read_text().count("waiting for a save") >= times, 300), log.read_text()

"""The tools that try an installation notice what they are for; `tox run -e wheel` and `matrix` say what they find."""

from __future__ import annotations

import io
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from suites.installation import wheel
from suites.installation.trials import Trial, attempt
from suites.installation.wheel import DATA, strangers
from suites.kit.source import ROOT


def test_a_trial_fails_on_another_exit_code_and_on_other_words_and_does_not_find_the_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    script = tmp_path / "program.py"
    text = "import os, sys; print('said', *sys.argv[1:], os.environ.get('PYTHONPATH')); sys.exit(len(sys.argv) - 2)"
    script.write_text(text)
    trials = (Trial("a", "said a None"), Trial("a b", "said a b", 1), Trial("a b", "said"), Trial("a", "other"))
    faults = [outcome.fault for outcome in attempt([sys.executable, script], trials, tmp_path)]
    assert faults[:2] == ["", ""]
    assert faults[2].startswith("exit code 1 in place of 0")
    assert faults[3].startswith("'other' was not printed")


def test_a_wheel_with_strangers_or_without_its_data_is_noticed(tmp_path: Path) -> None:
    ours = [str(path.relative_to(ROOT)) for path in (ROOT / "cemverify").rglob("*.py")]
    for name, left_out, added in (("good", "", []), ("bad", DATA[2], ["suites/devices.py"])):
        with zipfile.ZipFile(tmp_path / f"{name}.whl", "w") as packed:
            for path in [*ours, *DATA, *added]:
                if path != left_out:
                    packed.writestr(path, "")
    assert strangers(tmp_path / "good.whl") == []
    assert strangers(tmp_path / "bad.whl") == [
        "suites/devices.py does not belong there",
        "cemverify/catalogue/detection.jsonl is missing",
    ]


def test_what_is_no_code_is_package_data_of_a_package_that_there_is() -> None:
    """Or the wheel lacks it, which nobody who works in a clone notices."""
    packed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    named = {f"{package.replace('.', '/')}/{name}" for package, names in packed.items() for name in names}
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "cemverify").rglob("*") if path.is_file()}
    assert named == {name for name in there if not name.endswith((".py", ".pyc"))} == set(DATA)


def test_an_sdist_of_other_times_owners_and_rights_gets_the_same_bytes(tmp_path: Path) -> None:
    made = []
    for number, (time, owner, mode) in enumerate(((1, "anna", 0o600), (2, "ben", 0o664))):
        sdist = tmp_path / f"{number}.tar.gz"
        with tarfile.open(sdist, "w:gz") as packed:
            for name in ("a.py", "b.py")[:: 1 if number else -1]:
                member = tarfile.TarInfo(name)
                member.mtime, member.uname, member.uid, member.mode, member.size = time, owner, time, mode, 3
                packed.addfile(member, io.BytesIO(b"x=1"))
        wheel.normalise(sdist, 1_700_000_000)
        made.append(sdist.read_bytes())
    assert made[0] == made[1]

"""What is built of a clone; `tox run -e wheel` and `-m versions` try it."""

from __future__ import annotations

import io
import tarfile
import tomllib
from pathlib import Path

from suites.installation import wheel
from suites.installation.wheel import DATA
from suites.kit.source import ROOT


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

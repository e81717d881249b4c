"""Files that name the version agree and change together; what is built from a clone is complete."""

from __future__ import annotations

import io
import re
import tarfile
import tomllib
from datetime import date
from pathlib import Path

import yaml

from cemverify._version import VERSION
from cemverify.catalogue.versions import versions
from suites.installation import wheel
from suites.installation.release import EARLY, SETTLED, edits
from suites.kit.source import ROOT

DAY = date(2026, 12, 15)
FILES = (
    "cemverify/_version.py",
    "CITATION.cff",
    "CHANGELOG.md",
    "pyproject.toml",
    "cemverify/catalogue/versions.py",
    "docs/ci.md",
)


def test_all_name_the_version_of_the_package_and_only_one_from_1_on_is_called_stable() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == VERSION
    assert re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == VERSION
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (status,) = (line for line in project["classifiers"] if line.startswith("Development Status"))
    assert status == (SETTLED if int(VERSION.partition(".")[0]) >= 1 else EARLY)
    assert "urls" not in project or "OWNER" not in str(project["urls"])


def test_a_release_changes_every_file_that_names_a_version(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text().replace("\n## Unreleased\n", "\n## Unreleased\n\n- News.\n")
        (tmp_path / name).write_text(text)
    changed = dict(edits(tmp_path, "1.0.0", DAY))
    assert set(changed) == set(FILES)
    assert yaml.safe_load(changed["CITATION.cff"])["version"] == "1.0.0"
    assert yaml.safe_load(changed["CITATION.cff"])["date-released"] == DAY
    assert "## Unreleased\n\n## 1.0.0 (2026-12-15)\n\n- " in changed["CHANGELOG.md"]
    assert SETTLED in changed["pyproject.toml"]
    final = ", ".join(f'"{version}"' for version in versions())
    assert f"RELEASED: Sequence[str] = ({final})\n" in changed["cemverify/catalogue/versions.py"]
    assert set(dict(edits(tmp_path, "0.4.0", DAY))) == set(FILES) - {"pyproject.toml"}  # it has the classifier


def test_what_is_no_code_is_package_data_of_a_package_that_there_is() -> None:
    """Otherwise the wheel would lack it, which nobody who works in a clone would notice."""
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "cemverify").rglob("*") if path.is_file()}
    assert wheel.package_data() == {name for name in there if not name.endswith((".py", ".pyc"))}


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

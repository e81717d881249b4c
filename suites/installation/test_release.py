"""Every file that names the version names the same, and a release changes them together."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path

import yaml

from cemverify._version import VERSION
from cemverify.catalogue.versions import versions
from suites.installation.release import EARLY, SETTLED, edits
from suites.kit.source import ROOT

DAY = date(2026, 12, 15)
FILES = ("cemverify/_version.py", "CITATION.cff", "CHANGELOG.md", "pyproject.toml", "cemverify/catalogue/versions.py")


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
    assert set(dict(edits(tmp_path, "0.4.0", DAY))) == set(FILES) - {"pyproject.toml"}  # which names what is stable

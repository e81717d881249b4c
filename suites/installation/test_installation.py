"""What the wheel is to hold is said where it is built; `tox run -e wheel` and `matrix` try what comes of it."""

from __future__ import annotations

import tomllib

from suites.installation.wheel import DATA
from suites.kit.source import ROOT


def test_what_is_no_code_is_package_data_of_a_package_that_there_is() -> None:
    """Or the wheel lacks it, which nobody who works in a clone notices."""
    packed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    named = {f"{package.replace('.', '/')}/{name}" for package, names in packed.items() for name in names}
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "cemverify").rglob("*") if path.is_file()}
    assert named == {name for name in there if not name.endswith((".py", ".pyc"))} == set(DATA)

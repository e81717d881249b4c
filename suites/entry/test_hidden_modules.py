"""A file of the user's own that hides a module is named, whatever breaks because of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", ["argparse", "json", "random"])
def test_a_file_that_hides_a_module_is_named_in_a_sentence(module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text("raise AttributeError('this is my own')\n")
    done = subprocess.run(
        [sys.executable, "-m", "cemverify", "list", "--json", "new.json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert f"{module}.py hides the module {module}" in sentence
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "new.json").exists()

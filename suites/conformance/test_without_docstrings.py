"""Python strips docstrings and asserts under -OO; verdicts and reports are the same without them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIED, UNTIED = ", a, keys)", ', a, np.einsum("krd,bjd->bkjr", W_Q, h))'
ASKED = ("gradient/attention/plain", "descent/attention/along-steps", "structure/attention/one-array")


def checked(folder: Path, *flags: str) -> str:
    """What `cemverify check` prints of a faulty implementation, without the seconds."""
    words = ["check", "untied:mine", "--examples", "6", "--workers", "1", "--properties", *ASKED]
    command = [sys.executable, *flags, "-m", "cemverify", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return re.sub(r"\d+\.\d+ s\b", "", done.stdout)


@pytest.mark.slow
def test_a_check_prints_the_same_without_docstrings_and_asserts(tmp_path: Path) -> None:
    source = (ROOT / "examples" / "attention_numpy.py").read_text()
    (tmp_path / "untied.py").write_text(source.replace(TIED, UNTIED))
    printed = checked(tmp_path, "-OO")
    assert "VIOLATED gradient/attention/plain" in printed
    assert "claim: " in printed
    assert printed == checked(tmp_path)


@pytest.mark.parametrize("package", ["cemverify", "synthetic", "reports"])
def test_nothing_reads_a_docstring(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(attr=name) | ast.Name(id=name):
                    assert name not in ("__doc__", "getdoc"), f"{path.relative_to(ROOT)}:{node.lineno}"

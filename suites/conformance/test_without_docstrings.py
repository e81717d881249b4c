"""Python strips docstrings and asserts under -OO; verdicts and reports are the same without them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cemverify.cli import main

ROOT = Path(__file__).parents[2]
TIED, UNTIED = ", a, keys)", ', a, np.einsum("krd,bjd->bkjr", W_Q, h))'
ASKED = ("gradient/attention/plain", "descent/attention/along-steps", "contract/attention/one-array")


CHECK = ("check", "untied:mine", "--examples", "6", "--workers", "1", "--properties", *ASKED)


def without_seconds(printed: str) -> str:
    return re.sub(r"\d+\.\d+ s\b", "", printed)


# our own modules as -OO compiles them; under -OO itself all of torch is compiled, too
STRIPPED = """\
import sys
from suites.entry.environments import Stripping
sys.meta_path.insert(0, Stripping)
from cemverify.cli import main
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "python",
    [
        pytest.param(("-c", STRIPPED), id="stripped"),
        pytest.param(("-OO", "-m", "cemverify"), id="-OO", marks=pytest.mark.thorough),
    ],
)
def test_a_check_prints_the_same_without_docstrings_and_asserts(
    python: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = (ROOT / "examples" / "attention_numpy.py").read_text()
    (tmp_path / "untied.py").write_text(source.replace(TIED, UNTIED))
    stripped = subprocess.run(
        [sys.executable, *python, *CHECK],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert stripped.returncode == 1, stripped.stderr
    assert "of gradient/attention/plain: " in stripped.stdout
    assert "again: cemverify check untied:mine" in stripped.stdout
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    assert main(CHECK) == 1  # in this process, which has imported torch already
    assert without_seconds(capsys.readouterr().out) == without_seconds(stripped.stdout)

"""Result files: complete or absent, versioned, and refused in a sentence if they are invalid."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cemverify.results import envelope, provenance
from cemverify.results.provenance import Maker


def test_numbers_that_json_lacks_become_null_and_no_payload_overwrites_the_envelope(tmp_path: Path) -> None:
    numbers = {"margin": float("inf"), "other": [float("nan"), 1.0]}
    envelope.write(tmp_path / "r.json", envelope.result("examine", Maker.now("", {}, 0, "cpu"), [], numbers))
    content = json.loads((tmp_path / "r.json").read_text())
    assert (content["margin"], content["other"]) == (None, [None, 1.0])
    with pytest.raises(ValueError, match="the payload uses reserved keys: kind"):
        envelope.result("check", Maker.now("", {}, 0, "cpu"), [], {"kind": "other"})


@pytest.mark.slow
@pytest.mark.parametrize("command", ["cemverify list", "reports tables docs/results/benchmarks.json"])
def test_a_reader_who_has_seen_enough_changes_nothing_but_what_is_printed(command: str) -> None:
    words, pipes = [sys.executable, "-m", *command.split()], {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as started:  # type: ignore[call-overload]
        started.stdout.close()
        assert started.stderr.read() == ""
    assert started.returncode == 0


def test_a_result_says_which_commit_and_which_processor_made_it(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    assert provenance.commit_of(tmp_path) is None
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    provenance.commit_of.cache_clear()
    assert re.fullmatch("[0-9a-f]{40}", str(provenance.commit_of(tmp_path)))
    (tmp_path / "file").write_text("1")
    for words in (["add", "file"], ["commit", "-q", "-m", "second"]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "file").write_text("2")
    provenance.commit_of.cache_clear()
    assert str(provenance.commit_of(tmp_path)).endswith("+changes")
    assert provenance.describe_device("cpu")["name"]

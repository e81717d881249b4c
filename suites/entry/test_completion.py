"""The Tab key completes commands, options, ids and implementations, without waiting for torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cemverify.catalogue import index
from cemverify.catalogue.versions import versions
from cemverify.commands import completers
from cemverify.commands.completers import implementations, property_ids
from cemverify.conformance.properties import catalogue
from suites.kit.commands import Told
from suites.kit.source import ROOT


@pytest.fixture
def folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an implementation, and `cemverify` on the path."""
    (here / "mylayer.py").write_text("import torch\n\ndef attention(): ...\n\nmine = 1\nraise SystemExit\n")
    script = here / "bin" / "cemverify"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m cemverify "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return here


def test_ids_complete_one_level_at_a_time_and_every_one_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    reached, open_ = set(), list(property_ids(""))
    while open_:
        word = open_.pop()
        if word.endswith("/"):
            open_ += property_ids(word)
        else:
            reached.add(word)
    assert reached == {p.id for p in catalogue()}
    ids = ("gradient/mlp/silu", "gradient/mlp/tanh", "gradient/block/any", "tying/block/pre-norm")
    listed = [replace(index.listed()[0], id=id_) for id_ in ids]
    monkeypatch.setattr(completers, "listed", lambda: listed)
    assert property_ids("") == ["gradient/", "tying/"]
    assert property_ids("grad") == ["gradient/mlp/", "gradient/block/"]
    assert property_ids("gradient/m") == ["gradient/mlp/silu", "gradient/mlp/tanh"]
    assert property_ids("gradient/mlp/t") == ["gradient/mlp/tanh"]
    assert property_ids("tying") == ["tying/block/pre-norm"], "where there is one way to go on, it goes on"
    assert property_ids("decoding") == []


@pytest.mark.usefixtures("folder")
def test_an_implementation_completes_to_what_its_module_defines_without_running_it() -> None:
    assert {"reference", "mylayer:"} <= set(implementations(""))
    assert implementations("mylayer:") == ["mylayer:attention", "mylayer:mine"]
    assert implementations("nosuch:") == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("cemverify che", {"check "}),
        ("cemverify check x --properties gradient/blo", {"gradient/block/any-options "}),
        ("cemverify check x --dtype f", {"float64", "float32"}),
        ("cemverify check x --catalogue ", set(versions())),
        ("cemverify check x --json my", {"mylayer.py "}),
        ("cemverify check x --examples ", {""}),
        ("cemverify list --cont", {"--contract "}),
    ],
)
def test_a_line_completes_without_torch(line: str, words: set[str], folder: Path) -> None:
    variables = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(folder / "out")}
    variables |= {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    code = (
        "import os, sys\nleave = os._exit\n"
        "os._exit = lambda code: (print('torch' in sys.modules, flush=True), leave(code))\n"
        "from cemverify.cli import main\nmain([])"
    )
    command, environment = [sys.executable, "-c", code], {**os.environ, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
    assert set((folder / "out").read_text().split("\n")) == words


_BASH = """
eval "$(cemverify completion bash)"
COMP_LINE="cemverify check mylayer:m"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9; COMP_CWORD=2
COMP_WORDS=(cemverify check mylayer:m)
_python_argcomplete cemverify 2>/dev/null
echo "${COMPREPLY[@]}"
"""
_FISH = 'cemverify completion fish | source; complete -C "cemverify check mylayer:m"'


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("shell", "script", "found"), [("bash", _BASH, "mine"), ("fish", _FISH, "mylayer:mine")])
def test_a_shell_completes_with_what_is_printed_for_it(shell: str, script: str, found: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == found, done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_script_that_names_the_program(shell: str, told: Told) -> None:
    assert "cemverify" in told(f"cemverify completion {shell}").out

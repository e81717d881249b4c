"""What other systems run: a covering part of the commands where nothing that only Linux or Unix gives can be used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cemverify.conformance.workers.limits import is_gone

ROOT = Path(__file__).parents[2]

# Read by every Python that starts with it on its path, worker processes too: takes away what Windows lacks. What is
# left is what the standard library itself cannot do without on Linux.
ELSEWHERE = """
import os, signal, sys
import _socket

for name in ("fork", "forkpty", "setsid", "killpg", "getpgid", "mkfifo", "sched_getaffinity", "sysconf"):
    delattr(os, name)
for name in ("O_NONBLOCK", "O_NOCTTY", "O_NOFOLLOW", "O_DIRECTORY"):
    delattr(os, name)
for name in ("SIGHUP", "SIGQUIT", "SIGCONT", "SIGUSR1", "pthread_kill", "setitimer", "getitimer"):
    delattr(signal, name)
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
del _socket.socketpair, _socket.AF_UNIX  # before `socket` is imported, which then makes pairs of the network's
"""

LAYER = """
import os
import time
from pathlib import Path

from cemverify import implementation
from cemverify.conformance.implementations.reference import mlp

def hangs(x, h, weights, config):
    Path("processes").write_text(f"{os.getppid()} {os.getpid()}")
    time.sleep(600)

mine = implementation(mlp=hangs)
right = implementation(mlp=mlp)
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(ELSEWHERE)
    (tmp_path / "layer.py").write_text(LAYER)
    path = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
    return {**os.environ, "CEMVERIFY_PORTABLE": "1", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def run(environment: dict[str, str], folder: Path, *words: str, module: str = "cemverify") -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", module, *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_check_is_judged_by_processes_that_are_started_one_by_one(
    elsewhere: dict[str, str], tmp_path: Path
) -> None:
    chosen = ["gradient/attention/plain", "gradient/mlp/silu"]
    words = ["check", "reference", "--properties", *chosen, "--examples", "5", "--workers", "2"]
    code, output = run(elsewhere, tmp_path, *words, "--json", "out/result.json", "--junit", "out/result.xml")
    assert code == 0, output
    assert "2 run: 2 hold" in output
    assert json.loads((tmp_path / "out" / "result.json").read_text())["counts"]["holds"] == 2


@pytest.mark.slow
def test_a_call_that_hangs_is_ended(elsewhere: dict[str, str], tmp_path: Path) -> None:
    words = ("--properties", "gradient/mlp/silu", "--examples", "3", "--timeout", "3")
    code, output = run(elsewhere, tmp_path, "check", "layer:mine", *words)
    assert code == 2, output
    assert "a call did not return within 3 seconds" in output


@pytest.mark.slow
def test_a_call_that_hangs_ends_with_its_judge(elsewhere: dict[str, str], tmp_path: Path) -> None:
    words = ("--properties", "gradient/mlp/silu", "--examples", "3", "--timeout", "300")
    check = subprocess.Popen([sys.executable, "-m", "cemverify", "check", "layer:mine", *words], env=elsewhere,
                             cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        named = tmp_path / "processes"
        assert soon(lambda: named.exists() and len(named.read_text().split()) == 2)
        judge, answering = map(int, named.read_text().split())
        os.kill(judge, signal.SIGKILL)
        assert soon(lambda: is_gone(answering))
    finally:
        check.terminate()
        check.wait()


def soon(happened: Callable[[], bool], within: float = 120.0) -> bool:
    """Whether it happens in time; the interpreters that must start first import torch one after the other."""
    until = time.monotonic() + within
    while not happened() and time.monotonic() < until:
        time.sleep(0.05)
    return happened()


@pytest.mark.slow
def test_a_list_with_the_line_ends_of_windows_is_read(elsewhere: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_bytes(b"# known\r\n\r\n")
    words = ("--properties", "gradient/mlp/silu", "--examples", "3", "--known", "known.toml")
    code, output = run(elsewhere, tmp_path, "check", "layer:right", *words)
    assert code == 0, output


def test_what_cannot_be_enforced_is_refused(elsewhere: dict[str, str], tmp_path: Path) -> None:
    code, output = run(elsewhere, tmp_path, "check", "reference", "--memory", "1024")
    assert code == 2
    assert "memory can be limited on Linux only" in output


@pytest.mark.slow
def test_claims_are_judged_without_copies_of_the_process(elsewhere: dict[str, str], tmp_path: Path) -> None:
    code, output = run(elsewhere, tmp_path, "claims", "1-scale", "--workers", "2")
    assert code == 0, output
    assert "1-scale" in output

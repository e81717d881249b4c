"""What other systems can run: a covering set of commands, without anything that only Linux or Unix has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cemverify.conformance.workers.limits import is_gone
from suites.kit.processes import soon
from suites.kit.source import ROOT

# Loaded by every Python with it on its path, worker processes too; removes what Windows lacks, except what the
# standard library itself needs on Linux.
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
from cemverify.conformance.implementations.reference import reference

def hangs(x, h, weights, config):
    Path("processes").write_text(f"{os.getppid()} {os.getpid()}")
    time.sleep(600)

calls = []

def hangs_later(*arguments):
    calls.append(None)
    return hangs(*arguments) if len(calls) > 2 else reference.functions["mlp"](*arguments)

mine = implementation(mlp=hangs)
later = implementation(attention=reference.functions["attention"], mlp=hangs_later)
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(ELSEWHERE)
    (tmp_path / "layer.py").write_text(LAYER)
    path = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
    return {**os.environ, "CEMVERIFY_PORTABLE": "1", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


# commands in one interpreter, each with its exit code and words of its output
CHECK = "cemverify check layer:later --properties gradient/attention/plain gradient/mlp/silu --examples 3 --workers 1"
OUTPUTS = "--json out/result.json --junit out/result.xml"
LINES = {
    "judged by processes that are started one by one, one that hangs is ended, a list has the line ends of Windows": (
        f"{CHECK} --timeout 2 --known known.toml {OUTPUTS}", 1, "a call did not return within 2 s"),
    "what cannot be enforced is refused": ("cemverify check reference --memory 1024", 2,
                                           "memory can be limited on Linux only"),
    "claims are judged without copies of the process": ("cemverify claims 7-sign --workers 2", 0, "7-sign"),
}  # fmt: skip
EACH = """
import contextlib, io, json, sys
from cemverify.cli import main

if __name__ == "__main__":  # its workers import it
    outcomes = []
    for line in sys.argv[1:]:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            outcomes.append((main(line.split()[1:]), output.getvalue()))
    print(json.dumps(outcomes))
"""


@pytest.mark.slow
@pytest.mark.parametrize("names", [list(LINES)[1:2], pytest.param(list(LINES), marks=pytest.mark.thorough)])
def test_commands_do_their_work_elsewhere(names: list[str], elsewhere: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_bytes(b"# known\r\n\r\n")
    (tmp_path / "each.py").write_text(EACH)
    lines = [LINES[name][0] for name in names]
    command = [sys.executable, "each.py", *lines]
    done = subprocess.run(command, cwd=tmp_path, env=elsewhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, (code, printed) in zip(names, json.loads(done.stdout), strict=True):
        assert (code, LINES[name][2] in printed) == (LINES[name][1], True), (name, printed)
    if "--json" in lines[0]:
        counts = json.loads((tmp_path / "out" / "result.json").read_text())["counts"]
        assert (counts["holds"], counts["violated"]) == (1, 1)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_call_that_hangs_ends_with_its_judge(elsewhere: dict[str, str], tmp_path: Path) -> None:
    words = ("--properties", "gradient/mlp/silu", "--examples", "3", "--timeout", "300")
    check = subprocess.Popen([sys.executable, "-m", "cemverify", "check", "layer:mine", *words], env=elsewhere,
                             cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        named = tmp_path / "processes"
        # several interpreters must start, and each imports torch
        assert soon(lambda: named.exists() and len(named.read_text().split()) == 2, 120)
        judge, answering = map(int, named.read_text().split())
        os.kill(judge, signal.SIGKILL)
        assert soon(lambda: is_gone(answering), 120)
    finally:
        check.terminate()
        check.wait()

"""The server of workers is a fork of the command where that is safe, and otherwise a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cemverify.conformance.workers import nursery
from cemverify.conformance.workers.limits import is_gone
from cemverify.processes import forkserver

linux = pytest.mark.skipif(not forkserver.FORKS, reason="Linux alone forks workers from a server")

# Prints whether the server has this program's command line, like a fork, and what one of its workers prints.
PROGRAM = """
import signal, sys, threading
from pathlib import Path
from cemverify.processes import forkserver

signal.signal(signal.SIGTERM, lambda *_: None)
print("told once")
waiting = threading.Event()
if "threaded" in sys.argv:
    threading.Thread(target=waiting.wait).start()
forkserver.fork_server("wave")
command = Path(f"/proc/{forkserver.server()}/cmdline").read_bytes()
print("a fork" if command == Path("/proc/self/cmdline").read_bytes() else "started afresh", flush=True)
worker = forkserver.context().Process(target=print, args=("a worker", ))
worker.start()
worker.join()
caught = int(Path(f"/proc/{forkserver.server()}/status").read_text().split("SigCgt:")[1].split()[0], 16)
print("handles SIGTERM" if caught >> (signal.SIGTERM - 1) & 1 else "leaves SIGTERM alone")
waiting.set()
"""


@linux
@pytest.mark.parametrize(("word", "how"), [("", "a fork"), ("threaded", "started afresh")])
def test_a_program_of_one_thread_forks_its_server_and_another_starts_it_afresh(word: str, how: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, word], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["told once", how, "a worker", "leaves SIGTERM alone"]


@linux
@pytest.mark.parametrize(
    ("name", "forks"), [("cemverify:reference", True), ("nobody.has_it:mine", True), (f"{__name__}:mine", False)]
)
def test_no_process_begins_with_what_was_imported(name: str, forks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    for way in ("fork_server", "ensure_server"):
        monkeypatch.setattr(forkserver, way, lambda *_, way=way: taken.append(way))
    nursery.get_ready(name)
    assert taken == ["fork_server" if forks else "ensure_server"]


@linux
def test_a_worker_that_nobody_has_ended_ends_with_its_program_and_is_not_waited_for() -> None:
    program = "from suites import test_forkserver as here; kept = here.nursery.start(here.waits); print(kept[0].pid)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert is_gone(int(done.stdout))


def waits(connection: Any) -> None:
    """A worker that waits for its connection to be closed."""
    connection.recv()


@linux
@pytest.mark.parametrize("start", ["fork_server()", "ensure_server('imports_for_long')"])
def test_the_server_ends_with_its_program(start: str, tmp_path: Path) -> None:
    (tmp_path / "imports_for_long.py").write_text("import time\ntime.sleep(600)\n")
    program = (
        f"from cemverify.processes import forkserver; forkserver.{start}; print(forkserver.server(), flush=True)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[1]}"}
    # it waits for all processes that hold the streams, so a server that keeps running causes a timeout
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, env=environment)
    assert is_gone(int(done.stdout))


_LOOKED = """
import torch
looked = []
torch.cuda.is_available = lambda: bool(looked.append("available"))
torch.cuda.init = torch.cuda._lazy_init = lambda: looked.append("initialised")
from cemverify.conformance.workers import server_imports
assert not looked, looked
"""


def test_the_server_of_workers_looks_for_no_gpu_which_its_forks_could_not_use_any_more() -> None:
    subprocess.run([sys.executable, "-c", _LOOKED], check=True)

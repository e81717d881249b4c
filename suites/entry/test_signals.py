"""In real processes, a signal ends a command at any instant: one sentence, the signal's exit code, nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from cemverify.processes.time_limits import TimeLimit
from suites.kit.processes import heed, left

CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129, "SIGQUIT": 131}
ENDING = 60.0  # seconds without those of waiting for a core


# while torch is imported; while the collector runs time and again; with a server and workers. Other instants of other
# commands are drawn by `suites/fuzzing`.
CASES = (
    ("cemverify claims --workers 1", "SIGINT", 0.8),
    ("cemverify claims --workers 1", "SIGTERM", 1.6),
    ("synthetic recursion --preset smoke --workers 1 --store cells", "SIGHUP", 5.0),
    ("cemverify check reference --properties gradient contract --workers 1", "SIGQUIT", 4.0),
)


@pytest.mark.skipif(sys.platform != "linux", reason="what is left behind is read from /proc")
@pytest.mark.slow
@pytest.mark.parametrize(("line", "name", "after"), CASES)
def test_a_signal_ends_a_command_by_one_sentence_and_its_code_and_leaves_nothing(
    line: str, name: str, after: float, tmp_path: Path
) -> None:
    folder, temporary = tmp_path / "here", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    package, *rest = line.split()
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", package, *rest]
    process = _running(command, folder, environment, after)
    while process.poll() is not None:  # it was done before
        process.communicate()
        after /= 2
        process = _running(command, folder, environment, after)
    sent = time.monotonic()
    process.send_signal(signal.Signals[name])
    limit, errors = TimeLimit(ENDING, lambda: [process.pid]), None
    while errors is None and not limit.passed():
        with suppress(subprocess.TimeoutExpired):
            _, errors = process.communicate(timeout=1)
    if errors is None:
        os.killpg(process.pid, signal.SIGKILL)
        _, errors = process.communicate()
        pytest.fail(f"it went on for {ENDING:.0f} s after {name}; it had said: {errors[-500:]}")
    assert process.returncode == CODES[name], (time.monotonic() - sent, errors[-2000:])
    sentences = [text for text in errors.splitlines() if text.startswith("error: ")]
    assert len(sentences) == 1, errors
    assert "Traceback" not in errors, errors
    assert "Exception ignored" not in errors, errors
    assert not list(temporary.iterdir())
    assert left(process.pid) == []


def _running(command: list[str], folder: Path, environment: dict[str, str], after: float) -> subprocess.Popen[str]:
    """The command, so many seconds after it was started, and not before it heeds signals."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
        preexec_fn=heed,
    )
    time.sleep(after)
    while process.poll() is None and not _heeds_signals(process.pid):
        time.sleep(0.01)
    return process


def _heeds_signals(process: int) -> bool:
    """Whether it has a handler for the last of them: before that, each has the effect that it has on any program."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt")), 0)
    return bool(caught >> (signal.SIGQUIT - 1) & 1)

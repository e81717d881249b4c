"""Trials of an installed cemverify: commands in one folder, empty at first, far from the clone.

`python -m suites.installation.trials` tries the one installed with this interpreter; `tox run -m versions` does so
for every Python and torch. Exit code 0 if every trial went as it should, otherwise 1.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

# Variables that a trial must not inherit: with them it would find the clone, or the environment of the tests.
_CLEARED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP", "COVERAGE_PROCESS_START")


@dataclass(frozen=True)
class Trial:
    """A command line and its due outcome."""

    words: str  # the arguments
    says: str  # words that it must print
    code: int = 0  # the exit code
    files: Mapping[str, str] = field(default_factory=dict)  # to write before, by name


Outcome = tuple[Trial, float, str]  # a trial, its seconds, and what went wrong; "" if nothing did

# The first steps of anybody who tries cemverify.
FIRST_STEPS = (
    Trial("--version", "cemverify "),
    Trial("check --help", "--catalogue"),
    Trial("completion bash", "cemverify"),
    Trial("check --examples none", "is not a whole number", 2),
    Trial("list gradient/attention/plain", "gradient/attention/plain"),
    Trial("demo", "VIOLATED gradient/attention/plain"),
    Trial("init --kind energy --no-check", "wrote energy_layer.py"),
    Trial("check energy_layer:mine --properties gradient/layer/energy --examples 10", "1 run: 1 hold"),
    Trial("check nosuch:layer", "no module 'nosuch'", 2),
)

# Where versions of Python and torch differ: mapping, differentiation and rounding of functions, the state of a
# process, the start of workers, the writing of result files.
VERSION_BY_VERSION = (
    Trial(
        "check reference --examples 10 --json out/check.json --junit out/check.xml "
        "--properties gradient/attention/plain gradient/mlp/silu gradient/attention/conservative-field "
        "training/attention/plain training/mlp/silu structure/attention/causality "
        "structure/decode/cached-equals-uncached-plain precision/attention/bfloat16 modes/attention/vmap "
        "modes/attention/no-gradients contract/attention/settings-unchanged contract/attention/inputs-unchanged "
        "rejection/attention/nan-input",
        "0 violated, 0 inconclusive, 0 suite errors",
    ),
    Trial("check fast --examples 10 --properties gradient/attention/plain gradient/mlp/silu", "2 run: 2 hold"),
    Trial("claims 7-sign", "7-sign"),
)


def attempt(program: Sequence[str | Path], trials: Sequence[Trial], folder: Path) -> Iterator[Outcome]:
    """Runs trials one after another.

    Args:
        program: the command line of `cemverify`, or of another program. folder: where; files of earlier trials stay.
    """
    environment = {key: value for key, value in os.environ.items() if key not in _CLEARED} | {"OMP_NUM_THREADS": "1"}
    for trial in trials:
        for name, text in trial.files.items():
            (folder / name).write_text(text, encoding="utf-8")
        started = time.monotonic()
        command = [*map(str, program), *trial.words.split()]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
        yield trial, time.monotonic() - started, _fault(trial, done)


def _fault(trial: Trial, done: subprocess.CompletedProcess[str]) -> str:
    output = done.stdout + done.stderr
    if done.returncode != trial.code:
        return f"exit code {done.returncode} in place of {trial.code}: {output.strip()[-400:]}"
    return "" if trial.says in output else f"{trial.says!r} was not printed: {output.strip()[-400:]}"


def report(heading: str, outcomes: Iterator[Outcome], program: str = "cemverify") -> bool:
    """Prints each outcome as it arrives; returns whether all went as they should."""
    print(f"\n{heading}", flush=True)
    good = True
    for trial, seconds, fault in outcomes:
        print(f"  {'FAILED' if fault else 'ok':<7}{seconds:6.1f} s  {program} {trial.words}")
        if fault:
            good = False
            print(f"          {fault}")
    return good


def main() -> int:
    """Tries the cemverify that is installed with this interpreter."""
    heading = f"Python {platform.python_version()}, torch {version('torch')}, cemverify {version('cemverify')}"
    with tempfile.TemporaryDirectory() as folder:
        program = [Path(sys.executable).with_name("cemverify")]
        return 0 if report(heading, attempt(program, (*FIRST_STEPS, *VERSION_BY_VERSION), Path(folder))) else 1


if __name__ == "__main__":
    sys.exit(main())

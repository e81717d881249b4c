"""pytest options and Hypothesis profiles of the suites.

Options: --implementation, --device, --dtype and --examples choose what `suites/conformance` tests and how. Profiles:
`gate` (deterministic, for CI) and `explore` (random, with a database); the default is `gate`.
"""

from __future__ import annotations

import gc
import os
import random
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

# Before torch is imported: one thread per process, or small tensors are slow when several workers share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Until the tests are collected: imported objects stay, and collecting garbage among them takes a fifth of the time.
gc.disable()

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck

from cemverify.conformance.workers import nursery
from cemverify.conformance.workers.compiling import compiling
from cemverify.console.parsing import count
from cemverify.processes import forkserver
from cemverify.processes.cores import cores
from cemverify.processes.devices import find_device
from suites.kit.commands import Printed, Told, call

if not torch.cuda.is_available():  # Triton reads it when torch's compiler imports it
    os.environ.setdefault("TRITON_INTERPRET", "1")

# From "default" by name: under CI Hypothesis would otherwise use its own CI profile as the parent.
_DEFAULT = hypothesis.settings.get_profile("default")
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
hypothesis.settings.register_profile(
    "gate", parent=_DEFAULT, derandomize=True, database=None, max_examples=50, **_COMMON
)
hypothesis.settings.register_profile(
    "explore",
    parent=_DEFAULT,
    derandomize=False,
    database=hypothesis.database.DirectoryBasedExampleDatabase(".hypothesis/examples"),
    max_examples=500,
    **_COMMON,
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cemverify")
    group.addoption(
        "--implementation",
        default="cemverify:reference",
        metavar="NAME",
        help="module:attribute or entry point that suites/conformance judges (default cemverify:reference)",
    )
    group.addoption(
        "--device", default="cpu", help="where torch implementations run: cpu, cuda, cuda:1, auto (default cpu)"
    )
    group.addoption("--dtype", default="float64", choices=("float64", "float32", "bfloat16"), help="default float64")
    group.addoption("--thorough", action="store_true", help="also what is marked thorough: the same with more seeds")
    group.addoption(
        "--examples", type=count, default=None, metavar="N", help="examples per property of the catalogue"
    )


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
    os.environ["XLA_FLAGS"] = compiling(os.environ, "")["XLA_FLAGS"]  # implementations compile here as in a check
    # preload these in the server: hundreds of implementations are judged, and torch's optimisers import its compiler
    forkserver.context("torch._dynamo", nursery.PRELOADED)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # a shell's background jobs ignore Ctrl-C, and so would every process that the tests of Ctrl-C start
        signal.signal(signal.SIGINT, signal.default_int_handler)
    device = config.getoption("--device")
    try:
        find_device(device)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    # a profile named with Hypothesis's own --hypothesis-profile is already loaded and stays
    if config.getoption("--hypothesis-profile", None) is None:
        hypothesis.settings.load_profile("gate")
    elif config.getoption("--hypothesis-profile") == "explore":
        # one seed for the run, inherited by xdist's workers and printed, so that a failure can be reproduced
        os.environ.setdefault("CEMVERIFY_SEED", str(random.SystemRandom().randrange(2**31)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: one worker more than there are cores, because some tests wait for processes that they started."""
    return cores() + 1


def pytest_report_header() -> str:
    return (
        f"cemverify: {torch.cuda.device_count()} CUDA devices, catalogue seed {os.environ.get('CEMVERIFY_SEED', '0')}"
    )


def pytest_collection_finish() -> None:
    """Freezes what is imported by now, so that the garbage collector does not search it again and again."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts fast tests first, or last if workers share them; without a GPU, skips GPU tests with a reason."""
    workers = "PYTEST_XDIST_WORKER" in os.environ
    if not config.getoption("--thorough"):
        deselected = [item for item in items if item.get_closest_marker("thorough")]
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=deselected)
    # a slow test that starts last leaves the other workers idle
    items.sort(key=lambda item: (item.get_closest_marker("slow") is None) == workers)
    if not torch.cuda.is_available():
        absent = pytest.mark.skip(reason="no CUDA device: torch.cuda.is_available() is False")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(absent)


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs a command line in this process, which must end with this exit code; returns only its own output."""

    def run(line: str, code: int = 0) -> Printed:
        capsys.readouterr()
        ended, printed = call(shlex.split(line)), Printed(*capsys.readouterr())
        assert ended == code, printed
        return printed

    return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder where the test runs and from which it can import; these imports are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files may change within the resolution of file times
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]

"""Whatever every command is given, it keeps the rule of `abuses`; what once broke it does so no more."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cemverify.cli import main
from cemverify.results.envelope import read
from suites.entry import ground
from suites.entry.abuses import Abuse, complaints
from suites.entry.drawn import SHARES, WORK, draw_all
from suites.entry.zygote import outcomes
from suites.kit.examples import UNTIED
from suites.kit.source import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="abuses are watched by means of Linux"),
]

USUAL, AT_LENGTH = 24, 1000  # abuses drawn, beside what once broke the rule and in each test at length: five minutes

CHECK = "cemverify check right:mine"
QUICK_CHECK = f"{CHECK} --properties gradient/mlp/silu --examples 5 --workers 1"
POWER = "cemverify power right:mine --store new --workers 1 --json new.json --examples 4"
# A command line that once broke the rule, and what is put beside the sound files; what is refused at once is in
# `test_bad_input`.
LINES = (
    # an output was replaced by a file, whatever it was
    *((f"{CHECK} --{kind} link", {"link": "-> /proc/self/fd/1"}) for kind in ("json", "markdown", "junit")),
    (f"{CHECK} --json link", {"link": "-> fifo", "fifo": "fifo"}),
    (f"{CHECK} --json /dev/full", {}),
    # a link to a folder that is not there yet
    ("benchmarks gpu --report --folder link", {"link": "-> new-too"}),
    # what may be a file or a name elsewhere was looked for as a file, whose name was too long
    (f"synthetic language fixed-memory --dataset {'x' * 300}", {}),
    # blocked, or read towards all memory
    (f"{CHECK} --known odd", {"odd": "fifo"}),
    ("reports tables odd", {"odd": "fifo"}),
    ("reports page odd", {"odd": "-> /dev/urandom"}),
    # the library maps a file of tensors before it looks at it
    ("cemverify check model:build --checkpoint odd.safetensors --layer 0", {"odd.safetensors": "sparse"}),
)
# A signal, and the seconds after which it was lost, or its command did not end. It comes at other instants on other
# machines; `test_ends` has what was wrong.
SIGNALLED = (
    ("SIGTERM", 0.195, f"{QUICK_CHECK} --watch"),
    ("SIGHUP", 0.27, f"{QUICK_CHECK} --watch"),
    ("SIGQUIT", 0.012, f"{QUICK_CHECK} --watch"),
    ("SIGHUP", 0.042, POWER),
    ("SIGQUIT", 0.226, POWER),
)
NAME = "\x1b[2J\u202e\n\x07.json"  # the name of an output goes to a terminal
NAMED = (
    f"{CHECK} --save-counterexamples",
    "cemverify claims 15-matched-mlp --markdown",
    "cemverify init --no-check --folder",
    "reports tables r.json --output",
    "benchmarks --report benchmarks.json --page",
    "synthetic language scale second-step-mlp.json --page",
)


def regressions() -> Iterator[Abuse]:
    """The commands that once went wrong."""
    yield from (Abuse("regressions", tuple(line.split()), made=made) for line, made in LINES)
    yield from (Abuse("regressions", (*line.split(), NAME)) for line in NAMED)
    # an import that stops its process was waited for as long as an import may take
    stops = b"import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n".hex()
    yield Abuse("regressions", ("cemverify", "check", "stops:mine"), files={"stops.py": stops}, real=True, wrong=True)
    yield from (Abuse("regressions", tuple(CHECK.split()), limits={"files": files}) for files in (8, 12, 16))
    # no descriptor was left, not even to leave stderr
    words = ("reports", "pictures", "benchmarks.json", "--output", "new")
    yield Abuse("regressions", words, limits={"files": 8}, streams=("closed", "full"))
    for name, seconds, line in SIGNALLED:
        number = int(signal.Signals[name])
        yield Abuse("regressions", tuple(line.split()), signals=(number, seconds), real=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what the commands read, made once for all tests of this file."""
    made = tmp_path_factory.mktemp("ground")
    ground.make(made)
    return made


def broken(abuses: Sequence[Abuse], folder: Path) -> list[str]:
    """What broke the rule, with its complaints."""
    pairs = list(outcomes(abuses, folder))
    assert {abuse.kind for abuse, _ in pairs} >= SHARES.keys()
    wrong = [(abuse, outcome, why) for abuse, outcome in pairs if (why := complaints(abuse, outcome))]
    return [f"{why}: {abuse} -> {outcome.code}, {outcome.stderr[-500:]}" for abuse, outcome, why in wrong]


def test_commands_keep_the_rule_under_abuse(folder: Path, request: pytest.FixtureRequest) -> None:
    """One test, for all abuses are run by one process; what once broke the rule is among them, and real work is."""
    every = 1 if request.config.getoption("--thorough") else 4
    seed = int(os.environ.get("CEMVERIFY_SEED", "1"))
    assert broken([*list(regressions())[::every], *draw_all(USUAL, seed)], folder) == []


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(1, 21))
def test_commands_keep_the_rule_under_a_thousand_abuses(folder: Path, seed: int) -> None:
    """Twenty thousand in all, in parts that several workers share."""
    assert broken(draw_all(AT_LENGTH, seed), folder) == []


EACH = """\
import json, sys
from cemverify.cli import main
main(["list"])  # with warnings as the interpreter was asked to treat them, before other libraries filter them
from suites.kit.commands import call
print(json.dumps([call(line.split()) for line in sys.argv[1:]]))
"""
ODD = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONWARNINGS": "error"}
PROPERTIES = "gradient/attention/plain descent/attention/along-steps contract/attention/one-array"
MISTAKEN = f"cemverify check untied:mine --examples 6 --workers 1 --properties {PROPERTIES}"


# no docstring is read, as test_architecture asserts: under -OO all of torch is compiled anew
@pytest.mark.thorough
@pytest.mark.parametrize("flags", [(), ("-OO",)], ids=["usual", "without-docstrings"])
def test_commands_do_the_same_in_an_odd_interpreter(
    flags: tuple[str, ...], folder: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    litter = here / ("temporary-" * 6)  # too long for the path of a socket
    litter.mkdir()
    Path("untied.py").write_text(UNTIED)
    Path("r.json").write_bytes((folder / "r.json").read_bytes())
    lines = [line.replace("BOX/new.json", f"{n}.json").replace("BOX/", "") for n, line in enumerate(WORK)]
    done = subprocess.run(
        [sys.executable, *flags, "-c", EACH, *lines, MISTAKEN],
        env={**os.environ, **ODD, "TMPDIR": str(litter), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    *printed, codes = done.stdout.splitlines()
    assert codes == str([*(code for code, _ in WORK.values()), 1]), done.stderr
    assert "Traceback" not in done.stderr
    assert all(read(here / f"{n}.json")["tables"] for n, (_, file) in enumerate(WORK.values()) if file)
    assert [path.name for path in litter.iterdir() if path.name.startswith("cemverify")] == []
    assert main(MISTAKEN.split()[1:]) == 1  # in this process, which has imported torch already
    report = without_seconds(capsys.readouterr().out)
    assert without_seconds("\n".join(printed)).endswith(report.rstrip())


def without_seconds(text: str) -> str:
    return re.sub(r"\d+\.\d+ s\b", "", text)

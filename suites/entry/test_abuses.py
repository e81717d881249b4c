"""Every command keeps the rule, whatever it is given; arguments are drawn from the parsers themselves."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docs.making.parsers import PROGRAMS, parsers
from suites.entry import ground
from suites.entry.rule import complaint, complaint_of, is_whole, seen, work_is_told
from suites.kit.commands import call
from suites.kit.source import ROOT

pytestmark = pytest.mark.slow


_words = str.split


_TEXTS = (
    *("", " ", "x" * 300, "a/" * 2000, "\x1b[2J\x07", "\u03c4\u03b1\u03c5\u202e", "\udcff", "a\nb"),
    *_words("- -- * [ %s {0} $HOME ~ ../.. 1/0 2/1 1/9999999999999 0/0 cuda:99 meta reference"),
    *_words("right:mine right.py:mine right:none package.layer:mine : a:b:c .py: none:mine = # sparse:mine"),
    *("gradient/mlp/silu", "gradient", "9" * 4500, "rbf", "1*rbf + 0*linear", "rbf(", "(" * 500, "0.0.1", "nan"),
    *("T = 1", *_words("markov tiny smoke 2027-02-19 0001-01-01 fail right.mine:x.y os:path json:dumps")),
)
_NUMBERS = (
    *_words("0 1 2 3 -1 07 1.5 1e10 1e308 1e-308 nan inf -inf"),
    *("9" * 30, "9" * 4500, "4294967295", "4294967296", "1000000000000", "0x10", "\u0663", "1_00"),
    *("", " 1", "+1", "one"),
)
_SOUND_NUMBERS = ("1", "2", "3", "8")
# Never writes outside the folder: tests may run as root.
_OUTPUTS = (
    *_words("new.json new/deeper.json new new.md . found loop loop/x dangling fifo socket to-null to-stdout"),
    *_words("/dev/null /dev/full /dev/fd/1 /proc/none/x /proc/self/fd/0 /proc/self/fd/99 found/../new.json"),
    *("right.py/x", "x" * 255, "x" * 256, "y" * 230 + ".json", "a/" * 2000, "", "\udcff.json", "~"),
    *("\x1b[2J.json", "new\nline.json"),
)
_INPUTS = (
    *_words("right.py found/../right.py r.json ./r.json r.json/ check.json known.toml found store corpora one.txt"),
    *_words("found/gradient-mlp-silu.json tokens.npy w.safetensors results benchmarks.json second-step-mlp.json"),
    *_words("some.cells.jsonl package package/layer.py model.py found/to-right.py sparse sparse.py zeros"),
    *_words("/dev/urandom /proc/self/mem text.json deep.json binary.json folder.json nan.json"),
)
# options that name outputs; a file that no command reads may be overwritten, so `_OUTPUTS` has none
_WRITES = ("--json", "--junit", "--markdown", "--output", "-o", "--page", "--save-counterexamples", "--folder",
           "--cells", "--store", "--corpora")  # fmt: skip
# positional arguments that every command's parser accepts
_SOUND: Mapping[str, Sequence[str]] = {
    "cemverify check": ("right:mine", "right.py:mine", "package.layer:mine", "reference"),
    "cemverify replay": ("found/gradient-mlp-silu.json",),
    "cemverify claims": ("", "15-matched-mlp"),
    "cemverify power": ("", "right:mine"),
    "cemverify init": ("--no-check", "--no-check --name other"),
    "cemverify repair": ("right:mine", "right.py:mine --json new.json"),
    "cemverify list": ("", "gradient/mlp/silu"),
    "cemverify completion": ("bash",),
    "reports compare": ("r.json check.json", "check.json check.json"),
    "reports page": ("r.json check.json", "power.json"),
    "reports tables": ("r.json", "recursion.json benchmarks.json"),
    "reports pictures": ("check.json", "r.json"),
    "benchmarks": ("--report benchmarks.json", ""),
    "benchmarks gpu": ("--report", "--folder new"),
    "synthetic examine": ("rbf",),
    "synthetic recursion": ("--preset smoke", "--store new"),
    "synthetic language train": ("--preset smoke", "--text one.txt"),
    "synthetic language second-step": ("--estimate", "--cells new"),
    "synthetic language dial": ("--estimate",),
    "synthetic language study": ("diagonal", "recursion"),
}
# the name of an output is printed on a terminal
NAME = "\x1b[2J\u202e\n\x07.json"
NAMED = (
    *("cemverify check right:mine --save-counterexamples", "cemverify claims 15-matched-mlp --markdown"),
    *("cemverify init --no-check --folder", "reports tables r.json --output", "reports pictures check.json --output"),
    *("benchmarks --report benchmarks.json --page", "synthetic recursion --report recursion.json --page"),
)
# one exits in the parser, one runs until a signal, one changes its input on purpose
_LEFT_OUT = ("help", "watch", "update_known")


@cache
def _commands() -> Mapping[str, Sequence[argparse.Action]]:
    """The arguments of every command, by its first words."""
    found = {words.removeprefix("python -m "): p for name in PROGRAMS for words, p in parsers(name).items()}
    return {
        words: [a for a in p._actions if not isinstance(a, argparse._SubParsersAction) and a.dest not in _LEFT_OUT]
        for words, p in found.items()
    }


def _value(action: argparse.Action) -> st.SearchStrategy[str]:
    pools: list[Sequence[str]] = [_TEXTS]
    if set(action.option_strings) & set(_WRITES):
        pools = [_OUTPUTS]
    elif action.choices is not None:
        pools = [[str(choice) for choice in action.choices]] * 9 + pools
    elif getattr(action.type, "__name__", "") in ("path", "Path"):
        pools = [_INPUTS] * 6 + [_OUTPUTS] * 3 + pools
    elif action.type is not None:
        pools = [_SOUND_NUMBERS] * 9 + [_NUMBERS] * 5 + pools
    return st.sampled_from(pools).flatmap(st.sampled_from)


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """Draws command lines: any options of any command, with valid and invalid values."""
    command = draw(st.sampled_from(sorted(_commands())))
    words = command.split()
    sound = draw(st.integers(0, 3)) and command in _SOUND
    if sound:
        words += draw(st.sampled_from(_SOUND[command])).split()
    options = [a for a in _commands()[command] if a.option_strings or not sound]
    for action in draw(st.lists(st.sampled_from(options), max_size=4)) if options else ():
        words += action.option_strings[-1:]
        if action.nargs != 0:
            most = 3 if action.nargs in ("+", "*") else 1
            words += draw(st.lists(_value(action), min_size=1, max_size=most))
    return words


@contextmanager
def forgotten() -> Iterator[None]:
    """Forgets modules imported inside, and changes of the import path."""
    modules, paths = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = paths
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and name.partition(".")[0] in ("right", "package", "model"):
            del sys.modules[name]


def test_commands_keep_the_rule_whatever_they_are_given(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    work_is_told(monkeypatch)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = seen(folder)

    def keeps(words: list[str]) -> None:
        with forgotten():
            complaint(lambda: call(words))
        after = seen(folder)
        fresh = [path for path in after if path not in before]
        try:
            assert {path: after.get(path) for path in before} == before
            assert [path for path in fresh if path.is_file() and not is_whole(path)] == []
        finally:
            for path in sorted(fresh, reverse=True):  # a folder's content before the folder
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        assert list(tmp_path.iterdir()) == []

    for line in NAMED:
        keeps([*line.split(), NAME])
    examples = settings(max_examples=5000 if request.config.getoption("--thorough") else 150)
    examples(given(lines())(keeps))()


CHECK = "check right:mine --properties gradient/mlp/silu --examples 5 --seconds 60 --workers 1 --json new.json"
RECURSION = "recursion --preset smoke --models cem --steps 1 --seeds 1 --workers 0 --store s --output new.json"
ODD = "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 PYTHONWARNINGS=error"
LONG = "temporary-" * 8
# A shell line and its exit code. A command whose output cannot be written has failed, unless it also writes a file.
SURROUNDINGS = (
    ("$cemverify list > /dev/full", 2),
    ("$cemverify list >&-", 2),
    ("$cemverify list nothing 2>&-", 2),
    (f"mkdir gone; cd gone; rmdir ../gone; $cemverify {CHECK}", 2),
    (f"cd /proc; $cemverify {CHECK}", 2),
    (f"ulimit -n 8; $cemverify {CHECK}", 2),
    ("ulimit -f 0; $cemverify list --json new.json 2>&1", 2),
    ("ulimit -n 8; python -m reports pictures check.json --output new >&- 2>/dev/full", 2),
    (f"COLUMNS=-5 TERM=xterm TZ=Nowhere/None PYTHONIOENCODING=ascii TMPDIR=/none HOME=/proc $cemverify {CHECK}", 0),
    (f"unset HOME; COLUMNS=99999999999 TERM=dumb PYTHONIOENCODING=latin-1 CI=true $cemverify {CHECK} 2>/dev/full", 0),
    # the path of the temporary folder is too long for a socket
    (f"mkdir {LONG}; {ODD} TMPDIR=$PWD/{LONG} $cemverify {CHECK}; code=$?; rmdir {LONG} && exit $code", 0),
    # thorough, as -OO compiles all of torch anew; test_architecture asserts by default that no docstring is read
    pytest.param(f"{ODD} {sys.executable} -OO -m cemverify {CHECK}", 0, marks=pytest.mark.thorough),
    pytest.param(f"{ODD} {sys.executable} -m synthetic {RECURSION}", 0, marks=pytest.mark.thorough),
)


@pytest.mark.skipif(sys.platform != "linux", reason="bash, /proc and limits as Linux has them")
@pytest.mark.parametrize(("line", "code"), SURROUNDINGS)
def test_a_command_keeps_the_rule_in_odd_surroundings(line: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(ground.IMPLEMENTATION)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "cemverify": f"{sys.executable} -m cemverify"}
    done = subprocess.run(["/bin/bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True)
    told = "2>" in line or ">&-" in line
    assert done.returncode == code, done.stderr
    assert told or bool(complaint_of(code, done.stdout, done.stderr)) == (code == 2)
    assert (tmp_path / "new.json").exists() == (code == 0)

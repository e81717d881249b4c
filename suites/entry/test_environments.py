"""Every command does its work, or says in a sentence why it cannot, whatever it finds around it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cemverify.cli import main
from cemverify.conformance.questions.coverage import covering
from cemverify.results.envelope import ResultError, Table, read, result, write
from cemverify.results.provenance import Maker
from suites.fuzzing.abuses import Abuse, Outcome
from suites.kit.examples import UNTIED
from suites.kit.source import ROOT

pytestmark = pytest.mark.slow

FACTORS = {
    "stdout": ("open", "full", "closed"),
    "stderr": ("open", "full", "closed"),
    "PYTHONIOENCODING": ("utf-8", "ascii", "latin-1"),
    "folder": ("usual", "read-only", "deleted"),
    "COLUMNS": (None, "20"),
    "HOME": ("/tmp", None),  # noqa: S108
}
# each command, as short as it can be, and its exit code (so few examples leave mutants alive, and so small a
# language model is no better than bigrams). {file} is what it writes, {store} what they share
COMMANDS = {
    "cemverify list --help": 0,
    "cemverify list": 0,
    "cemverify check reference --properties rejection/mlp/zero-steps --examples 4 --json {file}": 0,
    "cemverify claims 15-matched-mlp --json {file}": 0,
    "cemverify power --families recursion --seeds 1 --examples 2 --no-sweep --no-bank --workers 0 --store {store} "
    "--json {file}": 1,
    "cemverify replay {store}/none.json": 2,
    "reports tables {store}/result.json": 0,
    "synthetic examine rbf --train-points 12 --test-points 6 --output {file}": 0,
    "synthetic recursion --preset smoke --models cem --steps 1 --seeds 1 --train-points 64 --workers 0 "
    "--store {store} --output {file}": 0,
    "synthetic language train --preset tiny --models llama-rope --steps 2 --dim 8 --layers 1 --heads 1 --context 8 "
    "--batch 2 --corpus markov --length 2000 --workers 1 --corpora {store} --output {file}": 1,
}


def is_whole(file: Path) -> bool:
    """Whether a result file is there, and sound."""
    try:
        return bool(read(file)["tables"])
    except ResultError:
        return False


def stored(folder: Path) -> Path:
    """A new folder in that one, which commands share, with a result."""
    store = folder / "store"
    store.mkdir()
    table = Table("Table ταυ", ["a"], [["∞ ≠ 0"]])
    write(store / "result.json", result("atlas", Maker.now("c", {}, 0, "cpu"), [table], {}))
    return store


def rows(store: Path) -> Iterator[tuple[Abuse, int, Path | None]]:
    """Commands in environments, so that every two values meet, each with its usual exit code and what it writes."""
    for number, (command, *values) in enumerate(covering((len(COMMANDS), *map(len, FACTORS.values())))):
        around = {name: FACTORS[name][value] for name, value in zip(FACTORS, values, strict=True)}
        line, code = list(COMMANDS.items())[command]
        file = store.with_name(f"result-{number}.json")
        words = tuple(word.format(file=file, store=store) for word in line.split())
        streams = str(around.pop("stdout")), str(around.pop("stderr"))
        folder = str(around.pop("folder"))
        # of `check` workers take seconds to start: it gets verdicts, of which one is a violation
        real = words[1] != "check"
        abuse = Abuse("environments", words, environment=around, streams=streams, folder=folder, real=real)
        yield abuse, code if real else 1, file if "{file}" in line else None


def expected(abuse: Abuse, code: int) -> tuple[int, str]:
    """The exit code, and how the complaint on stderr begins: output that nobody can read is no success."""
    if abuse.folder == "deleted":
        return 2, "error: the current folder is gone"
    if code < 2 and abuse.streams[0] != "open":
        return 2, "error: the result cannot be printed"
    return code, "" if code < 2 else "error: cannot read"


def departures(table: Sequence[tuple[Abuse, int, Path | None]], came: Sequence[Outcome]) -> list[str]:
    """Where a command neither did its work nor said why not."""
    wrong = []
    for (abuse, usual, file), outcome in zip(table, came, strict=True):
        code, words = expected(abuse, usual)
        complete = file is None or abuse.folder == "deleted" or is_whole(file)
        explained = abuse.streams[1] != "open" or words in outcome.stderr
        if outcome.code != code or not complete or not explained:
            wrong.append(f"{abuse}: {outcome}, {'whole' if complete else 'no file'}")
    return wrong


EACH = """\
import json, sys
from cemverify.cli import main
main(["list"])  # with warnings as the interpreter was asked to treat them, before other libraries filter them
from suites.kit.commands import call
print(json.dumps([call(line.split()) for line in sys.argv[1:]]))
"""
ODD = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONWARNINGS": "error"}
PROPERTIES = "gradient/attention/plain descent/attention/along-steps contract/attention/one-array"
CHECK = f"cemverify check untied:mine --examples 6 --workers 1 --properties {PROPERTIES}"


# no docstring is read, as test_architecture asserts: under -OO all of torch is compiled anew
@pytest.mark.thorough
@pytest.mark.parametrize("flags", [(), ("-OO",)], ids=["usual", "without-docstrings"])
def test_commands_do_the_same_in_an_odd_interpreter(
    flags: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, litter = stored(here), here / ("temporary-" * 6)  # too long for the path of a socket
    litter.mkdir()
    Path("untied.py").write_text(UNTIED)
    lines = [line.format(file=here / f"{n}.json", store=store) for n, line in enumerate(COMMANDS)]
    done = subprocess.run(
        [sys.executable, *flags, "-c", EACH, *lines, CHECK],
        env={**os.environ, **ODD, "TMPDIR": str(litter), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    *printed, codes = done.stdout.splitlines()
    assert codes == str([*COMMANDS.values(), 1]), done.stderr
    assert "Traceback" not in done.stderr
    assert all(is_whole(here / f"{n}.json") for n, line in enumerate(COMMANDS) if "{file}" in line)
    assert [path.name for path in litter.iterdir() if path.name.startswith("cemverify")] == []
    assert main(CHECK.split()[1:]) == 1  # in this process, which has imported torch already
    report = without_seconds(capsys.readouterr().out)
    assert without_seconds("\n".join(printed)).endswith(report.rstrip())


def without_seconds(text: str) -> str:
    return re.sub(r"\d+\.\d+ s\b", "", text)

"""Every command does its work, or says in a sentence why it cannot, whatever it finds around it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from cemverify.conformance.questions.coverage import covering
from cemverify.results.envelope import ResultError, Table, read, result, write
from cemverify.results.provenance import Maker
from suites.entry.environments import Environment, Interpreter, run

FACTORS = {
    "stdout": ("open", "full", "closed"),
    "stderr": ("open", "full", "closed"),
    "encoding": ("utf-8", "ascii", "latin-1"),
    "folder": ("usual", "read-only", "deleted"),
    "columns": (0, 20),
    "home": (True, False),
}
ODD = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONWARNINGS": "error"}
INTERPRETERS = {
    "usual": Interpreter(),
    "odd": Interpreter(variables=ODD, stripped=True),
}
# each command, as short as it can be, and its exit code (so few examples leave two mutants alive, and so small a
# language model is no better than bigrams). {file} is what it writes, {store} what they share
COMMANDS = {
    "cemverify list": 0,
    "cemverify check reference --properties rejection/mlp/zero-steps --examples 4 --json {file}": 0,
    "cemverify claims 15-matched-mlp --json {file}": 0,
    "cemverify power --families rejection --seeds 1 --examples 4 --no-sweep --no-bank --workers 0 --store {store} "
    "--json {file}": 1,
    "cemverify replay {store}/none.json": 2,
    "reports tables {store}/result.json": 0,
    "synthetic examine rbf --train-points 12 --test-points 6 --output {file}": 0,
    "synthetic recursion --preset smoke --models cem --steps 1 --seeds 1 --workers 0 "
    "--store {store} --output {file}": 0,
    "synthetic language train --preset tiny --models llama-rope --steps 2 --dim 8 --layers 1 --heads 1 --context 8 "
    "--batch 2 --corpus markov --length 2000 --workers 1 --corpora {store} --output {file}": 1,
}


@dataclass(frozen=True)
class Row:
    """A command in an environment, and the exit code that it has where nothing is odd."""

    environment: Environment
    file: Path | None
    code: int

    def code_due(self) -> int:
        """A folder that is gone, or output that nobody can read, is no success."""
        gone = self.environment.folder == "deleted" or self.environment.stdout != "open"
        return 2 if gone else self.code

    def sentence_due(self) -> str:
        """How the complaint on stderr must begin in such an environment; empty where there is none."""
        if self.environment.folder == "deleted":
            return "error: the current folder is gone"
        if self.code < 2 and self.environment.stdout != "open":
            return "error: the result cannot be printed"
        return "" if self.code < 2 else "error: cannot read"


def is_whole(file: Path) -> bool:
    """Whether a result file is there, and sound."""
    try:
        return bool(read(file)["tables"])
    except ResultError:
        return False


def rows_of(interpreter: str, folder: Path) -> list[Row]:
    """The rows of an interpreter; over both, every two values of any two factors meet."""
    array = covering((len(INTERPRETERS), len(COMMANDS), *map(len, FACTORS.values())))
    rows = []
    for number, (started, command, *values) in enumerate(array):
        if list(INTERPRETERS)[started] != interpreter:
            continue
        line, code = list(COMMANDS.items())[command]
        file = folder / f"result-{number}.json"
        words = tuple(word.format(file=file, store=folder / "store") for word in line.split())
        found = dict(
            zip(FACTORS, (FACTORS[name][value] for name, value in zip(FACTORS, values, strict=True)), strict=True)
        )
        rows.append(Row(Environment(words, **found), file if "{file}" in line else None, code))  # type: ignore[arg-type]
    return rows


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    ("name", "interpreter"),
    [
        *INTERPRETERS.items(),
        pytest.param("odd", Interpreter(("-OO",), ODD), id="odd-OO", marks=pytest.mark.thorough),
    ],
)
def test_a_command_does_its_work_or_says_why_not(
    name: str, interpreter: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    litter = tmp_path / ("temporary-" * 6)  # too long for the path of a socket
    for folder in (litter, tmp_path / "store"):
        folder.mkdir()
    table = Table("Table ταυ", ["a"], [["∞ ≠ 0"]])
    write(tmp_path / "store" / "result.json", result("atlas", Maker.now("c", {}, 0, "cpu"), [table], {}))
    monkeypatch.setenv("TMPDIR", str(litter))
    rows = rows_of(name, tmp_path)
    codes = run([row.environment for row in rows], tmp_path, interpreter)
    wrong = []
    for number, (row, code) in enumerate(zip(rows, codes, strict=True)):
        said = (tmp_path / f"{number}.stderr").read_text("latin-1") if row.environment.stderr == "open" else None
        complete = row.file is None or row.environment.folder == "deleted" or is_whole(row.file)
        if (
            code != row.code_due()
            or not complete
            or (said is not None and ("Traceback" in said or "unforeseen" in said or row.sentence_due() not in said))
        ):
            wrong.append(f"{row.environment}: {code}, {'whole' if complete else 'no file'}, {said}")
    assert wrong == []
    assert [path.name for path in litter.iterdir() if path.name.startswith("cemverify")] == []

"""The blind rounds can be asked: every patch fits its base, and the page is made from the answers."""

from __future__ import annotations

import hashlib
import json
import random
from functools import cache
from pathlib import Path

import pytest

from cemverify.catalogue import budgets
from suites.blind import __main__ as command
from suites.blind import matrix
from suites.blind.asking import apart, context
from suites.blind.page import page
from suites.blind.rounds import DATA, answers, load, rounds

LAYER = """
from cemverify import energy_layer


def energy(x):
    return (x * x).sum(-1) / 2


def update(x):
    return -x


few = ("compile", "vmap", "gradients", "dtype:bfloat16")  # of which nothing is asked
mine = energy_layer(update=update, energy=energy, state=("J", 3), memory=None, not_offered=few)
"""


def fault(name: str, old: str, new: str) -> dict[str, object]:
    """A fault of the layer above, as a row of a file."""
    about = {"area": "step", "fault": "the step is twice as long", "shown_by": "everywhere", "subtle": False}
    return {"name": name, "framework": "torch", "base": "well", **about, "patches": [[old, new]]}


@pytest.fixture
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only round is one of energy layers, which declare themselves; the folder of the round."""
    folder = tmp_path / "round_9"
    (folder / "bases").mkdir(parents=True)
    (folder / "bases" / "well.txt").write_text(LAYER)
    about = {"written": "2026-11-23", "instructions": "Write wrong layers.", "bases": {"well": "torch"}}
    rows = [fault("twice", "return -x", "return -2 * x"), fault("anew", "", "def update(x):\n    return -2 * x")]
    for name, content in (("round", about), ("faults", rows), ("styles", [])):
        (folder / f"{name}.json").write_text(json.dumps(content))
    monkeypatch.setattr("suites.blind.rounds.DATA", tmp_path)
    monkeypatch.setattr(command, "PAGE", tmp_path / "page.md")
    return folder


@pytest.mark.parametrize("number", [r.number for r in rounds()])
def test_every_patch_fits_its_base_and_makes_another_program(number: int, pytestconfig: pytest.Config) -> None:
    """Of what is published, and so does not change, by default every fifth."""
    round_ = load(number)
    for fault in (*round_.faults, *round_.styles)[:: 1 if pytestconfig.getoption("--thorough") else 5]:
        source = round_.source(fault.name)
        assert fault in round_.styles or source != round_.source(fault.base)
        compile(source, fault.name, "exec")


def test_every_base_is_as_it_was_when_its_faults_were_asked_and_the_page_has_every_round() -> None:
    pinned = {line[66:]: line[:64] for line in (DATA / "sha256.txt").read_text().splitlines()}
    there = {path.relative_to(DATA).as_posix(): path for path in DATA.glob("**/bases/*")}
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in there.items()} == pinned
    assert len({path.stem for path in there.values()}) == len(there)  # a base is found by its name
    made = page()
    assert [f"<summary>Round {r.number}, {r.written}: " in made for r in rounds()] == [True] * len(rounds())


def test_a_round_of_energy_layers_is_asked_and_published(layers: Path, tmp_path: Path) -> None:
    assert command.main(["ask", "9", "--workers", "1", "--names", "anew", "--when", "after a mend"]) == 0
    assert command.main(["ask", "9", "--workers", "1"]) == 0
    violated = {name: answer["violated"] for name, answer in answers(9).items()}
    assert violated == {"well": False, "twice": True, "anew": True}
    assert command.main(["page"]) == 0
    made = (tmp_path / "page.md").read_text()
    assert "<summary>Round 9, 2026-11-23: " in made
    assert "Killed at first: torch 2 of 2; first tested after a mend 1 of 1.\n" in made


def test_the_matrix_says_what_finds_a_fault_and_how_many_rows_that_takes(
    layers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets.asked("gradient/layer/energy")  # which reads the file once, before it is another
    killed = {"violated": True, "by": "gradient/layer/energy", "commit": "c"}
    (layers / "answers.json").write_text(json.dumps({"twice": killed, "anew": {"violated": False, "commit": "c"}}))
    monkeypatch.setattr(matrix, "FILE", tmp_path / "matrix.jsonl")
    monkeypatch.setattr(budgets, "FILE", tmp_path / "budgets.json")
    budgets.FILE.write_text('{"mutants": {}, "faults": {}}')
    assert command.main(["matrix", "--store", str(tmp_path / "store"), "--workers", "0"]) == 0
    (row,) = map(json.loads, matrix.FILE.read_text().splitlines())
    assert row["fault"] == "twice"
    assert len(row["kills"]["gradient/layer/energy"].split()) == 3
    assert json.loads(budgets.FILE.read_text()) == {"mutants": {}, "faults": matrix.needed([row["kills"]])}


def test_a_fault_needs_what_finds_it_with_every_seed_and_lacks_fewest_rows_or_else_all_that_find_it() -> None:
    deep, deeper, unsure = (f"gradient/mlp/{name}" for name in ("tanh", "relu", "silu"))
    assert matrix.needed([{deeper: "row90", deep: "row80 small1", unsure: "row99 -"}]) == {deep: 120}
    assert matrix.needed([{unsure: "row9 -"}, {deep: "row80"}]) == {unsure: 14, deep: 120}


def test_a_fault_that_never_answers_is_killed(layers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [fault("waits", "return -x", "import time; time.sleep(1000)")]
    (layers / "faults.json").write_text(json.dumps(rows))
    monkeypatch.setattr("suites.blind.asking.STANDSTILL", 1.0)
    answer = apart(context(), layers, "waits")
    assert answer["violated"]
    assert "stopped answering" in answer["by"]


@cache
def drawn() -> list[tuple[int, str]]:
    """Eight torch and NumPy faults that were killed, the longest searches last."""
    faults = [(r.number, fault.name) for r in rounds() for fault in r.faults if fault.framework != "jax"]
    killed = [(number, name) for number, name in faults if answers(number).get(name, {}).get("by")]
    return sorted(random.Random(0).sample(killed, 8), key=lambda f: answers(f[0])[f[1]]["seconds"])  # noqa: S311


@pytest.mark.parametrize("place", [*range(6), *(pytest.param(place, marks=pytest.mark.thorough) for place in (6, 7))])
def test_a_fault_that_was_killed_still_is(place: int) -> None:
    number, name = drawn()[place]
    answer = apart(context(), load(number).folder, name, answers(number)[name]["by"])
    if not answer["violated"]:  # some show only after other questions
        answer = apart(context(), load(number).folder, name)
    assert answer["violated"], f"`python -m suites.blind ask {number} --killed --names {name}`: {answer}"

"""The matrix of mutants and properties: what is tested, what is written, and that a stopped run spoils nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from cemverify.catalogue import budgets, detection
from cemverify.catalogue.detection import Detects
from cemverify.power import matrix
from cemverify.runs import Interrupted, RunOptions, run_cells
from docs.making import detection as command
from suites.kit.judging import mutant

KILLER, OTHER = "gradient/attention/plain", "structure/attention/causality"
KNOWN = {KILLER: Detects(KILLER, 0.5, {}, {"ascent": "small9", "not-causal": "row3"})}


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunOptions:
    budgets.asked(KILLER)  # reads the file once, before it is replaced
    monkeypatch.setattr(detection, "FILE", tmp_path / "detection.jsonl")
    monkeypatch.setattr(budgets, "FILE", tmp_path / "budgets.json")
    budgets.FILE.write_text('{"mutants": {}, "faults": {"kept": 2}}')
    return RunOptions(tmp_path / "store", workers=0)


def kills(rows: list[Detects], id_: str) -> dict[str, str]:
    (row,) = (row for row in rows if row.id == id_)
    return dict(row.kills)


def test_each_seed_has_a_word_and_what_was_not_asked_stays(where: RunOptions) -> None:
    words = command.measure([("ascent", KILLER), ("ascent", OTHER)], range(2), KNOWN, where)
    rows = command.merged(KNOWN, words)
    assert len(each := kills(rows, KILLER)["ascent"].split()) == 2
    assert all(word.startswith(("small", "row")) for word in each)
    assert kills(rows, KILLER)["not-causal"] == "row3"
    assert "ascent" not in kills(rows, OTHER)  # a step up sees no later tokens
    assert detection.FILE.read_text() == command.text(rows)


def test_the_budget_is_half_as_many_rows_again_as_the_deepest_kill(where: RunOptions) -> None:
    rare = "wrong-where-hidden-exceeds-width"
    words = command.measure([(rare, mutant(rare).property)], range(5), {}, where)
    assert "row1" in words[rare, mutant(rare).property]  # only in this source of questions: small cases came before
    deepest = max(int(word.removeprefix("row")) for word in words[rare, mutant(rare).property] if "row" in word)
    written = json.loads(budgets.FILE.read_text())
    assert written == {"mutants": {mutant(rare).property: math.ceil(1.5 * deepest)}, "faults": {"kept": 2}}


def test_what_must_die_is_asked_more_rows_than_a_check_asks(where: RunOptions) -> None:
    pair = "decodes-no-token-again", "structure/decode/cached-equals-uncached-plain"
    usual, harder = (command.measure([pair], range(8), {}, where, harder=times)[pair] for times in (1, 8))
    assert harder.count("-") < usual.count("-")


def test_further_seeds_follow_those_known(where: RunOptions) -> None:
    first = command.measure([("ascent", KILLER), ("ascent", OTHER)], [0], {}, where)
    words = command.measure([("ascent", KILLER)], [1], {}, where, first)
    assert len(words["ascent", KILLER]) == 2
    assert words["ascent", OTHER] == ["-"]


def test_a_stopped_run_keeps_seeds_up_to_the_first_gap(where: RunOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [("ascent", KILLER)]
    run_cells([cell for seed in (0, 2) for cell in matrix.cells(pairs, seed)], where)

    def stopped(*_: object) -> None:
        raise Interrupted("interrupted")

    monkeypatch.setattr(command, "run_cells", stopped)
    with pytest.raises(Interrupted):
        command.measure(pairs, range(3), KNOWN, where)
    (row,) = (json.loads(line) for line in detection.FILE.read_text().splitlines() if KILLER in line)
    assert len(row["kills"]["ascent"].split()) == 1


@pytest.mark.parametrize(
    ("name", "functions"),
    [
        ("not-causal", {"attention", "block", "decode", "all"}),
        ("negated-gate", {"mlp", "block", "all"}),
        ("layer-off-when-mapped", {"layer"}),
    ],
)
def test_a_mutant_is_put_to_the_functions_that_its_fault_may_reach(name: str, functions: set[str]) -> None:
    killers, others = matrix.reached(mutant(name))
    assert mutant(name).property in killers
    assert not {*killers} & {*others}
    assert {id_.split("/")[1] for id_ in (*killers, *others)} == functions


def test_what_holds_with_one_seed_or_was_tried_with_few_is_not_surely_killed() -> None:
    kills = {"ascent": "row4 - row1", "negated-gate": "row3 small1", "not-causal": "row3 small1 row2", "cuda": "?"}
    assert Detects(KILLER, 0.5, {}, kills).surely == ["not-causal", "cuda"]

"""Comparisons: 0 if nothing got worse, 1 if something did, which is named, 2 if they cannot be compared."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cemverify.results.envelope import write
from reports.__main__ import main
from suites.reports.examples import (
    MAKERS,
    a_benchmark,
    a_check,
    a_claims,
    a_language,
    a_power,
    a_property,
    a_recursion,
    a_study,
    violated,
)


class Compare:
    """Writes two results and compares them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def __call__(self, old: Any, new: Any, *words: str) -> tuple[int, str, str]:
        write(self.folder / "old.json", old)
        write(self.folder / "new.json", new)
        code = main(["compare", str(self.folder / "old.json"), str(self.folder / "new.json"), *words])
        printed = self.capsys.readouterr()
        return code, printed.out, printed.err


@pytest.fixture
def compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Compare:
    return Compare(tmp_path, capsys)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_result_compared_with_itself_is_the_same(kind: str, compare: Compare) -> None:
    content = MAKERS[kind]()
    code, out, _ = compare(content, content)
    assert (code, "the same" in out) == (0, True)


def perturbed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of a result in which the value at a path is another."""
    changed = copy.deepcopy(content)
    inner = changed
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return changed


RMSE = a_recursion()["rows"][6]["rmse"]["mean"]
CELLS: list[tuple[Callable[[], Any], tuple[Any, ...], Any, str]] = [
    (a_check, ("properties", 5, "verdict"), "violated", "descent/mlp/case-1: holds -> violated"),
    (a_check, ("properties", 5, "margin"), 0.9, "descent/mlp/case-1: margin 0.25 -> margin 0.9"),
    (a_power, ("mutants", 1, "killed"), False, "mutant mutant-1: killed -> survived"),
    (a_claims, ("claims", 0, "verdict"), "refuted", "claim 1-gradient: holds -> refuted"),
]


@pytest.mark.parametrize(("make", "path", "value", "named"), CELLS)
def test_one_cell_that_differs_is_named(
    make: Callable[[], Any], path: tuple[Any, ...], value: Any, named: str, compare: Compare
) -> None:
    content = make()
    code, out, err = compare(content, perturbed(content, path, value))
    assert code == 1, err
    assert f"REGRESSION  {named}" in out


def test_a_claim_that_the_whole_ledger_lacks_is_retired_and_no_regression(compare: Compare) -> None:
    old = a_claims()
    whole = {**old, "claims": []}
    code, out, _ = compare(old, whole)
    assert (code, "claim 1-gradient: holds -> retired (`cemverify claims 1-gradient` says" in out) == (0, True), out
    assert compare(old, perturbed(whole, ("made_by", "configuration"), {"claim": "7-sign"}))[0] == 1


def test_a_repair_is_an_improvement(compare: Compare) -> None:
    broken = a_check("mine", [a_property("a/b/c"), violated("a/b/d")])
    code, out, _ = compare(broken, a_check("mine", [a_property("a/b/c", margin=0.2), a_property("a/b/d")]))
    assert (code, "REGRESSION" in out, "a/b/d: violated -> holds" in out) == (0, False, True)


def test_results_that_no_rule_compares_are_not_called_the_same(compare: Compare) -> None:
    content = {**a_check(), "kind": "atlas"}
    code, out, _ = compare(content, content)
    assert (code, "no rule compares results of this kind" in out) == (0, True), out


def test_another_commit_may_have_other_figures_unless_a_paired_test_calls_them_worse(compare: Compare) -> None:
    old = a_recursion()
    noise = a_recursion((1.06, 0.94, 1.03, 0.96, 1.02, 0.98))
    worse = a_recursion((1.2, 1.19, 1.21, 1.2, 1.19, 1.21))
    assert compare(old, noise)[0] == 0
    code, out, _ = compare(old, worse)
    assert code == 1
    assert f"REGRESSION  RMSE of CEM, T = 4 on rbf(lengthscale=2): {RMSE:.4g} -> " in out
    assert "(ratio 1.200 [" in out
    assert "learning rates tried" not in out
    assert compare(worse, old)[0] == 0
    worse["made_by"]["configuration"]["rates"] = [0.03]
    assert "learning rates tried: [0.01] -> [0.03] (" in compare(old, worse)[1]
    for content in (old, worse):
        for row in content["rows"]:
            row["runs"] = row["runs"][:5]
    code, out, _ = compare(old, worse)
    assert (code, "5 pairs are too few to compare: 6 are needed" in out) == (0, True)


def test_bits_per_byte_of_one_training_are_compared_with_their_standard_errors(compare: Compare) -> None:
    old = a_language({"a": 2.9, "b": 3.0})
    assert compare(old, a_language({"a": 2.95, "b": 3.0}))[0] == 0
    code, out, _ = compare(old, a_language({"a": 3.3, "b": 3.0}))
    assert (code, "bits per byte of a: 2.9 -> 3.3" in out) == (1, True)
    code, out, _ = compare(old, a_language({"a": None, "b": 3.0}))
    assert (code, "bits per byte of a: 2.9 -> diverged" in out) == (1, True)


def with_seeds(bits: float, *, diverged: Sequence[int] = (), seeds: int = 9) -> Any:
    """A study whose first row is judged with some seeds, each of which has 0.5 % more bits per byte."""
    content = a_study()
    row = content["rows"][0]
    row["judged"] = {str(seed): copy.deepcopy(row["judged"]["0"]) for seed in range(seeds)}
    for seed, record in enumerate(row["judged"].values()):
        record["groups"] = [] if seed in diverged else [bits * (1 + 0.005 * seed)]
    return content


def test_trainings_of_a_study_are_compared_seed_by_seed(compare: Compare) -> None:
    old, worse, lost = with_seeds(2.0), with_seeds(2.2), with_seeds(2.0, diverged=[3])
    name = old["rows"][0]["name"]
    code, out, _ = compare(old, worse)
    assert (code, f"REGRESSION  bits per byte of {name}: 2.04 -> 2.244" in out) == (1, True), out
    code, out, _ = compare(old, lost)
    assert (code, f"REGRESSION  bits per byte of {name}: 0 diverged -> 1 diverged" in out) == (1, True), out


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        (with_seeds(2.0, diverged=[3]), with_seeds(2.2, diverged=[3]), "9 seeds -> 9 seeds (8 compared"),
        (with_seeds(2.0, diverged=[3]), with_seeds(2.2, diverged=[4]), "9 seeds -> 9 seeds (7 compared"),
        (with_seeds(2.0), with_seeds(2.2, diverged=[3]), "9 seeds -> 9 seeds (8 compared"),
        (with_seeds(2.0), with_seeds(2.2, seeds=8), "9 seeds -> 8 seeds (8 compared"),
    ],
    ids=["the same seed diverged", "another seed diverged", "one seed more diverged", "one seed is missing"],
)
def test_seeds_that_both_files_trained_are_compared_and_the_others_are_counted(
    before: Any, after: Any, counts: str, compare: Compare
) -> None:
    code, out, _ = compare(before, after)
    name = before["rows"][0]["name"]
    assert code == 1
    assert f"NOTE        bits per byte of {name}: {counts}" in out
    assert re.search(rf"REGRESSION  bits per byte of {re.escape(name)}: 2\.0\d* -> 2\.2\d* \(ratio 1\.100", out), out


def test_times_are_compared_as_ratios_from_one_machine(compare: Compare) -> None:
    assert compare(a_benchmark(), a_benchmark(1.05))[0] == 0
    code, out, _ = compare(a_benchmark(), a_benchmark(1.5))
    assert (code, "REGRESSION  time of T=1 (tiles), 512 tokens" in out) == (1, True)
    other = a_benchmark()
    other["made_by"]["device"]["name"] = "another machine"
    code, out, err = compare(a_benchmark(), other)
    assert (code, out) == (2, "")
    assert "compared on one machine only" in err


def test_two_implementations_are_held_beside_each_other(compare: Compare) -> None:
    mine = a_check("mine", [a_property("a/b/c"), a_property("a/b/d")])
    theirs = a_check("theirs", [violated("a/b/c"), a_property("a/b/d", "not offered", None)])
    code, out, _ = compare(mine, theirs)
    assert code == 1
    assert "check mine against check theirs" in out
    assert "REGRESSION  a/b/c: holds -> violated" in out
    assert "NOTE        a/b/d: holds -> not offered" in out


def test_what_a_run_that_ended_early_did_not_ask_is_counted_and_no_regression(compare: Compare) -> None:
    whole = a_check("mine", [a_property("a/b/c"), a_property("a/b/d")])
    quick = a_check("mine", [a_property("a/b/c")], unasked=["a/b/d"])
    code, out, _ = compare(whole, quick)
    assert (code, "NOTE        properties: (not asked, as the new run ended before: 1)" in out) == (0, True), out
    code, out, _ = compare(quick, a_check("mine", [a_property("a/b/c"), violated("a/b/d")]))
    assert (code, "a/b/d: not tested -> violated (the old run ended before it)" in out) == (1, True), out
    assert "REGRESSION  a/b/d: holds -> missing" in compare(whole, a_check("mine", [a_property("a/b/c")]))[1]


def test_folders_are_paired_by_kind_and_subject(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side in ("old", "new"):
        write(tmp_path / side / "a.json", a_check("a"))
        write(tmp_path / side / "b.json", a_check("b", [a_property("x/y/z"), a_property("x/y/w")]))
    write(tmp_path / "old" / "r.json", a_recursion())
    assert main(["compare", str(tmp_path / "old"), str(tmp_path / "new")]) == 1
    assert "REGRESSION  recursion: there -> missing" in capsys.readouterr().out
    write(tmp_path / "old" / "again.json", a_check("a"))
    assert main(["compare", str(tmp_path / "old"), str(tmp_path / "new")]) == 2
    assert "are both results of check a" in capsys.readouterr().err


def test_what_cannot_be_compared_is_refused_with_the_reason(compare: Compare) -> None:
    recipe = perturbed(a_recursion(), ("made_by", "configuration", "recipe"), {"steps": 99})
    text = perturbed(a_language(), ("corpus", "digest"), "another")
    for old, new, reason in (
        (a_check(), a_language(), "the old are results of check mylayer:mine, and the new of language"),
        (a_recursion(), recipe, "and is {'steps': 99}"),
        (a_language(), text, "the models learnt from different text"),
        (a_check(), {**a_check(), "schema_version": 2}, "update cemverify"),
        (a_check(), {**a_check(), "schema_version": 0}, "create the file again"),
    ):
        code, out, err = compare(old, new)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert reason in err


def test_findings_are_written_as_json(compare: Compare, tmp_path: Path) -> None:
    old = a_check("mine", [a_property("a/b/c")])
    assert compare(old, a_check("mine", [violated("a/b/c")]), "--json", str(tmp_path / "f.json"))[0] == 1
    findings = json.loads((tmp_path / "f.json").read_text())
    assert findings["code"] == 1
    assert findings["findings"][0]["what"] == "a/b/c"

"""Comparisons: exit code 0 if nothing got worse, 1 if something did (it is named), 2 if they cannot be compared."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cemverify.results.envelope import write
from reports.comparing.comparison import RULES
from suites.kit.commands import Printed, Told
from suites.reports.examples import MAKERS, a_benchmark, a_check, a_property, a_readings, a_recursion, violated


def compare(told: Told, folder: Path, old: Any, new: Any, code: int) -> Printed:
    """Writes two results and compares them; the exit code must be as given."""
    write(folder / "old.json", old)
    write(folder / "new.json", new)
    return told(f"reports compare {folder / 'old.json'} {folder / 'new.json'}", code)


def perturbed(content: Any, value: Any, *path: Any) -> Any:
    """A copy of a result with the value at a path replaced."""
    changed = inner = copy.deepcopy(content)
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return changed


CHECK, POWER, CLAIMS, TIMES = (MAKERS[kind]() for kind in ("check", "power", "claims", "benchmarks"))
LEDGER, ATLAS = {**CLAIMS, "claims": []}, {**CHECK, "kind": "atlas"}
ONE = a_check("mine", [a_property("a/b/c")])
TWO = a_check("mine", [a_property("a/b/c"), a_property("a/b/d")])
BROKEN = a_check("mine", [a_property("a/b/c"), violated("a/b/d")])
QUICK = a_check("mine", [a_property("a/b/c")], unasked=["a/b/d"])
THEIRS = a_check("theirs", [violated("a/b/c"), a_property("a/b/d", "not offered", None)])

ROWS, SURELY = a_recursion(), {"mean": 1.9, "low": 1.8, "high": 2.0}

# an old result and a new one, the exit code, and what is printed
CASES: Mapping[str, tuple[Any, ...]] = {
    "verdict": (CHECK, perturbed(CHECK, "violated", "properties", 5, "verdict"), 1, "mlp/case-1: holds -> violated"),
    "margin": (CHECK, perturbed(CHECK, 0.9, "properties", 5, "margin"), 1, "mlp/case-1: margin 0.25 -> margin 0.9"),
    "mutant": (POWER, perturbed(POWER, False, "mutants", 1, "killed"), 1, "mutant mutant-1: killed -> survived"),
    "claim": (CLAIMS, perturbed(CLAIMS, "refuted", "claims", 0, "verdict"), 1, "claim 1-gradient: holds -> refuted"),
    "retired claim": (CLAIMS, LEDGER, 0, "1-gradient: holds -> retired (`cemverify claims 1-gradient` says"),
    "lost claim": (CLAIMS, perturbed(LEDGER, {"claim": "7-sign"}, "made_by", "configuration"), 1, "holds -> missing"),
    "repair": (BROKEN, TWO, 0, "a/b/d: violated -> holds", "0 regressions, 1 improvement"),
    "kind without a rule": (ATLAS, ATLAS, 0, "no rule compares results of this kind"),
    "ratio": (a_readings(0.9), a_readings(1.1), 1, "REGRESSION  ratio of", "0.9 -> 1.1 (the 95 % intervals exclude"),
    "ratio of rows": (ROWS, perturbed(ROWS, SURELY, "rows", 6, "deeper", "ratio"), 1, "REGRESSION  ratio of CEM, T"),
    "ratio within its interval": (a_readings(0.9), a_readings(0.91), 0, "the same"),
    "time within the margin": (TIMES, a_benchmark(1.05), 0, "the same"),
    "time": (TIMES, a_benchmark(1.5), 1, "REGRESSION  time of T=1 (tiles), 512 tokens"),
    "two implementations": (TWO, THEIRS, 1, "check mine against check theirs", "NOTE        a/b/d: holds -> not off"),
    "the new run ended early": (TWO, QUICK, 0, "properties: (not asked, as the new run ended early: 1)"),
    "the old run ended early": (QUICK, BROKEN, 1, "a/b/d: not tested -> violated (the old run ended before it)"),
    "missing": (TWO, ONE, 1, "REGRESSION  a/b/d: holds -> missing"),
    **{f"the same {kind}": (make(), make(), 0, "the same") for kind, make in MAKERS.items() if kind in RULES},
}


@pytest.mark.parametrize("case", CASES)
def test_what_differs_is_named_and_what_got_worse_decides_the_exit_code(
    case: str, tmp_path: Path, told: Told
) -> None:
    old, new, code, *words = CASES[case]
    out = compare(told, tmp_path, old, new, code).out
    assert [each for each in words if each not in out] == [], out
    assert ("REGRESSION" in out) == bool(code)


def test_folders_are_paired_by_kind_and_subject(tmp_path: Path, told: Told) -> None:
    for side in ("old", "new"):
        write(tmp_path / side / "a.json", a_check("a"))
        write(tmp_path / side / "b.json", a_check("b", [a_property("x/y/z"), a_property("x/y/w")]))
    write(tmp_path / "old" / "r.json", a_recursion())
    write(tmp_path / "new" / "c.json", a_check("c"))
    compare = f"reports compare {tmp_path / 'old'} {tmp_path / 'new'}"
    out = told(f"{compare} --json {tmp_path / 'found.json'}", 1).out
    assert "REGRESSION  recursion: there -> missing" in out
    assert "check c: none -> there" in out
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["code"], [each["what"] for each in found["findings"]]) == (1, ["recursion", "check c"])
    write(tmp_path / "old" / "again.json", a_check("a"))
    assert "are both results of check a" in told(compare, 2).err


def test_what_cannot_be_compared_is_refused_with_the_reason(tmp_path: Path, told: Told) -> None:
    other = perturbed(TIMES, "another machine", "made_by", "device", "name")
    for old, new, reason in (
        (a_check(), MAKERS["language"](), "the old are results of check mylayer:mine, and the new of language"),
        (TIMES, other, "compared on one machine only"),
        (a_check(), {**a_check(), "schema_version": 2}, "update cemverify"),
        (a_check(), {**a_check(), "schema_version": 0}, "create the file again"),
    ):
        printed = compare(told, tmp_path, old, new, 2)
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        assert reason in printed.err

"""Lines reached: recorded property by property, summed up, in every report; unusual code is judged as always."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cemverify.conformance.implementations.edited import edited
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.listeners.reach import as_text, looked_around, shortfall
from cemverify.conformance.source.reach.changes import changed_lines, reaching
from cemverify.conformance.source.reach.recording import LineRecorder
from cemverify.conformance.source.reach.summary import FileReach, Reach, Trail, ranges, summed, trail_of
from cemverify.conformance.source.reading.code import CodeFile, OwnCode
from cemverify.conformance.source.reading.lines import Lines
from suites.kit.commands import Told
from suites.kit.examples import PULL, README

TEXT = """\
def attention(x):
    if x > 5:
        y = x + 1
        return y
    return x
"""


def code(path: str = "/of/mylayer.py", text: str = TEXT, **more: Any) -> OwnCode:
    lines = Lines(frozenset({2, 3, 4, 5}), frozenset({1}), {2: frozenset({3, 5})}, {})
    return OwnCode((CodeFile(path, "mylayer.py", text, lines),), **more)


def written(folder: Path) -> tuple[Path, Any]:
    """Writes a text into a file; returns the file and its function."""
    path = folder / "mylayer.py"
    path.write_text(TEXT)
    names: dict[str, Any] = {}
    exec(compile(TEXT, str(path), "exec"), names)  # noqa: S102
    return path, names["attention"]


def test_what_runs_is_recorded_afresh_for_each_property(tmp_path: Path) -> None:
    path, attention = written(tmp_path)
    recorder = LineRecorder(code(str(path)))
    with recorder.watching():
        with recorder.watching():
            pass  # a nested call does not end the recording
        attention(3)
    attention(8)  # not watched
    first = trail_of(recorder.reached(finished=True))
    assert first.lines[str(path)] == {2, 5}
    assert first.branches[str(path)] == {(2, 5)}
    with recorder.watching():
        attention(8)
    assert trail_of(recorder.reached(finished=False)).lines[str(path)] == {2, 3, 4}
    with recorder.watching():
        attention(3)
    second = trail_of(recorder.reached(finished=True))
    assert second.lines[str(path)] == {2, 3, 4, 5}
    assert second.problem == ""
    assert sys.gettrace() is None or "coverage" not in repr(sys.gettrace()).lower()


def test_a_file_that_changes_meanwhile_is_reported_as_it_was_imported(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    recorder = LineRecorder(code(str(path)))
    path.write_text("def attention(x): return x\n")
    changed = "mylayer.py changed while it was judged: what was imported is reported"
    assert recorder.reached(finished=True)["problem"] == changed
    path.unlink()
    assert recorder.reached(finished=True)["problem"]


def test_code_without_files_costs_nothing_and_reaches_nothing() -> None:
    recorder = LineRecorder(OwnCode(problems=("no file",)))
    with recorder.watching():
        assert sys.gettrace() is None or "CTracer" not in type(sys.gettrace()).__name__
    assert recorder.reached(finished=True) == {"files": {}, "problem": ""}


@pytest.mark.parametrize("account", [None, {"files": 3}, {"files": {"a": [[1], [[1]]]}, "problem": ""}])
def test_a_process_that_says_anything_else_is_not_believed(account: Any) -> None:
    assert trail_of(account) == Trail(problem="its process sent no account of what it reached")


def half_reached() -> Reach:
    path = "/of/mylayer.py"
    trails = {
        "gradient/attention/plain": Trail({path: frozenset({2, 5})}, {path: frozenset({(2, 5)})}),
        "structure/attention/causality": Trail({path: frozenset({2})}),
    }
    return summed(code(), trails, lost=["sizes/attention/widths"], looked_around=range(7))


def test_a_summary_names_lines_branches_and_the_properties_that_reach_each_line() -> None:
    reach = half_reached()
    (file,) = reach.files
    assert (reach.counts, reach.percent) == ((2, 4), 50.0)
    assert file.never == [3, 4]
    assert file.branches == {2: (3,)}
    assert file.by == {
        2: ("gradient/attention/plain", "structure/attention/causality"),
        5: ("gradient/attention/plain",),
    }
    assert looked_around(reach) == "tested around 7 numbers in your code: 0, 1, 2, 3, 4, 5 and 1 more"
    assert reach.problems == ("what 1 property reached is not known, as the process ended",)
    # only statements that were reached interrupt a range
    assert [ranges([3, 4, 8], of) for of in ([2, 3, 4, 8, 9], [3, 4, 6, 8])] == [[(3, 8)], [(3, 4), (8, 8)]]
    assert ranges([]) == []


def test_only_functions_that_the_layer_can_call_count() -> None:
    made = "def factory():\n    n = 1\n\n    def update(x, m):\n        return n * used(x)\n\n    return update\n"
    made += "\n\nmine = factory()\n"
    helper = "def used(x):\n    return x or far(x)\n\n\ndef far(x):\n    return x\n\n\ndef unused(x):\n    return x\n"
    called = {made: {2, 4, 5, 7}, helper: {2, 6, 10}}
    files = [
        CodeFile(text[:8], name, text, Lines(frozenset(called[text]), frozenset(), {}, {}))
        for name, text in (("one.py", made), ("two.py", helper))
    ]
    trail = Trail({made[:8]: frozenset({5}), helper[:8]: frozenset({2})})
    reach = summed(OwnCode(tuple(files)), {"gradient/layer/energy": trail})
    assert [file.statements for file in reach.files] == [{5}, {2, 6}]
    assert [file.never for file in reach.files] == [[], [6]]
    assert [list(file.uncalled) for file in reach.files] == [[], ["unused"]]  # the import calls the factory
    first, second, *_ = as_text(RunFinished("mine", [], 0.0, reach=reach)).splitlines()
    assert first == "100 % of the lines of one.py were reached"
    assert second == "50 % of the lines of two.py that the calls lead to were reached; never: 6; never called: unused"


def test_a_short_run_is_told_apart_from_one_of_which_nothing_is_known() -> None:
    assert shortfall(half_reached(), 50) is None
    assert "only 50.0 % of its lines were reached" in str(shortfall(half_reached(), 51))
    unknown = summed(OwnCode(problems=("no file",)), {})
    assert "nothing is known of its lines: no file" in str(shortfall(unknown, 1))
    assert shortfall(None, 1) is not None


BRANCHES = """\
    if config.heads > 43:
        keys = WRONG * keys
    if h.shape[1] > 100_000:
        keys = keys + 1
"""
LAYER = edited(README, ("    future =", f"{BRANCHES}    future ="), ("\nabsent =", "\nWRONG = 1\nabsent ="))
CHECK = "cemverify check mylayer:mine --properties gradient/attention/plain --workers 1 --examples 60"


@pytest.fixture
def folder(here: Path) -> Path:
    """A folder to work in, with a layer that has a branch for more than 43 heads."""
    (here / "mylayer.py").write_text(LAYER)
    return here


@pytest.mark.slow
def test_a_check_tells_what_it_reached_in_its_report_and_in_every_file(folder: Path, told: Told) -> None:
    printed = told(f"{CHECK} --json r.json --junit r.xml --markdown r.md --least-reach 95", 2).out
    line = "92 % of the lines of mylayer.py were reached; never: 12, the branch at 11"
    assert line in printed
    assert "     12          keys = keys + 1" in printed
    assert "tested around 1 number in your code: 43" in printed
    assert "--least-reach 95: only 92.3 % of its lines were reached, so the run is inconclusive" in printed
    assert line in (folder / "r.md").read_text()
    assert line in (folder / "r.xml").read_text()
    (file,) = (reach := json.loads((folder / "r.json").read_text())["reach"])["files"]
    assert (reach["reached"], reach["statements"], file["never"]) == (12, 13, [12])
    assert file["branches"] == [{"line": 11, "never_to": [12]}]
    assert reach["properties"] == ["gradient/attention/plain"]
    assert file["by"]["10"] == [0]  # reached by a question near 43


@pytest.mark.slow
def test_a_fault_behind_a_number_is_found_by_looking_around_it_and_by_nothing_else(folder: Path, told: Told) -> None:
    (folder / "mylayer.py").write_text(LAYER.replace("WRONG = 1", "WRONG = 1.001"))
    assert "were reached" not in told(f"{CHECK} --black-box").out
    assert "heads=44" in told(CHECK, 1).out  # the smallest case with the fault


@pytest.mark.slow
def test_a_function_on_both_sides_of_a_comparison_is_named_where_nothing_is_violated(here: Path, told: Told) -> None:
    keys = "def keys(y):\n    return 2 * y  # a mistake\n\n\ndef energy"
    shared = edited(
        PULL, ("def energy", keys), ("apart = x - y", "apart = x - keys(y)"), ("(y - x)", "(keys(y) - x)")
    )
    (here / "shared.py").write_text(shared)
    check = "cemverify check shared:mine --properties gradient/layer/energy --workers 1 --examples 9"
    sentence = "`keys` (shared.py:4) runs in the energy as well as in the update: a mistake in it is in both, and"
    assert sentence in told(f"{check} --json r.json --markdown r.md").flat
    assert sentence in (here / "r.md").read_text()
    (function,) = json.loads((here / "r.json").read_text())["reach"]["shared_code"]
    assert function == {"function": "keys", "file": "shared.py", "line": 4, "runs_in": ["energy"]}
    (here / "shared.py").write_text(PULL)
    assert "as well as in the update" not in told(check).flat


# --- lines changed since, and what reaches them -----

BEFORE = "a\nb\nc\nd\n"


@pytest.mark.parametrize(
    ("after", "lines"),
    [
        (BEFORE, set()),
        ("a\nB\nc\nd\n", {2}),
        ("a\nd\n", {2, 3}),
        ("a\nb\nnew\nc\nd\n", {2, 3}),
        ("new\na\nb\nc\nd\n", {0, 1}),
        ("", {1, 2, 3, 4}),
    ],
)
def test_changed_lines_are_those_of_the_text_before(after: str, lines: set[int]) -> None:
    assert changed_lines(BEFORE, after) == lines


def test_a_line_ends_where_python_ends_it_and_not_at_a_form_feed() -> None:
    text = "a\n\f\nb \u2028 \x85 c\r\nd\n"
    assert changed_lines(text, text.replace("d", "D")) == {4}
    assert FileReach(code(text=text).files[0], {}, {}).line(4) == "d"


def test_properties_that_reach_a_changed_line_are_named_once() -> None:
    file = CodeFile("/mine.py", "mine.py", BEFORE, Lines(frozenset({2, 3}), frozenset(), {}, {}))
    reach = Reach([FileReach(file, {2: ("first",), 3: ("first", "second")}, {})], ())
    assert reaching(reach, {"/mine.py": "a\nB\nc\nd\n"}) == ["first"]
    assert reaching(reach, {"/mine.py": "a\nB\nC\nd\n"}) == ["first", "second"]
    assert reaching(reach, {"/mine.py": "A\nb\nc\nd\n"}) == []
    assert reaching(reach, {"/other.py": ""}) == []

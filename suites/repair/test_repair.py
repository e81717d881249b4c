"""`cemverify repair`, as a user sees it: mistakes in right layers are fixed, and nothing else is offered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cemverify.commands.repair import searched
from cemverify.conformance.implementations.edited import edited
from cemverify.conformance.implementations.origin import Place
from cemverify.conformance.judging.events import RunFinished, SuggestedEdit
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import select
from cemverify.repair.edits import Edit
from cemverify.repair.search import Repair, RepairOutcome, RepairProgress, _alike, enough
from cemverify.repair.trials import Answer, Tried
from cemverify.repair.wording import in_words
from cemverify.results import envelope
from suites.docs.blocks import TUTORIAL
from suites.kit.commands import Told
from suites.kit.examples import PULL

STATED = """\
from cemverify import layer_property


@layer_property(claim="A step goes a quarter of the way.", source="us")
def quarter(layer, question):
    return layer.update(question), (question.memory["memory"] - question.x["x"]) / 4, layer.roundoff(question)
"""
VERDICTS = (Verdict.HOLDS, Verdict.VIOLATED)
CHANGE = Edit("constant", 3, "1", "2", ())
FEW = "--examples 15 --workers 1 --properties"
OF_LAYERS = f"{FEW} gradient/layer/energy descent/layer/slope"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("hvvv", "hhvv", "1 of 4 hold without this edit, 2 with it; still violated: 2, 3."),
        ("hvvv", "hhvv", "mends 1 of 3 that were violated: the cause is elsewhere."),
        ("hhvv", "vvhh", "mends 2 of 2 that were violated and breaks 2 that held: the cause is elsewhere."),
        ("hvv", "hhv", "mends 1 of 2 that were violated. The rest may have a cause of its own: make this edit,"),
        ("hv?", "hvh", "1 of 2 hold without this edit, 1 with it (of all 3, 2 with it)"),
        ("hv", "hh", "1 of 2 properties is violated. One edit makes all of them hold (9 edits were tried in 0 s)."),
    ],
)
def test_an_edit_is_told_by_what_holds_without_it_and_advised_if_it_mends_half(
    before: str, after: str, words: str
) -> None:
    """A letter for each property, without and with the edit: h if it holds, v if it is violated."""
    verdicts = {"h": Verdict.HOLDS, "v": Verdict.VIOLATED}
    old, new = ([Record(str(i), "", "", verdicts[v]) for i, v in enumerate(t) if v != "?"] for t in (before, after))
    finished = RunFinished("mine:mine", old, 1.0, unasked=["2"] * before.count("?"))
    outcome = RepairOutcome([Repair([("mine.py", CHANGE)], {}, {}, new)], 9)
    assert words in " ".join(in_words(outcome, finished, "mine:mine").split())


def test_where_nothing_helps_the_report_has_places_and_no_edit() -> None:
    """As where an edit breaks more than it mends, or where a search ends before a pair is found."""
    old, new = ([Record(str(i), "", "", v) for i, v in enumerate(order)] for order in (VERDICTS, VERDICTS[::-1]))
    finished = RunFinished("mine:mine", old, 1.0)
    useless = Repair([("mine.py", CHANGE)], {"mine.py": "b"}, {"mine.py": "a"}, new)
    near = RepairOutcome(tried=9, near=["mine.py:3"], cut_short=True)
    for outcome, words in ((RepairOutcome([useless], 9), "mine.py:3: 1 of 2 hold"), (near, "these lines")):
        told = in_words(outcome, finished, "mine:mine")
        assert "No single edit and no pair that was tried mends this" in told
        assert words in told
        assert "+b" not in told


def test_edits_that_differ_by_roundoff_are_one_and_the_shortest_is_shown() -> None:
    def tried(after: str, off: float, budget: float = 1e-6) -> list[Tried]:
        answer = Answer(np.array([1.0, 2.0 + off]), np.full(2, budget))
        return [Tried(0, "mine.py", Edit("operator", 3, "b * y", after, ()), 0, 0.0, False, answers=(answer,))]

    groups = _alike([tried("b + y", 0.0), tried("y", 1.5e-6), tried("c", 1e-3)])
    assert [[edits[0].edit.after for edits in group] for group in groups] == [["y", "b + y"], ["c"]]


def test_of_more_edits_than_are_shown_the_report_says_where_the_others_are() -> None:
    finished = RunFinished("mine:mine", [Record("0", "", "", Verdict.VIOLATED)], 1.0)
    repair = Repair([("mine.py", CHANGE)], {}, {}, [Record("0", "", "", Verdict.HOLDS)])
    assert "\n1 more edit does so too: --json FILE lists it." in in_words(
        RepairOutcome([repair] * 4), finished, "mine"
    )


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_diff_counts_lines_as_python_does_and_keeps_their_ends(end: str, here: Path) -> None:
    text = end.join(["\f", "a = 'a \u2028 \x85 b'", "b = 1", ""])
    file = str(here / "mine.py")
    repair = Repair([(file, CHANGE)], {file: text.replace("1", "2")}, {file: text}, [])
    assert f"@@ -1,3 +1,3 @@\n \f{end}" in repair.diff
    assert f"-b = 1{end}+b = 2{end}" in repair.diff
    assert repair.edit == SuggestedEdit(Place("mine.py", 3), "b = 1", "b = 2")


def test_formulas_are_asked_before_what_asks_the_process() -> None:
    properties = select([])
    families = [property_.id.partition("/")[0] for property_ in enough(properties).ordered(properties, ())]
    last = max(i for i, family in enumerate(families) if family in ("tying", "recursion"))
    assert all(last < families.index(family) for family in ("contexts", "modes", "contract"))


@pytest.mark.slow
def test_the_mistake_of_the_tutorial_is_shown_as_a_diff(here: Path, told: Told) -> None:
    for name in ("layer.py", "adapter.py"):
        (here / name).write_text(TUTORIAL[name])
    few = f"{FEW} gradient/attention/plain structure/attention/causality"
    output = told(f"cemverify repair adapter:mine {few} --json r.json --workers 2").out
    assert "with this edit all 2 properties hold" in output
    assert TUTORIAL["repair"] in output
    assert (here / "layer.py").read_text() == TUTORIAL["layer.py"]
    (edit,) = envelope.read(here / "r.json")["repairs"][0]["edits"]
    line = 1 + TUTORIAL["layer.py"][: TUTORIAL["layer.py"].index(TUTORIAL["wrong"])].count("\n")
    assert (edit["line"], edit["before"], edit["after"]) == (line, "h", "q")


@pytest.mark.slow
def test_an_edit_of_the_update_and_one_of_the_energy_are_both_offered_and_one_is_written(
    here: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    """And the limit of a search counts the processor time of its processes, which is set to none here."""

    def searched_once(*arguments: Any) -> RepairOutcome:
        found[:] = found or [searched(*arguments)]
        return found[0]

    found: list[RepairOutcome] = []
    wrong = edited(PULL, ("y - x)", "x - y)"))
    (here / "mine.py").write_text(wrong)
    monkeypatch.setattr("cemverify.repair.search.CoreBudget.spent", lambda _: 0.0)
    monkeypatch.setattr("cemverify.commands.repair.searched", searched_once)
    printed = told(f"cemverify repair mine:mine {OF_LAYERS} --write --search 0.01", 2)
    assert "+    return 0.25 * (y - x)" in printed.out
    assert "until time ran out" not in printed.flat
    assert "Only you know which of them you meant." in printed.out
    assert "choose one, --write 1" in printed.err
    assert (here / "mine.py").read_text() == wrong
    told(f"cemverify repair mine:mine {OF_LAYERS} --write 1")
    assert (here / "mine.py").read_text() != wrong


@pytest.mark.slow
def test_edits_that_do_the_same_are_one_diff_and_are_named_beside_it(here: Path, told: Told) -> None:
    (here / "plus.py").write_text(edited(PULL, ("y - x)", "y + x)")))
    output = told(f"cemverify repair plus:mine {OF_LAYERS} --json plus.json").flat
    assert "Another way to write it: `x` becomes `-(x)` in plus.py:10." in output
    assert "+ return 0.25 * (y - x)" in output
    (repair,) = json.loads((here / "plus.json").read_text())["repairs"]
    assert [edit["after"] for edits in repair["alike"] for edit in edits] == ["-(x)"]


@pytest.mark.slow
@pytest.mark.thorough
def test_two_mistakes_are_mended_by_two_edits(here: Path, told: Told) -> None:
    (here / "twice.py").write_text(edited(PULL, ("y - x)", "y + x)"), ("0.25 * (", "0.5 * (")))
    output = told(f"cemverify repair twice:mine {OF_LAYERS}").out
    assert "pairs of edits make all of them hold" in output
    assert "-    return 0.5 * (y + x)" in output


def test_a_search_that_is_interrupted_shows_the_best_edits(
    here: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    def interrupt(progress: RepairProgress) -> None:
        if progress.doing == "judging":
            raise KeyboardInterrupt

    monkeypatch.setattr("cemverify.commands.repair._tell", interrupt)
    (here / "stopped.py").write_text(edited(PULL, ("y - x)", "x - y)")))
    output = told(f"cemverify repair stopped:mine {OF_LAYERS} --json best.json", 130).out
    assert "stopped.py:10\n-    return 0.25 * (x - y)\n+    return " in output
    written = envelope.read(Path("best.json"))
    assert (written["interrupted"], written["repairs"]) == (True, [])
    assert written["candidates"][0][0]["line"] == 10


def test_a_search_whose_processes_take_all_its_time_to_load_says_so(
    here: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.setattr("cemverify.repair.search.CoreBudget.spent", lambda _: 1.0)
    (here / "late.py").write_text(edited(PULL, ("y - x)", "x - y)")))
    output = told(f"cemverify repair late:mine {OF_LAYERS} --search 0.01", 2).out
    assert "time ran out before the implementation was loaded" in output


def test_a_step_size_that_is_left_out_is_told_and_correct_code_is_not_edited(here: Path, told: Told) -> None:
    (here / "bare.py").write_text(edited(PULL, (", step_size=0.25", "")))
    output = told(f"cemverify repair bare:mine {OF_LAYERS}", 1).out
    assert output.startswith("With step_size=0.25 every case that was tried holds, and 1 is declared: declare")
    assert "No edit was tried" in output


def test_what_holds_needs_no_edit(here: Path, told: Told) -> None:
    (here / "right.py").write_text(PULL)
    output = told(f"cemverify repair right:mine {OF_LAYERS}").out
    assert "Nothing to mend: none of 2 properties is violated." in output


@pytest.mark.slow
@pytest.mark.thorough
def test_an_edit_that_never_returns_or_ends_its_process_does_not_end_the_search(here: Path, told: Told) -> None:
    trap = "    while x.ndim > 9:\n        pass\n    if x.ndim > 9:\n        __import__('os')._exit(1)\n    return"
    (here / "trap.py").write_text(edited(PULL, ("y - x)", "x - y)"), ("    return 0.25", trap + " 0.25")))
    assert "+    return 0.25 * (y - x)" in told(f"cemverify repair trap:mine {OF_LAYERS}").out


@pytest.mark.slow
def test_code_that_cannot_be_edited_is_named_where_no_edit_helps(here: Path, told: Told) -> None:
    made = 'made = {}\nexec("def update(x, y):\\n    return 0.25 * (y + x)\\n", made)\n\n\nmine = '
    text = edited(PULL, ("mine = ", made), ("update=update", 'update=made["update"]'))
    (here / "partly.py").write_text(text)
    printed = told(f"cemverify repair partly:mine {OF_LAYERS} --write --search 1", 2)  # nothing can be written
    assert "Not edited: update was generated while the program ran" in printed.flat
    assert "No single edit and no pair that was tried mends this" in printed.flat
    assert "nothing was written: no edit makes all properties hold" in printed.err


@pytest.mark.slow
def test_a_property_of_the_users_own_is_mended_in_the_layer_and_not_in_its_own_file(here: Path, told: Told) -> None:
    (here / "mine.py").write_text(edited(PULL, ("0.25 * (y - x)", "0.5 * (y - x)")))
    (here / "stated.py").write_text(STATED)
    output = told(f"cemverify repair mine:mine {FEW} own --properties-from stated.py").out
    assert "+    return 0.25 * (y - x)" in output
    assert "stated.py" not in output


@pytest.mark.slow
def test_a_check_suggests_no_edit_for_what_is_accepted(
    here: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    def searched(*arguments: object) -> RepairOutcome:
        searches.append(arguments)
        return RepairOutcome()

    searches: list[object] = []
    monkeypatch.setattr("cemverify.commands.repair.searched", searched)
    (here / "mine.py").write_text(edited(PULL, ("0.25 * (y - x)", "0.5 * (y - x)")))
    check = f"cemverify check mine:mine {FEW} gradient/layer/energy"
    told(f"{check} --known k.toml --update-known --reason ours")
    told(f"{check} --known k.toml --suggest")
    assert not searches
    told(f"{check} --suggest", 1)
    assert len(searches) == 1

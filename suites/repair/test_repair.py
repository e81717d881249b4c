"""`cemverify repair`, as its user meets it: mistakes in right layers are mended, and nothing else is offered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cemverify.cli import main
from cemverify.commands.repair import searched
from cemverify.conformance.implementations.edited import edited
from cemverify.conformance.implementations.origin import Place
from cemverify.conformance.judging.events import RunFinished, SuggestedEdit
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import select
from cemverify.repair.edits import Edit
from cemverify.repair.search import Repair, RepairOutcome, RepairProgress, enough
from cemverify.repair.wording import in_words
from cemverify.results import envelope
from suites.docs.blocks import TUTORIAL

PULL = """\
from cemverify import energy_layer


def energy(x, y):
    apart = x - y
    return (apart * apart).sum(-1) / 2


def update(x, y):
    return 0.25 * (y - x)


mine = energy_layer(update=update, energy=energy, state=("J", 3), memory=("J", 3), step_size=0.25)
"""
STATED = """\
from cemverify import layer_property


@layer_property(claim="A step goes a quarter of the way.", source="us")
def quarter(layer, question):
    return layer.update(question), (question.memory["memory"] - question.x["x"]) / 4, layer.roundoff(question)
"""
CHANGE = Edit("constant", 3, "1", "2", ())
FEW = ["--examples", "15", "--workers", "1", "--properties"]
OF_LAYERS = [*FEW, "gradient/layer/energy", "descent/layer/slope"]


def mended(name: str, *words: str, properties: Sequence[str] = OF_LAYERS) -> int:
    return main(["repair", name, *properties, *words])


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("hvvv", "hhvv", "1 of 4 hold without this edit, 2 with it; still violated: 2, 3."),
        ("hvvv", "hhvv", "mends 1 of 3 that were violated: the cause is elsewhere."),
        ("hhvv", "vvhh", "mends 2 of 2 that were violated and breaks 2 that held: the cause is elsewhere."),
        ("hvv", "hhv", "mends 1 of 2 that were violated. The rest may have a cause of its own: make this edit,"),
        ("hv?", "hvh", "1 of 2 hold without this edit, 1 with it (of all 3, 2 with it)"),
        ("v", "h", "1 of 1 property is violated. One edit makes it hold (9 edits were tried in 0 s)."),
        ("v", "h", "mine.py:3: with this edit the property holds."),
        ("hv", "hh", "1 of 2 properties is violated. One edit makes all of them hold"),
    ],
)
def test_an_edit_is_told_by_what_holds_without_it_and_advised_if_it_mends_half(
    before: str, after: str, words: str
) -> None:
    """One letter for each property without the edit and with it: h where it holds, v where it is violated."""
    verdicts = {"h": Verdict.HOLDS, "v": Verdict.VIOLATED}
    old, new = ([Record(str(i), "", "", verdicts[v]) for i, v in enumerate(t) if v != "?"] for t in (before, after))
    finished = RunFinished("mine:mine", old, 1.0, unasked=["2"] * before.count("?"))
    outcome = RepairOutcome([Repair([("mine.py", CHANGE)], {}, {}, new)], 9)
    assert words in " ".join(in_words(outcome, finished, "mine:mine").split())


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
def test_the_mistake_of_the_tutorial_is_shown_as_a_diff(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("layer.py", "adapter.py"):
        (here / name).write_text(TUTORIAL[name])
    few = [*FEW, "gradient/attention/plain", "structure/attention/causality"]
    assert mended("adapter:mine", "--json", "r.json", "--workers", "2", properties=few) == 0
    output = capsys.readouterr().out
    assert "with this edit all 2 properties hold" in output
    assert TUTORIAL["repair"] in output
    assert (here / "layer.py").read_text() == TUTORIAL["layer.py"]
    (edit,) = envelope.read(here / "r.json")["repairs"][0]["edits"]
    line = 1 + TUTORIAL["layer.py"][: TUTORIAL["layer.py"].index(TUTORIAL["wrong"])].count("\n")
    assert (edit["line"], edit["before"], edit["after"]) == (line, "h", "q")


@pytest.mark.slow
def test_an_edit_of_the_update_and_one_of_the_energy_are_both_offered_and_one_is_written(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the time of a search is what its processes take for themselves, if that is none."""

    def searched_once(*arguments: Any) -> RepairOutcome:
        found[:] = found or [searched(*arguments)]
        return found[0]

    found: list[RepairOutcome] = []
    wrong = edited(PULL, ("y - x)", "x - y)"))
    (here / "mine.py").write_text(wrong)
    monkeypatch.setattr("cemverify.repair.search.CoreBudget.spent", lambda _: 0.0)
    monkeypatch.setattr("cemverify.commands.repair.searched", searched_once)
    assert mended("mine:mine", "--write", "--search", "0.01") == 2
    captured = capsys.readouterr()
    assert "+    return 0.25 * (y - x)" in captured.out
    assert ", when the time ran out" not in " ".join(captured.out.split())
    assert "Only you know which of them you meant." in captured.out
    assert "choose one, --write 1" in captured.err
    assert (here / "mine.py").read_text() == wrong
    assert mended("mine:mine", "--write", "1") == 0
    assert (here / "mine.py").read_text() != wrong


@pytest.mark.slow
def test_edits_that_do_the_same_are_one_diff_and_are_named_beside_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "plus.py").write_text(edited(PULL, ("y - x)", "y + x)")))
    assert mended("plus:mine", "--json", "plus.json") == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "Another way to write it: `x` becomes `-(x)` in plus.py:10." in output
    assert "+ return 0.25 * (y - x)" in output
    (repair,) = json.loads((here / "plus.json").read_text())["repairs"]
    assert [edit["after"] for edits in repair["alike"] for edit in edits] == ["-(x)"]


@pytest.mark.slow
@pytest.mark.thorough
def test_two_mistakes_are_mended_by_two_edits(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "twice.py").write_text(edited(PULL, ("y - x)", "y + x)"), ("0.25 * (", "0.5 * (")))
    assert mended("twice:mine") == 0
    output = capsys.readouterr().out
    assert "pairs of edits make all of them hold" in output
    assert "-    return 0.5 * (y + x)" in output


def test_a_search_that_is_interrupted_shows_the_best_edits(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(progress: RepairProgress) -> None:
        if progress.doing == "judging":
            raise KeyboardInterrupt

    monkeypatch.setattr("cemverify.commands.repair._tell", interrupt)
    (here / "stopped.py").write_text(edited(PULL, ("y - x)", "x - y)")))
    assert mended("stopped:mine") == 130
    output = capsys.readouterr().out
    assert "stopped.py:10\n-    return 0.25 * (x - y)\n+    return " in output


def test_a_search_whose_processes_take_all_its_time_to_load_says_so(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cemverify.repair.search.CoreBudget.spent", lambda _: 1.0)
    (here / "late.py").write_text(edited(PULL, ("y - x)", "x - y)")))
    assert mended("late:mine", "--search", "0.01") == 2
    assert "time ran out before the implementation was loaded" in capsys.readouterr().out


def test_what_holds_needs_no_edit(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "right.py").write_text(PULL)
    assert mended("right:mine") == 0
    assert "Nothing to mend: of 2 properties none is violated." in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.thorough
def test_an_edit_that_never_returns_or_ends_its_process_does_not_end_the_search(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trap = "    while x.ndim > 9:\n        pass\n    if x.ndim > 9:\n        __import__('os')._exit(1)\n    return"
    (here / "trap.py").write_text(edited(PULL, ("y - x)", "x - y)"), ("    return 0.25", trap + " 0.25")))
    assert mended("trap:mine") == 0
    assert "+    return 0.25 * (y - x)" in capsys.readouterr().out


@pytest.mark.slow
def test_code_that_cannot_be_edited_is_named_where_no_edit_helps(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = 'made = {}\nexec("def update(x, y):\\n    return 0.25 * (y + x)\\n", made)\n\n\nmine = '
    text = edited(PULL, ("mine = ", made), ("update=update", 'update=made["update"]'))
    (here / "partly.py").write_text(text)
    assert mended("partly:mine", "--write", "--search", "1") == 2  # as nothing can be written
    captured = capsys.readouterr()
    output = " ".join(captured.out.split())
    assert "Not edited: update was generated while the program ran" in output
    assert "No edit makes all of them hold" in output
    assert "nothing was written: no edit makes all properties hold" in captured.err


@pytest.mark.slow
def test_a_property_of_the_users_own_is_mended_in_the_layer_and_not_in_its_own_file(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.py").write_text(edited(PULL, ("0.25 * (y - x)", "0.5 * (y - x)")))
    (here / "stated.py").write_text(STATED)
    assert mended("mine:mine", "--properties-from", "stated.py", properties=[*FEW, "own"]) == 0
    output = capsys.readouterr().out
    assert "+    return 0.25 * (y - x)" in output
    assert "stated.py" not in output


@pytest.mark.slow
def test_a_check_suggests_no_edit_for_what_is_accepted(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(*arguments: object) -> RepairOutcome:
        searches.append(arguments)
        return RepairOutcome()

    searches: list[object] = []
    monkeypatch.setattr("cemverify.commands.repair.searched", searched)
    (here / "mine.py").write_text(edited(PULL, ("0.25 * (y - x)", "0.5 * (y - x)")))
    check = ["check", "mine:mine", *FEW, "gradient/layer/energy"]
    assert main([*check, "--known", "k.toml", "--update-known", "--reason", "ours"]) == 0
    assert main([*check, "--known", "k.toml", "--suggest"]) == 0
    assert not searches
    assert main([*check, "--suggest"]) == 1
    assert len(searches) == 1

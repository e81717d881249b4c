"""Violations are reported by cause: grouped, the most fundamental first, with a place, a case and a command."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from cemverify import check_implementation, energy_layer
from cemverify.api import Results
from cemverify.conformance.implementations.contract import load
from cemverify.conformance.implementations.edited import edited
from cemverify.conformance.implementations.origin import Origin, Place
from cemverify.conformance.judging.diagnosis import diagnose
from cemverify.conformance.judging.events import RunFinished, SuggestedEdit
from cemverify.conformance.judging.verdicts import BACKWARD, Record, Verdict, facts_of, size
from cemverify.conformance.listeners import files, terminal
from cemverify.conformance.listeners.diagnosis import github, report
from cemverify.conformance.oracle.evidence import Compared, Comparison, Key
from cemverify.conformance.workers import isolation
from cemverify.conformance.workers.limits import USUAL_MEMORY, limits_memory
from cemverify.results.provenance import Maker
from docs.making import terminal as terminal_picture
from suites.kit.commands import Told
from suites.kit.examples import PULL, README_MISTAKEN
from suites.kit.judging import ONE_OF_EACH, QUICKLY, finished

pytest_plugins = ["pytester"]
MAKER = Maker.now("test", {}, 0, "cpu")
ORIGIN = Origin(
    "d" * 64,
    {"attention": Place("pkg/mine.py", 6, "attention"), "decode": Place("pkg/mine.py", 30, "step")}
    | {"energy": Place("pkg/mine.py", 40, "E")},
)


def holding(id_: str) -> Record:
    return Record(id_, "A claim.", "Eq. 1", Verdict.HOLDS, 60, 40, margin=0.1)


def violated(id_: str, part: str | None = None, cause: str = "update", reason: str = "got 1, expected 0") -> Record:
    because = None if part is None else f"an experiment shows it is the {part}"
    found = replace(holding(id_), verdict=Verdict.VIOLATED, cause=cause, key=Key(cause), reason=reason, margin=9.0)
    return replace(found, part=part, because=because)


def run(*records: Record) -> RunFinished:
    return RunFinished("mine:mine", records, 1.0, ORIGIN)


def diagnosed(*records: Record, **of_the_run: Any) -> Any:
    return diagnose(replace(run(*records), **of_the_run))


MASK, ALONE = violated("gradient/attention/a", "mask"), violated("training/attention/b")
CLAIM = 'the claim of training/attention/b does not hold: "A claim."'
KEY = "it raised KeyError: 'W_V' (mine.py, line 9)"
LEAF = "it raised RuntimeError: a leaf Variable that requires grad is being used in an in-place operation."


@pytest.mark.parametrize(
    ("records", "causes", "sentence"),
    [
        # the most fundamental first
        ([holding("gradient/attention/a"), violated("descent/attention/b", "mask"),
          violated("structure/attention/c", "temperature"), violated("tying/attention/d", "mask")],
         {"mask": 2, "temperature": 1}, "3 of 4 violated, 2 causes; the most fundamental: mask"),
        ([MASK, ALONE], {"mask": 1}, "2 of 2 violated, 1 by one cause: mask"),
        ([ALONE], {CLAIM: 1}, f"1 of 1 violated: {CLAIM}"),
        ([violated(f"gradient/attention/{i}", None, "raised", KEY) for i in range(5)],
         {KEY: 5}, f"5 of 5 violated, one cause: {KEY}"),
        # torch's complaint about an edited argument follows from that
        ([violated("gradient/layer/energy", "a constant factor"),
          violated("structure/layer/inputs-unchanged", cause=Compared.KEPT),
          violated("training/layer/states", None, "raised", LEAF)],
         {"a constant factor": 1, "an argument that a call edits": 2}, "3 of 3 violated, 2 causes"),
        # if the update is wrong, nothing shows that a weight is stored twice or that the backward pass is wrong
        ([violated("gradient/attention/a", cause=Compared.ANSWER), violated("training/attention/b", BACKWARD),
          violated("training/mlp/b", BACKWARD)],
         {CLAIM.replace("training/attention/b", "gradient/attention/a"): 1, BACKWARD: 1}, "3 of 3 violated, 2"),
        # and everything may follow from answers that differ from call to call
        ([violated("gradient/attention/a"), violated("descent/attention/b", "mask"),
          violated("contract/attention/determinism")],
         {"one call has two answers": 3}, "3 of 3 violated, one cause: one call has two answers"),
    ],
)  # fmt: skip
def test_violations_are_grouped_by_cause(records: Sequence[Record], causes: dict[str, int], sentence: str) -> None:
    diagnosis = diagnosed(*records)
    assert [(cause.name, len(cause.records)) for cause in diagnosis.causes] == list(causes.items())
    assert diagnosis.sentence.startswith(sentence)


def test_a_violation_says_of_which_functions_its_claim_holds() -> None:
    others = [holding(f"contract/{function}/threads") for function in ("attention", "mlp", "attention-energy")]
    text = report(diagnosed(*others, violated("contract/decode/threads"), holding("contract/decode/windows")))
    assert "contract/*/threads: violated for decode; holds for attention, mlp, attention-energy\n" in text
    another = replace(holding("contract/mlp/threads"), claim="Another claim.")
    assert "holds for" not in report(diagnosed(violated("contract/decode/threads"), another, holding("own/threads")))


def test_an_update_that_is_wrong_may_have_a_wrong_energy_beside_it() -> None:
    origin = Origin("d" * 64, {"update": Place("mine.py", 3), "energy": Place("mine.py", 9)})
    diagnosis = diagnosed(violated("gradient/layer/energy", "mask"), origin=origin)
    assert diagnosis.causes[0].because.endswith("is the mask; or the declared energy is wrong (mine.py:9)")


def test_the_function_that_says_what_is_right_is_not_where_the_mistake_is() -> None:
    """Although it runs, and does most of the work, whenever the update is tested."""
    update, helper, energy = (Place("mine.py", i, name, i + 3) for i, name in ((3, "f"), (7, "g"), (11, "E")))
    origin = Origin("d" * 64, {"update": update, "energy": energy})
    (cause,) = diagnosed(replace(violated("gradient/layer/a"), ran=(energy, update, helper)), origin=origin).causes
    assert cause.where == "in f (mine.py:3-6); also ran: g"


@pytest.mark.parametrize(("at", "place"), [(None, None), (("pkg/mine.py", 9), "pkg/mine.py:9")])
def test_a_wrong_declaration_is_not_to_be_repaired(at: tuple[str, int] | None, place: str | None) -> None:
    record = violated("gradient/attention/a", None, "raised", "it has no such option")
    (cause,) = diagnosed(replace(record, raised_at=at, declaration=True)).causes
    assert (cause.place and str(cause.place), cause.may_be_mended) == (place, False)


def test_the_headline_of_a_page_is_text_whatever_a_layer_raised() -> None:
    reason = "it raised ValueError: <details> ![](//a.b)"
    page = files.as_markdown(run(violated("gradient/attention/a", None, "raised", reason)), MAKER)
    assert "\n**1 of 1 violated: it raised ValueError: \\<details> ![\\](//a.b)**\n" in page


@pytest.mark.parametrize(
    ("record", "line", "words"),
    [
        (MASK, 6, "in attention (pkg/mine.py:6)"),
        (violated("decoding/attention/b", "cache"), 30, "(pkg/mine.py:30)"),
        (replace(violated("a/layer/b", None, "not finite"), key=Key("not finite", "energy")), 40,
         "in E (pkg/mine.py:40)"),
        (replace(MASK, line=Place("pkg/mine.py", 9)), 9,
         "at: pkg/mine.py:9, in attention (cases that hold do not run it)"),
        (replace(MASK, part=None, key=Key("raised"), raised_at=("pkg/mine.py", 8)), 8,
         "at: pkg/mine.py:8, in attention (it raises there)"),
    ],
)  # fmt: skip
def test_a_cause_is_at_the_line_that_only_failing_cases_run_or_its_function(
    record: Record, line: int, words: str
) -> None:
    diagnosis = diagnosed(record)
    assert (record.line or diagnosis.causes[0].place).line == line
    assert words in report(diagnosis).splitlines()[1 + bool(record.part)].strip()


BRANCH = "step = 0.25 * (y - x)\n    if x.shape[1] > 2:\n        step = 1.01 * step\n    return step"
CHECK_ENERGY = "--properties gradient/layer/energy --workers 1"


def test_a_branch_that_is_wrong_is_named_by_its_line(here: Path, told: Told) -> None:
    (here / "branching.py").write_text(edited(PULL, ("return 0.25 * (y - x)", BRANCH)))
    printed = told(f"cemverify check branching:mine {CHECK_ENERGY}", 1).flat
    assert "at: branching.py:12, in update (cases that hold do not run it)" in printed


FORCES = """\
class Spring:
    def __init__(self):
        self.softness = 0.4
        self.stiffness = 2.5
        self.stiffness *= 0.6

    def forward(self, x, rest):
        pull = stretched(x, rest)
        return self.stiffness * pull


def stretched(x, rest):
    return rest - x
"""
ADAPTER = """\
from cemverify import energy_layer
from forces import Spring

def declared():
    return energy_layer(
        update=lambda x, m: Spring().forward(x, m),
        energy=lambda x, m: ((x - m) ** 2).sum((1, 2)) / 2, state=(6, 4), memory=(6, 4), energy_per="sequence"
    )

mine = declared()
"""


def test_what_does_most_is_named_before_its_adapter_and_of_long_arrays_the_wrong_row(here: Path, told: Told) -> None:
    (here / "forces.py").write_text(FORCES)
    (here / "adapting.py").write_text(ADAPTER)
    printed = told(f"cemverify check adapting:mine {CHECK_ENERGY} --github --json r.json", 1).flat
    assert "mostly in Spring.forward (forces.py:7-9), called by adapting.py:6; also ran: stretched" in printed
    assert "::error file=forces.py,line=7," in printed
    (cause,) = json.loads(Path("r.json").read_text())["diagnosis"]["causes"]
    assert cause["place"] == {"file": "forces.py", "line": 7, "function": "Spring.forward"}
    assert cause["called_from"] == {"file": "adapting.py", "line": 6, "function": "<lambda>"}
    assert "of gradient/layer/energy: x (1, 6, 4) compared: update = -eta P grad energy x zeros (1, 6, 4)" in printed
    assert re.search(r"got\[0, \d\] \[.*1.5.*\] expected\[0, \d\] \[.*1.0.*\]", printed)


def test_of_a_long_row_the_entries_around_the_largest_difference_are_shown() -> None:
    got = torch.linspace(0.1234, 7.6543, 16, dtype=torch.float64).reshape(1, 2, 8)
    expected = got.clone()
    expected[0, 1, 6] += 1
    sides = Comparison("equal", got, expected, torch.ones(1)).describe()
    shown = dict(facts_of({"case": {}, "comparison": sides}, 40))
    assert list(shown) == ["got[0, 1, 4:8]", "expected[0, 1, 4:8]"]
    assert shown["expected[0, 1, 4:8]"] == "[6.14812, 6.65018, 8.15224, 7.6543]"


@pytest.mark.parametrize("value", ["in a context that takes many words " * 9, [[1.0] * 90, [2.0]]])
def test_a_case_may_hold_what_is_no_array(value: object) -> None:
    shown = dict(facts_of({"case": {"config": {"dim": 1}, "context": value}}, 72))["context"]
    assert shown.startswith(repr(value)[:40])
    assert size({"context": value})


def test_accepted_violations_need_no_diagnosis() -> None:
    accepted = run(holding("a/b/c"), replace(violated("a/b/d"), known="a ticket"))
    assert diagnose(accepted) is files.as_json(accepted, MAKER)["headline"] is None


def test_an_edit_that_mends_is_shown_and_none_is_looked_for_where_a_call_ended_its_process() -> None:
    edit = SuggestedEdit(Place("pkg/mine.py", 14, "attention"), "    x = x + W_K", "    x = x +\f W_Q")
    lines = ("suggested edit, pkg/mine.py:14:", "-     x = x + W_K", "+     x = x +\\x0c W_Q")
    assert "\n    ".join(lines) in report(diagnosed(MASK, edit=edit))
    causes = ("update", "raised", "crashed", "hung")
    reports = [report(diagnosed(violated("gradient/attention/a", cause=cause))) for cause in causes]
    assert ["mend: cemverify repair mine:mine" in text for text in reports] == [True, True, False, False]


def test_annotations_escape_what_github_reads_as_its_own() -> None:
    annotation = github(diagnosed(violated("gradient/attention/a", "a, b: 100 %\n::error::")))
    assert len(annotation.splitlines()) == 1
    assert "a%2C b%3A 100 %25%0A%3A%3Aerror%3A%3A" in annotation


SINGLE = """\
import torch

from cemverify import implementation
from cemverify.conformance.implementations.reference import mlp as right


def mlp(x, h, weights, config):
    step = right(x, h, weights, config)
    return 1.01 * step if step.dtype == torch.float32 else step


mine = implementation(mlp=mlp)
"""


def test_again_asks_with_the_options_that_decide_the_answer(here: Path, told: Told) -> None:
    (here / "single.py").write_text(SINGLE)
    asked = "cemverify check single:mine --properties gradient/mlp/silu"
    more = "--examples 8 --seed 7 --seconds 59.5 --timeout 30 --dtype float32 --black-box"
    printed = told(f"{asked} {more} --workers 1 --github --json r.json", 1).flat
    again = json.loads(Path("r.json").read_text())["diagnosis"]["again"]
    assert again == f"{asked} {more}"
    assert f"again: {again} mend: cemverify repair single:mine {more.removesuffix(' --black-box')}" in printed
    assert f"%0A{again}" in printed  # the CI annotation
    told(again, 1)
    told(asked)  # without the other options it holds


@pytest.mark.skipif(not limits_memory(), reason="memory is limited on Linux only")
@pytest.mark.parametrize(("memory", "told"), [(USUAL_MEMORY, ()), (1500, ("--memory", "1500"))])
def test_a_limit_of_memory_that_was_given_is_told(memory: int, told: Sequence[str]) -> None:
    effort = replace(QUICKLY, examples=60, memory=memory)
    assert tuple(finished(isolation.run("cemverify:reference", ONE_OF_EACH[:1], effort)).options or ()) == told


def test_an_own_property_is_asked_and_mended_with_its_file_and_names_are_quoted_for_a_shell() -> None:
    own = replace(violated("own/is-odd"), stated_in="my notes.odd")
    diagnosis = diagnosed(own, implementation="a b:mine")
    assert diagnosis.again == "cemverify check 'a b:mine' --properties own/is-odd --properties-from 'my notes.odd'"
    assert diagnosis.mend == ""  # it has no place in the code
    mend = diagnosed(replace(MASK, stated_in="odd")).mend
    assert mend == "cemverify repair mine:mine --properties-from odd"


def test_an_object_has_no_name_that_a_command_could_be_given() -> None:
    declared: Any = {"energy": lambda x, m: ((x - m) ** 2).sum(-1) / 2, "dim": 2, "step_size": 0.5}
    layer = energy_layer(update=lambda x, m: 0.505 * (m - x), **declared)
    results = check_implementation(layer, properties=["gradient/layer/energy"], examples=6)
    diagnosis: Any = results.diagnosis
    assert (diagnosis.causes[0].may_be_mended, diagnosis.again, diagnosis.mend) == (True, "", "")
    assert not re.search("again:|mend:|cemverify", str(results))
    assert "cemverify" not in github(diagnosis)


# --- README's mistake in every kind of report -----

HEADLINE, ONE_ARRAY = "gradient/attention/plain", "contract/attention/one-array"
PROPERTIES = (ONE_ARRAY, "descent/attention/along-steps", "structure/attention/causality", HEADLINE)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    """A check of README's layer with README's mistake, in its own file."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "readmes_layer.py").write_text(README_MISTAKEN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        judged_here = check_implementation(load("readmes_layer:mine"), properties=PROPERTIES, examples=6)
        # the report of a run that was started by this name
        yield Results(replace(judged_here.finished, implementation="readmes_layer:mine", options=()))
    sys.modules.pop("readmes_layer")


def test_it_is_told_on_one_screen_of_80_columns(results: Results) -> None:
    assert {HEADLINE, ONE_ARRAY} <= {r.id for r in results if r.verdict == Verdict.VIOLATED}
    text = terminal.report(results.finished, width=80)
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) <= 80
    first = re.findall(r"^VIOLATED (\S+)", terminal.report(results.finished, verbose=True), re.MULTILINE)[0]
    assert first == HEADLINE


def test_the_picture_in_the_readme_shows_it(results: Results) -> None:
    picture = re.sub(r"\s+", " ", terminal_picture.text_of(terminal_picture.PICTURE.read_text(encoding="utf-8")))
    lines = map(str.strip, terminal.report(results.finished, width=102).splitlines())
    shown = [re.sub(r"\s+", " ", line) for line in lines if line.startswith(("W_K", "config", "h [", "expected"))]
    again = "again: cemverify check mylayer:mine --properties gradient/attention/plain"
    shown += [f"$ {terminal_picture.COMMAND} ", "by one cause: output projection", again]
    assert [words for words in shown if words not in picture] == []


def test_result_file_markdown_and_junit_begin_with_it(results: Results) -> None:
    content = files.as_json(results.finished, MAKER)
    assert list(content)[3] == "diagnosis"
    assert content["diagnosis"]["causes"][0]["name"] == "output projection"
    assert content["diagnosis"]["causes"][0]["place"]["file"] == "readmes_layer.py"
    assert content["headline"] == content["properties"][0]["id"] == HEADLINE
    page, junit = files.as_markdown(results.finished, MAKER), files.as_junit(results.finished)
    for text, lines in ((json.dumps(content, indent=1), 10), (page, 4), (junit, 8)):
        assert "output projection" in "\n".join(text.splitlines()[:lines])
    assert re.findall(r"^VIOLATED (\S+)", page, re.MULTILINE)[0] == HEADLINE
    assert re.findall(r"^\| (\S+) +\| violated", page, re.MULTILINE)[0] == HEADLINE
    cases = ElementTree.fromstring(junit).iter("testcase")  # noqa: S314 (our own)
    case, failure = next((case, failure) for case in cases if (failure := case.find("failure")) is not None)
    assert f"{case.get('classname')}/{case.get('name')}" == f"cemverify.{HEADLINE}"
    assert str(failure.get("message")).startswith("output projection: ")


def test_results_and_records_are_short_in_a_shell_and_whole_when_printed(results: Results) -> None:
    record = next(r for r in results if r.id == HEADLINE)
    assert repr(record) == "Record(gradient/attention/plain: violated, margin inf, output projection)"
    assert str(record).startswith("VIOLATED gradient/attention/plain\n  claim:")
    assert len(repr(results)) < 120
    assert "again: cemverify check" in str(results)
    assert "<pre>" in results._repr_html_()
    assert "&#x27;" in replace(record, reason="it's <b>")._repr_html_()


def test_pytest_reports_it_first_and_in_full_and_the_others_point_to_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # a unique module name: the others were imported from elsewhere
    asked = f"'mistaken_layer:mine', properties={PROPERTIES}, examples=6, save_counterexamples='found'"
    decorated = f"@parametrize_with_properties({asked})\ndef test_attention(check): check()\n"
    test = f"from cemverify import parametrize_with_properties\n{decorated}"
    pytester.makepyfile(mistaken_layer=README_MISTAKEN, test_layer=test)
    printed = pytester.runpytest("-p", "no:cacheprovider").stdout.str()
    (first, *_) = re.findall(r"^FAILED \S+\[(\S+)\] - (.*)", printed, re.MULTILINE)
    assert first[0] == HEADLINE
    assert first[1].startswith("Failed: output projection: got")
    failures = printed.partition("short test summary")[0]
    _, full, *others = re.split(r"^_+ test_attention\[.*\n", failures, flags=re.MULTILINE)
    again = "again: cemverify check mistaken_layer:mine --properties {} --examples 6\n"
    place = r"^  in attention \(mistaken_layer.py:\d+\)\n"
    assert f"VIOLATED {HEADLINE}\n" in full
    assert re.search(rf"{place}  {again.format(HEADLINE)}  mend: .*\n  saved: ", full, re.M)
    same = [text for text in others if f"; same cause as {HEADLINE}, in attention (mistaken_layer.py:" in text]
    assert same
    for text in same:
        assert re.search(rf"\n{again.format('(.*)')}saved: cemverify replay (.*)\n", text)
        assert "VIOLATED" not in text
    assert len(list(Path("found").glob("*.py"))) == 1 + len(others)

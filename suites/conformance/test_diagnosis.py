"""Violations are told by their cause: grouped, the most fundamental first, with a place, a case and a command."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cemverify import check_implementation
from cemverify.cli import main
from cemverify.conformance.implementations.origin import Origin, Place
from cemverify.conformance.judging.diagnosis import diagnose
from cemverify.conformance.judging.events import Edit, RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.listeners import files, terminal
from cemverify.conformance.listeners.diagnosis import github, report
from cemverify.results.provenance import Maker
from docs.making import terminal as terminal_picture
from suites.conformance import wrong_layers
from suites.conformance.test_relations import mistaken

pytest_plugins = ["pytester"]
MAKER = Maker.now("test", {}, 0, "cpu")
ORIGIN = Origin(
    "d" * 64, {"attention": Place("pkg/mine.py", 6, "attention"), "decode": Place("pkg/mine.py", 30, "step")}
)


def holding(id_: str) -> Record:
    return Record(id_, "A claim.", "Eq. 1", Verdict.HOLDS, 60, 40, margin=0.1)


def violated(id_: str, part: str | None = None, cause: str = "update", reason: str = "got 1, expected 0") -> Record:
    record = Record(id_, "A claim.", "Eq. 1", Verdict.VIOLATED, cause=cause, reason=reason, margin=9.0)
    return replace(record, part=part, because=None if part is None else f"an experiment shows it is the {part}")


def run(*records: Record) -> RunFinished:
    return RunFinished("mine:mine", records, 1.0, ORIGIN)


def test_violations_of_one_part_have_one_cause_and_the_most_fundamental_comes_first() -> None:
    found = diagnose(
        run(
            holding("gradient/attention/a"),
            violated("descent/attention/b", "mask"),
            violated("structure/attention/c", "temperature"),
            violated("metamorphic/attention/d", "mask"),
        )
    )
    assert found is not None
    assert [(cause.name, len(cause.records)) for cause in found.causes] == [("mask", 2), ("temperature", 1)]
    assert found.sentence == "3 of 4 violated, 2 causes; the most fundamental: mask"
    assert found.again == "cemverify check mine:mine --properties descent/attention/b"


def test_what_no_experiment_explains_may_follow_from_what_is_explained() -> None:
    found = diagnose(run(violated("gradient/attention/a", "mask"), violated("training/attention/b")))
    assert found is not None
    assert found.sentence == "2 of 2 violated, 1 by one cause: mask"
    assert [record.id for record in found.unexplained] == ["training/attention/b"]


def test_one_exception_is_one_cause_at_its_line() -> None:
    reason = "it raised KeyError: 'W_V' (mine.py, line 9)"
    found = diagnose(run(*(violated(f"gradient/attention/{i}", None, "raised", reason) for i in range(5))))
    assert found is not None
    (cause,) = found.causes
    assert found.sentence == f"5 of 5 violated, one cause: {reason}"
    assert cause.place == Place("pkg/mine.py", 9, "attention")


def test_all_follows_from_answers_that_differ_from_call_to_call() -> None:
    random = violated("contract/attention/determinism")
    found = diagnose(run(violated("gradient/attention/a"), violated("descent/attention/b", "mask"), random))
    assert found is not None
    assert [cause.name for cause in found.causes] == ["one call has two answers"]
    assert "eval()" in found.causes[0].because


def test_a_cause_is_where_its_function_begins() -> None:
    for record, line in (
        (violated("gradient/attention/a", "mask"), 6),
        (violated("decoding/attention/b", "cache"), 30),
    ):
        found = diagnose(run(record))
        assert found is not None
        assert found.causes[0].place is not None
        assert found.causes[0].place.line == line


def test_the_line_that_only_a_failing_case_runs_is_named_and_else_the_function() -> None:
    record = violated("gradient/attention/a", "mask")
    for each, where in (
        (record, "in attention (pkg/mine.py:6)"),
        (replace(record, line=Place("pkg/mine.py", 9)),
         "at: pkg/mine.py:9, in attention (cases that hold do not run it)"),
        (replace(record, part=None, cause="raised", reason="it raised KeyError: 1 (mine.py, line 8)"),
         "at: pkg/mine.py:8, in attention (it raises there)"),
    ):  # fmt: skip
        found = diagnose(run(each))
        assert found is not None
        assert where in report(found).splitlines()[1 + bool(each.part)].strip()


BRANCH = """\
from cemverify import energy_layer


def update(x, y):
    step = y - x
    if x.shape[1] > 2:
        step = 1.01 * step
    return step


mine = energy_layer(update=update, energy=lambda x, y: ((x - y) ** 2).sum(-1) / 2, dim=3)
"""


def test_a_branch_that_is_wrong_is_named_by_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "branching.py").write_text(BRANCH)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    assert main(["check", "branching:mine", "--properties", "gradient/layer/energy", "--workers", "1"]) == 1
    out = capsys.readouterr().out
    assert "at: branching.py:7, in update (cases that hold do not run it)" in " ".join(out.split())


def test_accepted_violations_need_no_diagnosis() -> None:
    assert diagnose(run(holding("a/b/c"), replace(violated("a/b/d"), known="a ticket"))) is None


def test_an_edit_that_is_found_is_shown() -> None:
    edit = Edit(Place("pkg/mine.py", 14, "attention"), "    x = x + W_K", "    x = x + W_Q")
    found = diagnose(replace(run(violated("gradient/attention/a", "mask")), edit=edit))
    assert found is not None
    assert "suggested edit, pkg/mine.py:14:\n  -     x = x + W_K\n  +     x = x + W_Q".replace(
        "\n", "\n  "
    ) in report(found)


READMES = check_implementation(mistaken, properties=["gradient", "descent", "structure", "metamorphic"], examples=6)


def test_where_a_call_ended_its_process_no_edit_is_looked_for() -> None:
    told = [diagnose(run(violated("gradient/attention/a", cause=c))) for c in ("update", "raised", "crashed", "hung")]
    hinted = [found is not None and "mend: cemverify repair mine:mine" in report(found) for found in told]
    assert hinted == [True, True, False, False]


def test_readmes_mistake_is_told_on_one_screen_of_80_columns() -> None:
    lines = terminal.report(READMES.finished, width=80).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    said = "\n".join(lines)
    assert "by one cause: output projection" in said or "one cause: output projection" in said
    assert "W_K where W_Q belongs" in said
    assert re.search(r"in \w+ \(suites/conformance/test_relations.py:\d+\)", said)
    assert "again: cemverify check" in said


def test_the_picture_in_the_readme_shows_it() -> None:
    shown = re.sub(r"\s+", " ", terminal_picture.text_of(terminal_picture.PICTURE.read_text(encoding="utf-8")))
    for line in terminal.report(READMES.finished, width=102).splitlines():
        if line.strip().startswith(("W_K", "config", "h [", "expected")):
            assert re.sub(r"\s+", " ", line.strip()) in shown
    assert f"$ {terminal_picture.COMMAND} " in shown
    assert "by one cause: output projection" in shown
    assert "again: cemverify check mylayer:mine --properties gradient/attention/plain" in shown


def test_a_result_file_begins_with_it() -> None:
    content = files.as_json(READMES.finished, MAKER)
    assert list(content)[3] == "diagnosis"
    assert content["diagnosis"]["causes"][0]["name"] == "output projection"
    assert content["diagnosis"]["causes"][0]["place"]["file"] == "suites/conformance/test_relations.py"
    assert "output projection" in "\n".join(json.dumps(content, indent=1).splitlines()[:10])


def test_markdown_and_junit_begin_with_it() -> None:
    assert "output projection" in "\n".join(files.as_markdown(READMES.finished, MAKER).splitlines()[:4])
    junit = files.as_junit(READMES.finished)
    assert "output projection" in "\n".join(junit.splitlines()[:8])
    failure = next(ElementTree.fromstring(junit).iter("failure"))  # noqa: S314 (our own)
    assert str(failure.get("message")).startswith("output projection: ")


def test_github_gets_an_annotation_at_the_line() -> None:
    found = diagnose(READMES.finished)
    assert found is not None
    first = github(found).splitlines()[0]
    assert first.startswith("::error file=suites/conformance/test_relations.py,line=")
    assert "violated%3A output projection::W_K where W_Q belongs" in first


def test_annotations_escape_what_github_reads_as_its_own() -> None:
    found = diagnose(run(violated("gradient/attention/a", "a, b: 100 %\n::error::")))
    assert found is not None
    said = github(found)
    assert len(said.splitlines()) == 1
    assert "a%2C b%3A 100 %25%0A%3A%3Aerror%3A%3A" in said


def test_results_and_records_are_short_in_a_shell_and_whole_when_printed() -> None:
    record = next(r for r in READMES if r.id == "gradient/attention/plain")
    assert repr(record) == "Record(gradient/attention/plain: violated, margin inf, output projection)"
    assert str(record).startswith("VIOLATED gradient/attention/plain\n  claim:")
    assert len(repr(READMES)) < 120
    assert "output projection" in repr(READMES)
    assert "again: cemverify check" in str(READMES)
    assert "<pre>VIOLATED gradient" in record._repr_html_()
    assert "&#x27;" in replace(record, reason="it's <b>")._repr_html_()
    assert "<pre>" in READMES._repr_html_()


def test_pytests_line_begins_with_the_cause(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    pytester.makepyfile(
        """
        from cemverify import parametrize_with_properties
        from suites.conformance.test_relations import mistaken

        @parametrize_with_properties(mistaken, properties=["gradient/attention/plain"], examples=6)
        def test_attention(check): check()
        """
    )
    printed = pytester.runpytest("-p", "no:cacheprovider").stdout.str()
    assert "- Failed: output projection: got" in printed


def test_a_layer_that_holds_has_no_diagnosis() -> None:
    found: Any = check_implementation(wrong_layers.tokens, properties=["structure/layer/causality"], examples=6)
    assert found.diagnosis is None
    assert repr(found) == "Results(EnergyLayer: 1 of 1 hold)"

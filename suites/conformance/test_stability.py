"""A pinned catalogue: newer properties are reported before they are enforced, and none is without a version."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cemverify.api import Check
from cemverify.catalogue import versions
from cemverify.catalogue.versions import check_version, current, introduced, is_newer
from cemverify.cli import main
from cemverify.conformance import properties
from cemverify.conformance.gate.baselines import Baseline, Conditions, compare
from cemverify.conformance.gate.pinning import pin
from cemverify.conformance.implementations.contract import implementation
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict, counts, exit_code, violations
from cemverify.conformance.listeners import files, terminal
from cemverify.console.errors import UsageError
from cemverify.results import envelope, provenance

OLD, NEW = "gradient/attention/plain", "gradient/attention/alibi"
TRAINED = "trained/"


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue with a second version, which introduced one property."""
    table = {**introduced(), NEW: "2027.02"}
    monkeypatch.setattr(versions, "introduced", lambda: table)


def record(id_: str, verdict: Verdict) -> Record:
    return Record(id_, "a claim", "a source", verdict, examples=10, telling=10, reason="because")


# --- the table ------------------------------------------------------------------------------------


def test_every_property_has_a_version_which_is_a_month() -> None:
    there = {property_.id: property_.since for property_ in properties.catalogue()}
    listed = {id_: since for id_, since in introduced().items() if not id_.startswith(TRAINED)}
    assert listed == there, "write the list again: python -m cemverify.commands.catalogue"
    assert all(re.fullmatch(r"\d{4}\.(0[1-9]|1[0-2])", version) for version in versions.versions())
    assert list(versions.versions()) == sorted(versions.versions())


@pytest.mark.usefixtures("later")
def test_a_property_is_newer_than_a_pin_before_its_version() -> None:
    assert is_newer(NEW, "2026.11")
    assert not is_newer(NEW, "2027.02")
    assert not is_newer(OLD, "2026.11")
    assert not is_newer(NEW, None)


def test_a_version_that_is_not_known_here_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match=re.escape(f"no catalogue '2099.01' here, but {current()}")):
        check_version("2099.01")


# --- a pinned run ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize(
    ("old", "new", "pinned", "code"),
    [
        ("holds", "violated", None, 1),
        ("holds", "violated", "2027.02", 1),
        ("holds", "violated", "2026.11", 0),
        ("holds", "inconclusive", "2026.11", 0),
        ("holds", "suite error", "2026.11", 0),
        ("violated", "holds", "2026.11", 1),
        ("violated", "violated", "2026.11", 1),
        ("inconclusive", "holds", "2026.11", 2),
        ("not offered", "holds", "2026.11", 2),  # nothing that is enforced was run
    ],
)
def test_only_what_the_pin_enforces_decides_the_exit_code(old: str, new: str, pinned: str | None, code: int) -> None:
    assert exit_code(pin([record(OLD, Verdict(old)), record(NEW, Verdict(new))], pinned)) == code


@pytest.fixture
def finished(later: None) -> RunFinished:
    """A pinned run in which the new property is violated."""
    records = pin([record(OLD, Verdict.HOLDS), record(NEW, Verdict.VIOLATED)], "2026.11")
    return RunFinished("mypkg:mine", records, 1.0)


def test_what_is_not_enforced_is_reported_all_the_same(finished: RunFinished) -> None:
    text = terminal.report(finished)
    assert re.search(rf"{NEW} +violated, not enforced", text)
    assert f"NOT ENFORCED {NEW}" in text
    assert "came with catalogue 2027.02, and this run is pinned to 2026.11" in text
    assert "1 violated, 0 inconclusive, 0 suite errors (1 of these not enforced)" in text
    assert violations(finished.records) == []


def test_junit_skips_it_with_the_reason_and_says_what_was_enforced(finished: RunFinished) -> None:
    suite = ElementTree.fromstring(files.as_junit(finished, "2026.11"))[0]  # noqa: S314
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["2", "0", "0", "1"]
    facts = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert facts == {"catalogue": "2027.02", "catalogue enforced": "2026.11"}
    (skipped,) = suite.iter("skipped")
    assert skipped.get("type") == "not enforced"
    assert "came with catalogue 2027.02" in str(skipped.get("message"))
    assert f"VIOLATED {NEW}" in str(skipped.text)


def test_the_result_file_says_it_for_the_run_and_for_each_property(finished: RunFinished, tmp_path: Path) -> None:
    maker = provenance.Maker.now("cemverify check", {}, 0, "cpu")
    envelope.write(tmp_path / "r.json", files.as_json(finished, maker, pinned="2026.11"))
    content = envelope.read(tmp_path / "r.json")
    assert content["catalogue"] == {"version": "2027.02", "pinned": "2026.11"}
    assert content["counts"]["not_enforced"] == 1
    assert content["headline"] is None
    assert [(p["introduced"], p.get("newer_than")) for p in content["properties"]] == [
        ("2026.11", None),
        ("2027.02", "2026.11"),
    ]


@pytest.mark.usefixtures("later")
def test_a_baseline_notes_it_as_no_regression() -> None:
    baseline = Baseline(
        Path("b.json"), Conditions("i", "float64", "cpu", 60, 0), "0", (), {OLD: "holds", NEW: "holds"}, {}
    )

    def regressions(records: Sequence[Record]) -> list[str | None]:
        return [d.property for d in compare(baseline, records, (), "0") if d.regression]

    lost = [record(OLD, Verdict.VIOLATED), record(NEW, Verdict.VIOLATED)]
    assert regressions(pin(lost, None)) == [OLD, NEW]
    assert regressions(pin(lost, "2026.11")) == [OLD]


def test_a_run_without_a_pin_enforces_everything() -> None:
    tally = counts(pin([record(OLD, Verdict.VIOLATED)], None))
    assert (tally["violated"], tally["not_enforced"]) == (1, 0)


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize(
    ("id_", "pinned", "outcome"),
    [
        (NEW, "2026.11", pytest.xfail.Exception),
        (NEW, "2027.02", pytest.fail.Exception),
        (OLD, "2026.11", pytest.fail.Exception),
    ],
)
def test_pytest_expects_the_failure_of_what_is_not_enforced(
    id_: str, pinned: str, outcome: type[BaseException]
) -> None:
    idle = implementation(attention=lambda x, h, weights, config: x)
    with pytest.raises(outcome):
        Check(idle, properties.by_id(id_), Effort(examples=3, shrink=False), pinned=pinned)()


# --- the command line -----------------------------------------------------------------------------


def test_a_pin_that_is_not_known_is_refused_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "cemverify:reference", "--catalogue", "2099.01"]) == 2
    assert "there is no catalogue '2099.01' here" in capsys.readouterr().err


@pytest.mark.usefixtures("later")
def test_what_is_newer_than_a_pin_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "gradient", "--newer-than", "2026.11"]) == 0
    output = capsys.readouterr().out
    assert NEW in output
    assert "1 property, catalogue 2027.02" in output
    assert main(["list", "--newer-than", "2027.02"]) == 2
    assert "none of these properties is newer than catalogue 2027.02" in capsys.readouterr().err


def test_the_version_says_which_catalogue_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.strip().endswith(f", catalogue {current()}")


def test_a_known_property_of_a_trained_layer_has_a_version_too() -> None:
    assert {id_ for id_ in introduced() if id_.startswith(TRAINED)} == {
        f"trained/{name}" for name in ("update", "slope", "whole-step", "preconditioner", "symmetry", "precision")
    }
